"""Fixtures that every test may ask for."""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Generator

import pytest
import structlog
from hypothesis import settings

pytest_plugins = ["tests.support.stack", "tests.support.written_rows"]

#: The caller of the tests may work with a healer, a Slurm or a database of their own, in a job, by SSH or
#: behind a proxy. What their environment says of those is no test's business: each test says what it needs.
_THEIRS = (
    *("HEALER_", "SLURM", "SBATCH_", "SQUEUE_", "SINFO_", "MUNGE_", "PG", "REDIS_", "CELERY_", "SSH_"),
    *("XDG_", "NOTIFY_SOCKET"),
)
for _name in list(os.environ):
    if _name.startswith(_THEIRS) or _name.lower().endswith("_proxy"):
        del os.environ[_name]
os.umask(0o022)
# The same for what lies at home; processes of pytest-xdist share that of the one that started them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["HOME"] = tempfile.mkdtemp(prefix="healer-test-home-")
    atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

# How long an example takes says how busy the machine is.
settings.register_profile("unhurried", parent=settings(), deadline=None)
settings.load_profile("unhurried")

# A traceback as it is in the log of a part: with the value of every local it takes 20 s for one error.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays until the end: a garbage collection that looked at it would find nothing. And
    one for every 700 objects, Python's default, takes a tenth of the time of a replay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(50_000)
