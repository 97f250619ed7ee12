"""Bytes to observations: forms, not meaning."""
