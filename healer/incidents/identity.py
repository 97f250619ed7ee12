"""An incident's id: a hash, so that a replay of the same signals gives the same incident."""

from hashlib import sha256

import msgspec

from healer.model import Component


def incident_id(cluster: str, rule: str, root: Component, opening: str) -> str:
    """32 hex characters over cluster, rule, root and the digest of the opening evidence."""
    told = msgspec.json.encode([cluster, rule, root, opening], order="sorted")
    return sha256(told).hexdigest()[:32]
