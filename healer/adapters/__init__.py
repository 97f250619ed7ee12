"""PostgreSQL, Slurm, nodes, BMCs, webhooks. They fill the ports and decide nothing."""
