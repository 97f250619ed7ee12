"""The key of the tokens' digests: rows of before are keyed once, and another key is refused."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.tables import sessions, tokens
from healer.adapters.postgres.tokens import OtherTokenKey, PostgresTokens, adopt_key, check_key
from healer.adapters.token_key import TokenKeyUnreadable, token_key
from healer.model import Role, audit_record
from healer.ports.callers import NewToken
from tests.support.seals import seal_all

pytestmark = pytest.mark.heavy
NOW = datetime(2026, 11, 24, tzinfo=UTC)
OLD = hashlib.sha256(b"heal_1_old").digest()


def before(engine: sa.Engine) -> None:
    row = {"id": "1", "role": "viewer", "name": "ada", "created_at": NOW}
    with engine.begin() as conn:
        conn.execute(sa.insert(tokens).values(digest=OLD, **row))
        said = {"once": False, "role": "viewer", "name": "ada"}
        append(conn, audit_record("pod1", NOW, "test", "token.created", "token/1", **said))
        opened = {"token": "1", "created_at": NOW, "expires_at": NOW.replace(year=2027)}
        opened |= {"id": "s", "seen_at": NOW, "proven_at": NOW}
        conn.execute(sa.insert(sessions).values(digest=OLD, **opened))


def test_tokens_and_sessions_of_before_go_on_and_their_old_rows_are_worthless(
    fresh_database: sa.Engine,
) -> None:
    before(fresh_database)
    key = b"k" * 32
    book = PostgresTokens(fresh_database, "pod1", key)
    assert book.by_token(OLD, NOW) is None, "a row in the old form"
    for _ in range(2):
        with fresh_database.begin() as conn:
            adopt_key(conn, key, NOW)
        found, session = book.by_token(OLD, NOW), book.by_session(OLD, NOW)
        assert found is not None and session is not None and found.name == session.name == "ada"
    made = book.create(NewToken(role=Role.viewer, name="bob"), by="test", now=NOW)
    seal_all(fresh_database)
    digest = hashlib.sha256(made.encode()).digest()
    assert book.by_token(digest, NOW) is not None
    assert PostgresTokens(fresh_database, "pod1", b"x" * 32).by_token(digest, NOW) is None


def test_another_key_is_refused_and_changes_nothing(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as conn, pytest.raises(OtherTokenKey, match="no key yet"):
        check_key(conn, b"k" * 32)
    with fresh_database.begin() as conn:
        adopt_key(conn, b"k" * 32, NOW)
        check_key(conn, b"k" * 32)
    before(fresh_database)
    with fresh_database.begin() as conn, pytest.raises(OtherTokenKey, match="restore that key"):
        adopt_key(conn, b"x" * 32, NOW)
    with fresh_database.connect() as conn:
        assert bytes(conn.scalars(sa.select(tokens.c.digest)).one()) == OLD


def test_the_key_is_made_once_and_never_replaced(tmp_path: Path) -> None:
    file = tmp_path / "data" / "token-key"
    key = token_key(file)
    assert len(key) == 32 and token_key(file) == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["token-key"]
    for text in ("", "short", "ab" * 31):
        file.write_text(text)
        with pytest.raises(TokenKeyUnreadable):
            token_key(file)
        assert file.read_text() == text
