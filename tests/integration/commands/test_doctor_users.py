"""`healer doctor` looks at its own parts, also where other installations run on the same machine."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from healer.bootstrap.user_checks import check_users
from healer.settings import load
from tests.support.processes import clean_environ

pytestmark = pytest.mark.heavy

#: A part as the check sees it: its title, and a connection to its database.
_PART = """
import sys
from setproctitle import setproctitle
from healer import bootstrap
from healer.settings import load
setproctitle("healer scraper")
db = bootstrap.engine(load(), name="healer scraper", pool_size=1)
with db.connect() as conn:
    conn.exec_driver_sql("SELECT 1")
    print("connected", flush=True)
    sys.stdin.read()
"""


def environ_of(db: sa.Engine) -> dict[str, str]:
    url = db.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return clean_environ(HEALER_DATABASE_URL=url)


@contextmanager
def scraper_of(db: sa.Engine) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", _PART],
        env=environ_of(db), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as part:  # fmt: skip
        assert part.stdout is not None and part.stdin is not None
        assert part.stdout.readline() == "connected\n"
        yield
        part.stdin.close()
        part.wait(30)


def test_parts_of_another_database_are_another_installation_s(
    fresh_database: sa.Engine, empty_database: sa.Engine
) -> None:
    def looks(db: sa.Engine) -> list[str]:
        return [str(look.text) for look in check_users(load(environ_of(db), which=lambda _: None))]

    with scraper_of(fresh_database):
        assert [text.partition(":")[0] for text in looks(fresh_database)] == ["scraper"]
        assert looks(empty_database) == []
    assert looks(fresh_database) == []
