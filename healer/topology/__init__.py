"""Topology files, from reports of the fabric and the switches."""
