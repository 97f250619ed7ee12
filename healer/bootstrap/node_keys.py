"""The keys that `healer node-keys` makes, for commands."""

from healer.adapters.nodes.request_signing import make_key, read_key, sign

__all__ = ["make_key", "read_key", "sign"]
