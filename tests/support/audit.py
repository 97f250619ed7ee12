"""Records, keys and tampering for the audit's tests."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from healer.adapters.postgres.audit_rows import PostgresChain
from healer.adapters.postgres.tables import audit_chain, audit_checkpoints
from healer.adapters.signing import Ed25519Signer
from healer.audit import checkpoint_line, extend, genesis, sign_checkpoint
from healer.model import AuditRecord
from healer.model.run import ChainLink
from tests.support.forked import run
from tests.support.processes import clean_environ

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


def sign_again(engine: sa.Engine, key: Ed25519Signer, checkpoints: Path) -> None:
    """The chain of the records as they are now, and one signed head in the database and in the file."""
    with PostgresChain(engine).snapshot() as seen:
        records = [at.record for at in seen.links() if at.record]
    made = extend("pod1", 0, genesis("pod1"), records)
    head = sign_checkpoint(key, "pod1", made[-1].seq, made[-1].hash, datetime.now(UTC))
    with unguarded(engine) as conn:
        conn.execute(sa.delete(audit_checkpoints))
        for at in made:
            link = (audit_chain.c.cluster == "pod1", audit_chain.c.seq == at.seq)
            conn.execute(sa.update(audit_chain).where(*link).values(prev=at.prev, hash=at.hash))
        row = {name: getattr(head, name) for name in ("cluster", "seq", "at", "key")}
        row |= {name: bytes.fromhex(getattr(head, name)) for name in ("hash", "signature")}
        conn.execute(sa.insert(audit_checkpoints).values(row))
    checkpoints.write_bytes(checkpoint_line(head))


@contextmanager
def unguarded(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction of a superuser who has taken the audit's triggers away, and puts them back."""
    tables = ("audit_records", "audit_chain", "audit_checkpoints")
    with engine.begin() as conn:
        conn.execute(sa.text("SET LOCAL lock_timeout = '60s'"))
        for table in tables:
            conn.execute(sa.text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        yield conn
        for table in tables:
            conn.execute(sa.text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))
            conn.execute(sa.text(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_guard"))


def healer(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, with no setting but these."""
    return run([*map(str, words)], clean_environ(**environ))
