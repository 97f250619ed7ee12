"""The command line: light to start; errors in one sentence; exit status 2 for settings, 1 for failures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

pytestmark = pytest.mark.heavy

HEAVY = (
    *("sqlalchemy", "sklearn", "fastapi", "celery", "numpy", "alembic", "psycopg", "httpx", "pydantic"),
    "structlog",
)


def healer(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEALER_")}
    return subprocess.run(
        [sys.executable, "-m", "healer", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env=clean | environ,
        check=False,
    )


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['healer', '--help']\nfrom healer.commands.cli import main\n"
        "try:\n    main()\nfinally:\n    print('loaded', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    text, loaded = done.stdout.split("loaded ", 1)
    for command in ("up", "api", "detector", "worker", "scheduler", "db"):
        assert f"\n  {command} " in text
    assert [name for name in HEAVY if name in loaded.split()] == []


def test_a_wrong_setting_stops_the_start_with_one_sentence() -> None:
    done = healer("api", HEALER_GUARD_MAX_SHRE="0.05")
    assert done.returncode == 2
    assert done.stderr == (
        "healer: HEALER_GUARD_MAX_SHRE is not a setting of healer; did you mean HEALER_GUARD_MAX_SHARE?\n"
    )


@pytest.mark.parametrize(
    ("words", "setting", "value", "says"),
    [
        (
            "nodes",
            "HEALER_URL",
            "healer.example",
            "HEALER_URL: 'healer.example' is not an http or https address",
        ),
        (
            "nodes",
            "HEALER_TOKEN_FILE",
            "/nowhere/token",
            "HEALER_TOKEN_FILE: /nowhere/token cannot be read: No such file or directory",
        ),
        (
            "nodes",
            "HEALER_CA_FILE",
            "/nowhere/ca.crt",
            "HEALER_CA_FILE: /nowhere/ca.crt cannot be read: No such file or directory",
        ),
        ("pause --for 2h", "HEALER_MODE", "shadow", "--reason is required to pause, and to end a pause"),
        ("evidence", "HEALER_MODE", "shadow", "name an incident, or a run with --run"),
        ("reconcile --repair", "HEALER_MODE", "shadow", "a repair needs --reason"),
    ],
)
def test_wrong_use_ends_with_2_before_anything_is_asked(
    words: str, setting: str, value: str, says: str
) -> None:
    secret = {} if setting == "HEALER_TOKEN_FILE" else {"HEALER_TOKEN": "heal_x"}
    done = healer(*words.split(), **({setting: value} | secret))
    assert (done.returncode, done.stderr) == (2, f"healer: {says}\n")


def test_no_healer_to_talk_to_is_one_sentence(tmp_path: object) -> None:
    done = healer("db", "upgrade", HEALER_DATA_DIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"healer: no healer runs on {tmp_path}")
    assert done.stderr.count("\n") == 1


def test_a_database_that_is_not_there_is_one_sentence(tmp_path: object) -> None:
    done = healer("db", "upgrade", HEALER_DATABASE_URL=f"postgresql:///healer?host={tmp_path}")
    assert done.returncode == 1
    assert "the database does not answer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["token list", "account list", "audit verify", "restore --in-place"])
def test_a_database_with_other_tables_or_for_another_login_is_one_sentence(
    empty_database: sa.Engine, fresh_database: sa.Engine, tmp_path: Path, words: str
) -> None:
    part = fresh_database.url.set(username="healer_scraper")
    for url, says in (empty_database.url, "the database does not have this"), (part, "this login of the"):
        where = url.render_as_string(hide_password=False)
        done = healer(*words.split(), HEALER_DATABASE_URL=where, HEALER_DATA_DIR=str(tmp_path))
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.startswith(f"healer: {says}")
        assert "`healer db upgrade`" in done.stderr


def test_a_standby_which_only_reads_is_one_sentence(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as conn:
        name = fresh_database.url.database
        conn.exec_driver_sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    where = fresh_database.url.render_as_string(hide_password=False)
    done = healer("db", "upgrade", HEALER_DATABASE_URL=where)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "read-only transaction" in done.stderr


@pytest.mark.parametrize(
    "words", ["backup --without-keys {}", "audit export --out {}", "support-bundle --output {}"]
)
def test_a_pipe_or_link_in_place_of_the_output_file_stays(tmp_path: Path, words: str) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/stdout")
    for named in (pipe, link):
        done = healer(*words.format(named).split(), HEALER_DATA_DIR=str(tmp_path))
        assert done.returncode == 1
        assert done.stderr == (
            f"healer: {named} is not a regular file, and healer does not replace it: name another file\n"
        )
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_a_bundle_that_has_no_room_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    command = f"ulimit -f 4; {sys.executable} -m healer support-bundle --output {folder}/help.tgz"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False,
        env={
            **os.environ, "HEALER_DATA_DIR": str(tmp_path), "HEALER_SLURM_ADAPTERS": "sim",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )  # fmt: skip
    assert (done.returncode, "help.tgz cannot be written" in done.stderr) == (1, True)
    assert list(folder.iterdir()) == []


def test_an_output_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    output = tmp_path / "nowhere" / "help.tgz"
    done = healer(
        "support-bundle", "--output", str(output), HEALER_DATA_DIR=str(tmp_path), HEALER_SLURM_ADAPTERS="sim"
    )
    assert done.stderr == f"healer: {output} cannot be written: No such file or directory\n"


def test_an_unknown_command_is_wrong_use() -> None:
    assert healer("hael").returncode == 2


PRINTING = ("--help", "--version", "rules check", "rules schema")


def printed_to(output: str, words: str, pass_fds: tuple[int, ...] = (), **environ: str) -> tuple[int, str]:
    """(exit status, standard error) of a command whose standard output the shell opens so."""
    done = subprocess.run(
        ["bash", "-c", f'{output.format(command=f"{sys.executable} -m healer {words}")}'],
        capture_output=True, text=True, timeout=120, env={**os.environ, **environ}, check=False,
        pass_fds=pass_fds,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", PRINTING)
def test_a_full_disk_behind_the_output_is_one_sentence(words: str, unbuffered: str) -> None:
    assert printed_to("{command} >/dev/full", words, PYTHONUNBUFFERED=unbuffered, LANG="C") == (
        1, "healer: the output cannot be written: No space left on device\n",
    )  # fmt: skip


def test_a_full_disk_behind_the_errors_too_is_no_success() -> None:
    assert printed_to("{command} >/dev/full 2>&1", "rules check") == (1, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", PRINTING)
def test_a_reader_that_has_gone_hears_nothing(words: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    unread = f"{{command}} >&{writer}"
    assert printed_to(unread, words, pass_fds=(writer,), PYTHONUNBUFFERED=unbuffered) == (1, "")
    os.close(writer)


@pytest.mark.parametrize("words", PRINTING)
def test_a_closed_output_is_no_failure(words: str) -> None:
    assert printed_to("{command} >&-", words) == (0, "")
