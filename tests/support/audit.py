"""Records, keys and tampering for the audit's tests."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from healer.adapters.signing import Ed25519Signer
from healer.audit import extend, genesis
from healer.model import AuditRecord
from healer.model.run import ChainLink

START = datetime(2026, 11, 20, 3, 0, 0, 250_000, tzinfo=UTC)


def record(number: int, *, cluster: str = "pod1", stored: bool = True) -> AuditRecord:
    return AuditRecord(
        id=number if stored else None,
        cluster=cluster,
        at=START + timedelta(seconds=number),
        actor="healer",
        verb="node.drained",
        subject=f"node/gpu{number:04d}",
        data={"reason": f"healer:gpu-lost inc:{number:08x} GPU lost", "gpus": [0, 3], "share": 0.05},
    )


def chain_of(count: int, cluster: str = "pod1") -> list[ChainLink]:
    return extend(
        cluster, 0, genesis(cluster), [record(number, cluster=cluster) for number in range(1, count + 1)]
    )


def signer() -> Ed25519Signer:
    return Ed25519Signer(Ed25519PrivateKey.generate())


@contextmanager
def unguarded(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction of a superuser who has taken the audit's triggers away, and puts them back."""
    tables = ("audit_records", "audit_chain", "audit_checkpoints")
    with engine.begin() as conn:
        for table in tables:
            conn.execute(sa.text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        yield conn
        for table in tables:
            conn.execute(sa.text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))
            conn.execute(sa.text(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_guard"))


def healer(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, with no setting but these."""
    return subprocess.run(
        [sys.executable, "-m", "healer", *map(str, words)],
        env={"PATH": os.environ["PATH"], **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
