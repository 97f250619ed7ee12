"""Ways to a node itself: `healer-node` over SSH."""
