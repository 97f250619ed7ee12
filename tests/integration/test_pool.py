"""The connection pool replaces connections that the server closed, without a ping at each checkout."""

import sqlalchemy as sa

from healer.adapters.postgres.engine import make_engine, reading, writing

PID = sa.text("SELECT pg_backend_pid()")
ENDED = sa.text(
    "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pool here'"
)


def test_sessions_that_the_server_ended_are_all_replaced(fresh_database: sa.Engine) -> None:
    engine = make_engine(fresh_database.url.render_as_string(hide_password=False), name="pool here")
    with reading(engine) as first, reading(engine) as second:
        before = {first.scalar(PID), second.scalar(PID)}
    with writing(engine) as conn:
        assert conn.scalar(PID) in before, "a connection is used again"
    with fresh_database.begin() as conn:
        assert list(conn.scalars(ENDED)) == [True, True]
    with writing(engine) as first, reading(engine) as second:
        after = {first.scalar(PID), second.scalar(PID)}
    assert len(after) == 2 and not after & before
    engine.dispose()


def test_a_read_is_one_statement_for_the_server(fresh_database: sa.Engine) -> None:
    """Neither a transaction around it nor a question before it."""
    engine = make_engine(fresh_database.url.render_as_string(hide_password=False), name="pool here")
    with reading(engine) as conn:
        conn.scalar(PID)
    with reading(engine) as conn:
        state = sa.text("SELECT state, query FROM pg_stat_activity WHERE application_name = 'pool here'")
        mine = conn.scalar(sa.text("SELECT 41 + 1"))
        with fresh_database.connect() as other:
            found = other.execute(state).all()
    assert mine == 42 and found == [("idle", "SELECT 41 + 1")]
    with fresh_database.connect() as other:
        assert other.execute(state).all() == [("idle", "SELECT 41 + 1")], "nothing was said at the end"
    with reading(engine):
        pass
    with fresh_database.connect() as other:
        assert other.execute(state).all() == [("idle", "SELECT 41 + 1")], "nothing was asked at the begin"
    engine.dispose()
