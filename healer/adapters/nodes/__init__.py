"""Commands on nodes: `healer-node` over SSH."""
