"""`healer up`: the whole product in one process tree.

It starts lock, guardian, PostgreSQL, Redis, migrations and healer's parts, and stops them in reverse order.
One thread waits for signals and restarts dead processes.
"""

import errno
import gc
import json
import multiprocessing
import os
import select
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from setproctitle import setproctitle

from healer.adapters.postgres.roles import BROKER, login_url
from healer.adapters.signing import CHECKPOINT_FILE, KEY_FILE, PUBLIC_FILE, load_signer
from healer.adapters.token_key import KEY_FILE as TOKEN_KEY_FILE
from healer.adapters.token_key import TokenKeyUnreadable, token_key
from healer.embedded import running
from healer.embedded.descent import as_user, code_folders, descend
from healer.embedded.executor_environ import environ_of
from healer.embedded.guardian import Guardian
from healer.embedded.postgres import LOGINS, Postgres, Say, forget_others
from healer.embedded.redis import Redis, find_binary
from healer.embedded.running import Running
from healer.embedded.user import (
    EmbeddedError,
    ServerUser,
    Users,
    make_data_dir,
    name_of,
    refused,
    system_users,
    usable,
)
from healer.model.shown import shown
from healer.rulebook.signal_rules import wants_scraper
from healer.settings import SIM_FOLDER, Listen, Settings, SettingsError, own_url, rules_folder, site_url
from healer.text import NO_WORDS, Said, joined, quoted, said_by, say

#: The parts of each cluster, besides the API. The scraper runs only if there are targets.
PER_CLUSTER = ("detector", "scheduler", "worker", "scraper")
PARTS_STOP_S = 5.0
TICK_S = 0.2
ROTATE_S = 60.0
SLOW_START_S = 20.0
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
#: A child that ran this long is restarted at once; one that dies sooner waits longer each time.
STEADY_S = 10.0
LOG_LIMIT_BYTES = 20_000_000
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)

#: Requests to our own address bypass the environment's proxy. They carry no secret, and ask for an address
#: that its certificate need not name.
_DIRECT = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=running.unchecked_tls())
)


def _always() -> bool:
    return True


@dataclass(frozen=True)
class Part:
    """A process of the tree other than the servers; `run` returns after SIGTERM."""

    name: str
    run: Callable[[], None]
    #: Its role in the embedded database, if it has any business there.
    role: str | None
    #: A part of one of several clusters: its wrong settings must not stop the start of the others.
    alone: bool = False
    #: Whether to start it now; called until it runs.
    wanted: Callable[[], bool] = _always
    #: Whether it runs as the worker's user.
    by_worker: bool = False


def healer_parts(settings: Settings, command: Callable[[Sequence[str]], None]) -> list[Part]:
    """The API first; with several clusters `detector-pod1`, `scheduler-pod1` and so on for each. `command`
    executes `healer` with these arguments."""
    wanted = {"scraper": wants_scraper(rules_folder(settings) / "scrape.yaml")}

    def part(name: str, cluster: str | None) -> Part:
        run_if, role = wanted.get(name, _always), f"healer_{name}"
        if cluster is None:
            return Part(name, partial(command, [name]), role, wanted=run_if, by_worker=name == "worker")
        run = partial(command, [name, "--cluster", cluster])
        return Part(f"{name}-{cluster}", run, role, alone=True, wanted=run_if, by_worker=name == "worker")

    parts = [part(name, cluster) for cluster in settings.clusters or [None] for name in PER_CLUSTER]
    return [part("api", None), *parts]


