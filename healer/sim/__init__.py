"""Simulated Slurm, nodes, sensors and ledger; planted faults."""
