"""Topology files from what the fabric and the switches say."""