def _failed_checks(answer: bytes) -> str:
    """The failed checks in an answer of /readyz."""
    try:
        checks = json.loads(answer)["checks"]
        failed = [f"{name}: {check['text']}" for name, check in sorted(checks.items()) if not check["ok"]]
    except (ValueError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")
    return "; ".join(failed)


def _refuses(url: str) -> str:
    """Why nothing listens there; empty if something does."""
    at = urlsplit(url)
    try:
        socket.create_connection((at.hostname or "", at.port or 0), timeout=2).close()
    except OSError as error:
        return str(error)
    return ""


def _ask_ready(url: str) -> str:
    """`ready`, `unready` or `away`, and the failed checks or the error."""
    try:
        with _DIRECT.open(f"{url}/readyz", timeout=2) as response:
            return f"ready {_failed_checks(response.read(65536))}"
    except urllib.error.HTTPError as error:
        return f"unready {_failed_checks(error.read(65536))}"
    except OSError as error:
        return f"away {error}"


#: The cache of the parts that root started: a system user's home takes nothing.
CACHE = "cache"
#: Folders of the data directory and who writes them: the worker's, and those of the others.
_OF_WORKER, _OF_SERVICE = (
    ("commands", "worker-rules", "witnesses"),
    ("spool", "rules", "recordings", "rehearsals", CACHE),
)
#: What the worker writes when it seals. They are its own: neither the API nor the database's user signs.
_SEALS = (PUBLIC_FILE, CHECKPOINT_FILE, KEY_FILE)


def prepare_state(data_dir: Path, users: Users) -> None:
    """Gives each user the folders that its parts write, and takes over what an earlier version wrote as
    another user."""
    for name in _OF_SERVICE:
        users.service.folder(data_dir / name)
    for name in _OF_WORKER:
        users.worker.folder(data_dir / name)
    users.worker.meeting_folder(data_dir / SIM_FOLDER)
    token_key(data_dir / TOKEN_KEY_FILE)
    users.service.chown(data_dir / TOKEN_KEY_FILE)
    load_signer(data_dir)
    (data_dir / CHECKPOINT_FILE).touch(mode=0o640)
    for name in _SEALS:
        users.worker.chown(data_dir / name)
    if users.worker.drop and users.worker.shared is not None:
        os.chown(data_dir / CHECKPOINT_FILE, users.worker.uid, users.worker.shared)  # the API verifies


def check_port(listen: Listen, user: ServerUser) -> None:
    """Raises EmbeddedError if this user, who will, cannot listen there."""
    number, _, words = as_user(user, partial(_trial, listen)).partition(" ")
    if number:
        why = quoted(words) or say("embedded.not_address")
        if number in _NO_RIGHT:
            why = say("embedded.port_below_1024", why=why)
        raise EmbeddedError(say("embedded.cannot_listen_choose_another", listen=str(listen), why=why))


_NO_RIGHT = (str(errno.EACCES), str(errno.EPERM))


def _trial(listen: Listen) -> str:
    """The number of the error and the system's words; empty if it can listen."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((listen.host, listen.port))
    except OSError as error:
        return f"{error.errno} {error.strerror}"
    except UnicodeError:  # not a host name
        return str(errno.EDESTADDRREQ)
    return ""


class Ended(NamedTuple):
    """`status`: below 0, the signal that ended it. `line`: the last one of its log."""

    status: int
    line: Said

    @property
    def how(self) -> Said:
        if self.status < 0:
            return say("embedded.by_signal", number=-self.status)
        return say("embedded.with_status", status=self.status, line=self.line)


class Child:
    """A part of the tree that is restarted when it dies. `name` is also the name of its log file.

    It is forked without a new interpreter: imports, which are most of a start, and their memory are shared.
    """

    def __init__(self, name: str, run: Callable[[], None], log_folder: Path) -> None:
        self.name = name
        self.log = log_folder / f"{name}.log"
        self.process: ForkProcess | None = None
        self._run = run
        self._delay_s = FIRST_DELAY_S
        self._born = self._due = 0.0

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def start(
        self,
        environ: Mapping[str, str],
        *,
        group: int,
        not_its: Sequence[int],
        descend: Callable[[], None] = lambda: None,
    ) -> None:
        """`group`: the process group that it joins. `not_its`: the parent's descriptors that it closes.
        `descend` makes it its own user."""
        process = multiprocessing.get_context("fork").Process(
            target=self._become, args=(environ, group, not_its, descend), name=self.name
        )
        ours = _descriptors()
        # Until the child has its own handlers, a signal would only reach its copy of ours.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            process.start()
        except OSError:
            # multiprocessing leaks the pipes of a failed fork.
            for descriptor in _descriptors() - ours:
                os.close(int(descriptor.name))
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.process = process
        self._born = time.monotonic()

    def _become(
        self, environ: Mapping[str, str], group: int, not_its: Sequence[int], descend: Callable[[], None]
    ) -> None:
        """Runs in the child: drops the state of the parent, then runs the part."""
        setproctitle(f"healer {self.name}")
        os.setpgid(0, group)
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` asked
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        for descriptor in not_its:
            os.close(descriptor)
        with Path(os.devnull).open("rb") as nothing, self.log.open("ab") as log:
            # A background process that reads from the terminal would stop the whole group.
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        os.environ.clear()
        os.environ.update(environ_of(self.name, environ))
        try:
            descend()
        except EmbeddedError as error:
            print(f"healer: {shown(str(error))}", file=sys.stderr)
            sys.exit(2)
        self._run()

    def ended(self) -> "Ended | None":
        """How it ended since the last call; None: it has not."""
        if self.process is None or (status := self.process.exitcode) is None:
            return None
        self.process = None
        if time.monotonic() - self._born > STEADY_S:
            self._delay_s = FIRST_DELAY_S
        self.later()
        return Ended(status, NO_WORDS if status < 0 else last_line(self.log))

    def later(self) -> None:
        """Delays the restart, longer each time."""
        self._due = time.monotonic() + self._delay_s
        self._delay_s = min(self._delay_s * 2, LONGEST_DELAY_S)

    def due(self) -> bool:
        """Whether it must be started now."""
        return self.process is None and time.monotonic() >= self._due

    def send(self, number: signal.Signals) -> None:
        if self.pid is not None and self.process is not None and self.process.exitcode is None:
            os.kill(self.pid, number)

    def wait_until(self, deadline: float) -> None:
        """Waits for its end, and kills it at the deadline."""
        if self.process is None:
            return
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process = None


def open_streams() -> None:
    """Opens streams that were closed by the caller (`healer up >&-`) on /dev/null. Children need them, to
    redirect them to their log."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - it stays open


def _descriptors() -> set[Path]:
    """The open descriptors; empty without /proc."""
    folder = Path("/proc/self/fd")
    names = list(folder.iterdir()) if folder.is_dir() else []
    return {path for path in names if path.is_symlink()}


def last_line(log: Path) -> Said:
    """The last non-blank line of a log, cut to 300 characters."""
    lines = list[str]()
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4000))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return quoted(lines[-1].strip()[:300]) if lines else say("embedded.nothing_in_log", log=str(log))


