"""A token counts once the audit has sealed the record of its making: by a worker, or here where none runs."""

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from healer.adapters.postgres.audit_rows import PostgresChain
from healer.adapters.postgres.tokens import PostgresTokens
from healer.adapters.signing import Ed25519Signer
from healer.audit import Sealer
from tests.support.wait import wait_until

_SIGNER = Ed25519Signer(Ed25519PrivateKey.generate())


def seal_all(engine: sa.Engine) -> None:
    """Seals what is committed, and signs nothing; another sealer may be at it."""
    chain = PostgresChain(engine)

    def is_done() -> bool:
        Sealer(chain, _SIGNER).seal_once()
        if chain._held is None:
            return False
        chain.unlock()
        return True

    wait_until(is_done, 20, what="no other sealer is at it")


def sealed(tokens: PostgresTokens, secret: str) -> str:
    """The secret, once the worker has sealed it."""
    wait_until(lambda: tokens.is_sealed(secret), 20, what="the worker seals the record of the token")
    return secret