def rotate(log_folder: Path) -> None:
    """Copies large logs to `.log.1` and truncates them, which is safe because writers append."""
    for log in log_folder.glob("*.log"):
        with suppress(OSError):  # a full disk must not end what runs: it is tried again
            if log.stat().st_size > LOG_LIMIT_BYTES:
                older = log.with_suffix(".log.1")
                older.write_bytes(log.read_bytes())
                older.chmod(0o600)
                os.truncate(log, 0)


@dataclass(frozen=True)
class Calls:
    """Callbacks of the tree. `load` imports the parts' modules before the fork and must start no thread.
    `on_ready` is called once when /readyz answers 200, and `on_tick` a few times a second; neither may
    block."""

    say: Say = print
    load: Callable[[], None] = lambda: None
    on_tick: Callable[[], None] = lambda: None
    on_ready: Callable[[Running], None] = lambda _: None


class Tree:
    """The process tree. `run` blocks until SIGINT, SIGTERM or SIGHUP, and leaves nothing running."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], parts: Sequence[Part], calls: Calls
    ) -> None:
        self.settings, self._calls = settings, calls
        self._environ = dict(environ)
        self._ready, self._is_noted = False, True
        self._ends: dict[str, str] = {}
        self._stops = 0
        open_streams()
        self._wake, self._woken = os.pipe()
        self.data_dir: Path = make_data_dir(settings.data_dir)
        self._logs = self.data_dir / "log"
        with usable(self.data_dir):
            self._logs.mkdir(mode=0o700, exist_ok=True)
        self._children = [Child(part.name, part.run, self._logs) for part in parts]
        self._alone = {part.name for part in parts if part.alone}
        self._wanted = {part.name: part.wanted for part in parts}
        self._parts = {part.name: part for part in parts}
        self.postgres: Postgres | None = None
        self.redis: Redis | None = None

    def say(self, text: str) -> None:
        """Prints; a closed terminal or pipe is ignored."""
        with suppress(OSError, ValueError):
            self._calls.say(text)

    @property
    def url(self) -> str:
        """Where this machine reaches the API and the console."""
        return own_url(self.settings)

    def run(self) -> None:
        """Raises EmbeddedError or SettingsError if it cannot start, after stopping everything."""
        self._listen_for_signals()
        # The lock first: the API of a killed healer holds the port until its guardian has ended it.
        with usable(self.data_dir):
            self._held = running.lock(self.data_dir)
        try:
            self._users = system_users()
            check_port(self.settings.listen, self._users.service)
            with usable(self.data_dir):
                prepare_state(self.data_dir, self._users)
                self._guardian = Guardian(self._logs / "guardian.log", hold=(self._held,))
            self._run()
        finally:
            os.close(self._held)

    def _run(self) -> None:
        try:
            with usable(self.data_dir):
                self._start_servers()
            self._migrate()
            self._calls.load()
            # Excludes current objects from collections, which would copy their memory into each child.
            gc.collect()
            gc.freeze()
            with usable(self.data_dir):
                self._note()
            self._started = time.monotonic()
            self._last_slow = ""
            self._rotated = time.monotonic()
            while not self._stops:
                self._tick()
        finally:
            self._stop()
            self._guardian.release()
            running.forget(self.data_dir)

    # --- starting ---------------------------------------------------------------------------------------

    def _listen_for_signals(self) -> None:
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` ignores SIGHUP.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._asked_to_stop)

    def _asked_to_stop(self, *_: object) -> None:
        self._stops += 1
        if self._stops == 1:
            return
        for child in self._children:
            child.send(signal.SIGKILL)

    def _start_servers(self) -> None:
        popen = self._guardian.popen
        if self.settings.database_url is None:
            forget_others(self._environ)
            self.postgres = Postgres(
                self.data_dir,
                announce=self.say,
                popen=popen,
                logins=self._logins(),
                clusters=len(self.settings.each()),
            )
            self.postgres.start()
            self._register_servers()
        if self.settings.redis_url is None:
            binary = find_binary()
            if binary is not None:
                self.redis = Redis(self.data_dir, binary, popen=popen)
                self.redis.start()
                self._register_servers()
            else:
                self.say(say("embedded.no_redis_found_tasks"))
        self._environ |= {"HEALER_DATA_DIR": str(self.data_dir), "HEALER_LISTEN": str(self.settings.listen)}
        if self._users.service.drop:
            self._environ["XDG_CACHE_HOME"] = str(self.data_dir / CACHE)
        # Only for our servers: the site's URL may be in a file, and both together are an error.
        if self.settings.redis_url is None:
            self._environ["HEALER_REDIS_URL"] = self.broker_url

    @property
    def database_url(self) -> str:
        return self.postgres.url if self.postgres else self.settings.database_url or ""

    @property
    def broker_url(self) -> str:
        if self.settings.redis_url:
            return self.settings.redis_url
        if self.redis is not None:
            return self.redis.url
        return "sqla+" + (login_url(self.database_url, BROKER) if self.postgres else self.database_url)

    def _environ_of(self, part: str) -> dict[str, str]:
        role = self._parts[part].role
        if self.postgres is None or role is None:
            return self._environ
        return self._environ | {"HEALER_DATABASE_URL": login_url(self.database_url, role)}

    def _logins(self) -> dict[str, list[str]]:
        """Users of this machine -> the roles of the parts that run as them; who runs this may be each."""
        found: dict[str, set[str]] = {name_of(os.geteuid()): {*LOGINS}}
        for part in self._parts.values():
            if part.role is not None:
                found.setdefault(self._user_of(part.name).name, set()).update((part.role, BROKER))
        return {user: sorted(roles) for user, roles in found.items()}

    def _user_of(self, part: str) -> ServerUser:
        return self._users.worker if self._parts[part].by_worker else self._users.service

    def _descend(self, part: str) -> None:
        config = [Path(file)] if (file := self._environ.get("HEALER_CONFIG")) else []
        paths = [*code_folders(), rules_folder(self.settings), self.data_dir, *config]
        descend(self._user_of(part), paths)

    def _register_servers(self) -> None:
        for role, pid in self._server_pids().items():
            self._guardian.add(role, pid)

    def _server_pids(self) -> dict[str, int]:
        servers = {"postgres": self.postgres, "redis": self.redis}
        return {role: server.process.pid for role, server in servers.items() if server and server.process}

    def _migrate(self) -> None:
        import sqlalchemy as sa
        from sqlalchemy.exc import OperationalError

        from healer.adapters.postgres import migrate
        from healer.adapters.postgres.tokens import OtherTokenKey, adopt_key

        engine = sa.create_engine(self.database_url)
        try:
            before, after = migrate.upgrade(engine, refused=self._say_roles)
            key = token_key(self.settings.token_key_file or self.data_dir / TOKEN_KEY_FILE)
            with engine.begin() as conn:
                adopt_key(conn, key, datetime.now(UTC))
        except OperationalError as error:
            text = say("embedded.database_silent", why=" ".join(str(error.orig).split()))
            raise (refused(self.data_dir, text) if self.postgres else EmbeddedError(text)) from None
        except (migrate.MigrationError, OtherTokenKey, TokenKeyUnreadable) as error:
            raise EmbeddedError(said_by(error)) from None
        finally:
            engine.dispose()
        if not before:
            self.say(say("embedded.database_created", after=after))
        elif before != after:
            self.say(say("embedded.database_upgraded_from", before=before, after=after))

    def _say_roles(self, statements: Sequence[str]) -> None:
        names = [words[2] for words in map(str.split, statements) if words[1] == "ROLE"]
        self.say(say("embedded.database_lacks_roles_s", names=joined(names, "comma")))

    def _note(self) -> None:
        running.note(
            self.data_dir,
            Running(
                pid=os.getpid(),
                url=self.url,
                database_url=self.database_url,
                broker_url=self.broker_url,
                parts={child.name: child.pid for child in self._children if child.pid},
                servers=self._server_pids(),
            ),
        )

    # --- running ----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        changed = self._restart_servers()
        for child in self._children:
            ended = child.ended()
            if ended is not None and not self._stops:
                self._check_settings(child, ended)
                self._report_end(child, ended.how)
            if child.due() and not self._stops and self._wanted[child.name]():
                ours = (self._wake, self._woken, self._held, self._guardian.pipe)
                changed = self._start(child, ours) or changed
        with suppress(OSError):  # no process left: the next tick tries again
            if self._guardian.revive():
                self.say(say("embedded.guardian_ended_started_another"))
        self._is_noted = self._is_noted and not changed
        if not self._is_noted:
            with suppress(OSError):  # a full disk must not end what runs: the next tick tries again
                self._note()
                self._is_noted = True
        if not self._ready:
            self._check_ready()
        with suppress(OSError):  # it prints
            self._calls.on_tick()
        if time.monotonic() - self._rotated > ROTATE_S:
            self._rotated = time.monotonic()
            rotate(self._logs)
        self._rest()

    def _start(self, child: Child, not_its: Sequence[int]) -> bool:
        try:
            child.start(
                self._environ_of(child.name),
                group=self._guardian.group,
                not_its=not_its,
                descend=partial(self._descend, child.name),
            )
        except OSError as error:  # no process or memory left: the others continue
            child.later()
            self._report_end(child, say("embedded.not_startable", why=error.strerror))
            return False
        return True

    def _check_settings(self, child: Child, ended: Ended) -> None:
        """Raises SettingsError for wrong settings at the start."""
        if ended.status == 2 and child.name not in self._alone and not self._ready:
            raise SettingsError(ended.line.removeprefix("healer: "))

    def _report_end(self, child: Child, how: Said) -> None:
        """Prints it unless it is the same as before."""
        if self._ends.get(child.name) != how:
            self._ends[child.name] = how
            self.say(say("embedded.ended_starting_again", name=child.name, how=how))

    def _restart_servers(self) -> bool:
        changed = False
        for server in (self.postgres, self.redis):
            if server is None or (server.process is not None and server.process.poll() is None):
                continue
            self.say(say("embedded.server_restarted", server=type(server).__name__))
            try:
                server.start()
            except EmbeddedError as error:
                self.say(say("embedded.trying_again", why=said_by(error)))
                self._rest()
            except OSError as error:  # a lack of memory, perhaps
                self.say(say("embedded.cannot_started_trying_again", why=error.strerror))
                self._rest()
            self._register_servers()
            changed = True
        return changed

    def _rest(self) -> None:
        if select.select([self._wake], [], [], TICK_S)[0]:
            os.read(self._wake, 4096)

    def _check_ready(self) -> None:
        # What answers is read by a process of its own, which is not made for nothing while the API starts.
        if why := _refuses(self.url):
            answer = f"away {why}"
        else:
            answer = as_user(self._users.service, partial(_ask_ready, self.url), code_folders())
        how, _, text = answer.partition(" ")
        if how != "ready":
            self._report_slow(
                say("embedded.not_ready", url=self.url, why=text)
                if how == "unready"
                else say("embedded.still_starting", why=text, logs=str(self._logs))
            )
            return
        self._ready = True
        self.say(f"healer is ready: {site_url(self.settings)}")
        if text:
            self.say(say("embedded.well_yet", text=text))
        with suppress(OSError):
            self._calls.on_ready(running.find(self.data_dir))

    def _report_slow(self, text: str) -> None:
        if time.monotonic() - self._started > SLOW_START_S and text != self._last_slow:
            self._last_slow = text
            self.say(text)

    # --- stopping ---------------------------------------------------------------------------------------

    def _stop(self) -> None:
        if self._stops:
            self.say(say("embedded.stopping"))
        deadline = time.monotonic() + PARTS_STOP_S
        for child in self._children:
            child.send(signal.SIGTERM)
        for child in self._children:
            child.wait_until(deadline)
        if self.redis is not None:
            self.redis.stop()
        if self.postgres is not None:
            self.postgres.stop()
        if self._stops:
            self.say(say("embedded.stopped_nothing_left_running"))
