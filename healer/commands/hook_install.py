"""The plan of `healer hook install` and `uninstall` on this machine, and its execution.

slurm.conf names three small wrappers of `healer-hook`; each runs the site's own hook first, if there is one.
If the site names a folder (`/etc/slurm/prolog.d/*`), the wrapper is put into it and slurm.conf stays. Slurm
has one health check: the site's becomes a probe of healer's.

A prolog or epilog that slurm.conf names but a node lacks drains that node. So the wrappers exit with 0 if
`healer-hook` is missing, are installed first, and are never removed while Slurm may still name them.
"""

import contextlib
import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from healer.commands.slurm_conf import (
    ConfProblem,
    Found,
    changed,
    find,
    includes,
    is_glob,
    is_installed,
    restored,
    value_of,
)
from healer.text import Said, joined, say

HOOK = Path(__file__).parents[1] / "hooks" / "healer-hook"
HOOKS = {"Prolog": "prolog", "Epilog": "epilog", "HealthCheckProgram": "health-check"}
#: Seconds between two health checks of a node unless the site sets it; LBNL NHC recommends the same.
HEALTH_CHECK_EVERY_S = 300
#: Least timeout: healer's hook ends within 5 s, and the site's own runs before it.
LEAST_TIMEOUT_S = 10
#: Suffix of the backup of slurm.conf.
BACKUP = ".before-healer"
_MADE = "# Made by `healer hook install`; `healer hook uninstall` takes it away."
#: Names of the wrapper in a folder of the site; the first that its glob matches is used.
_NAMES = ("healer-hook", "healer-hook.sh", "99-healer-hook", "99-healer-hook.sh", "90healer-hook")

_CONF = """\
# What `healer-hook` and `healer-follow` need on a node (docs/nodes.md). KEY=VALUE; %n is the node's name.
HEALER_URL={url}
HEALER_TOKEN_FILE={token_file}
HEALER_HOOK_SPOOL=/var/spool/healer
# GPUs of this node: fewer are a failed check.
#HEALER_HOOK_GPUS=8
# File systems that must be writable.
#HEALER_HOOK_WRITABLE=/,/tmp
# Checks on which prolog and epilog fail although healer does not answer:
# gpu-lost, gpu-count, fs-readonly, fs-full, probe. None, unless the site wants it.
#HEALER_HOOK_FAIL_CLOSED=
"""


@dataclass(frozen=True)
class Change:
    """One file: its bytes before and after (None: not there) and its mode after."""

    path: Path
    before: bytes | None
    after: bytes | None
    mode: int = 0o644

    @property
    def what(self) -> str:
        if self.before is None:
            return "create"
        return "remove" if self.after is None else "change"


@dataclass(frozen=True)
class Plan:
    """Changes in their order: slurm.conf never names a missing file."""

    changes: list[Change] = field(default_factory=list)
    warnings: list[Said] = field(default_factory=list)


@dataclass(frozen=True)
class Hooked:
    """Changes of slurm.conf: new values of settings, settings added at its end; and the programs it needs."""

    replaced: list[tuple[Found, str]] = field(default_factory=list)
    added: dict[str, str] = field(default_factory=dict)
    programs: dict[Path, bytes] = field(default_factory=dict)


def installation(slurm_conf: Path, to: Path, conf: Path, *, url: str, token_file: str) -> Plan:
    """Returns the changes that are missing. Raises ConfProblem and OSError."""
    before = slurm_conf.read_bytes()
    text = _text(before)
    plan = Plan()
    _add(plan, to / "healer-hook", HOOK.read_bytes(), 0o755)
    if not conf.exists():
        _add(plan, conf, _CONF.format(url=url, token_file=token_file).encode(), 0o644)
        if not url:
            plan.warnings.append(say("commands.hook_no_url", file=str(conf)))
    hooked = _hooked(slurm_conf, text, to, conf)
    for path, data in hooked.programs.items():
        _add(plan, path, data, 0o755)
    if not is_installed(text):
        plan.warnings.append(say("commands.hook_nodes_first"))
        after = _bytes(changed(text, hooked.replaced, hooked.added))
        _add(plan, slurm_conf, after, stat.S_IMODE(slurm_conf.stat().st_mode))
    _warn(plan, text)
    return plan


def programs(slurm_conf: Path | None, to: Path, conf: Path) -> dict[Path, bytes]:
    """The wrappers that a node needs, by path. `slurm_conf` None: the site has no hooks of its own.

    Raises ConfProblem and OSError.
    """
    text = "" if slurm_conf is None else _text(slurm_conf.read_bytes())
    return _hooked(slurm_conf, text, to, conf).programs


def removal(slurm_conf: Path, to: Path) -> Plan:
    """Returns the removal of all but hook.conf and the wrappers in slurm.conf.

    These stay: slurmd runs them until it is reconfigured. Raises ConfProblem and OSError.
    """
    before = slurm_conf.read_bytes()
    text = _text(before)
    plan = Plan()
    if is_installed(text):
        mode = stat.S_IMODE(slurm_conf.stat().st_mode)
        text = restored(text)
        plan.changes.append(Change(slurm_conf, before, _bytes(text), mode))
    for where, content in _files(slurm_conf, text):
        for setting in find(content, *HOOKS):
            if setting.value.startswith(f"{to}/"):
                raise ConfProblem(say("commands.hook_elsewhere", setting=_words(setting), file=str(where)))
    placed = [_placed(setting.value) for setting in find(text, "Prolog", "Epilog") if is_glob(setting.value)]
    for path in (*(path for path in placed if path is not None), to / "healer-hook"):
        if path.is_file() and (path.parent == to or _MADE in path.read_text(errors="replace")):
            plan.changes.append(Change(path, path.read_bytes(), None))
    if left := [str(to / name) for name in HOOKS.values() if (to / name).is_file()]:
        plan.warnings.append(say("commands.hook_left", files=joined(left, "comma")))
    return plan


def carry_out(plan: Plan, to: Path) -> None:
    """Makes the changes. After an OSError, changes made so far stay; a second run completes them."""
    for change in plan.changes:
        if change.after is None:
            change.path.unlink(missing_ok=True)
        else:
            _write(change)
    if any(change.after is None for change in plan.changes):
        with contextlib.suppress(OSError):
            to.rmdir()  # if nothing else is in it


# --- one hook ---


def _hooked(slurm_conf: Path | None, text: str, to: Path, conf: Path) -> Hooked:
    """Changes of the site's slurm.conf, from its text without healer's changes."""
    text = restored(text) if is_installed(text) else text
    if slurm_conf is not None:
        _check_includes(slurm_conf, text)
    hooked = Hooked()
    for name, hook in HOOKS.items():
        program = to / hook
        found = [setting for setting in find(text, name) if setting.value]
        for setting in found:
            if not setting.value.startswith("/"):
                raise ConfProblem(say("commands.hook_no_path", setting=_words(setting)))
            if setting.value.endswith("\\"):
                raise ConfProblem(say("commands.hook_continued", setting=_words(setting)))
            if setting.value == str(program):
                raise ConfProblem(say("commands.hook_unmarked", setting=_words(setting)))
        # Of several lines an older Slurm uses the last, a newer one all: replacing the last one is right for
        # both.
        last = found[-1] if found else None
        if last is not None and is_glob(last.value):
            path = _place(last)
            hooked.programs[path] = _program(to, hook, conf, "")
            continue
        hooked.programs[program] = _program(to, hook, conf, last.value if last else "")
        if last is not None:
            hooked.replaced.append((last, str(program)))
        else:
            hooked.added[name] = str(program)
    every = value_of(text, "HealthCheckInterval") or "0"
    if not every.isdecimal():
        raise ConfProblem(say("commands.hook_interval", value=every))
    if not int(every):
        hooked.added["HealthCheckInterval"] = str(HEALTH_CHECK_EVERY_S)
    return hooked


def _words(setting: Found) -> str:
    return f"{setting.name}={setting.value}"


def _program(to: Path, hook: str, conf: Path, theirs: str) -> bytes:
    program, site = shlex.quote(str(to / "healer-hook")), shlex.quote(theirs)
    command = f"{program} {hook} --conf {shlex.quote(str(conf))}"
    rows = ["#!/bin/sh", _MADE]
    if theirs and hook == "health-check":
        rows.append(f"[ -x {program} ] || exec {site}")
        command += f" --probe {site}"
    else:
        if theirs:
            # As in Slurm, the first hook that fails ends the sequence.
            rows.append(f"{site} || exit $?")
        rows.append(f"[ -x {program} ] || exit 0")
    # healer-hook fails with 1 only; any other status means that it cannot run, not that the node is bad.
    rows.append(f"{command} || [ $? -ne 1 ]")
    return ("\n".join(rows) + "\n").encode()


def _place(found: Found) -> Path:
    path = _placed(found.value)
    if path is None:
        raise ConfProblem(say("commands.hook_glob", setting=_words(found)))
    return path


def _placed(glob: str) -> Path | None:
    """Path of the wrapper in the folder of a glob; None if no name matches."""
    folder, _, pattern = glob.rpartition("/")
    if is_glob(folder):
        return None
    return next((Path(folder, name) for name in _NAMES if fnmatchcase(name, pattern)), None)


# --- files ---


def _add(plan: Plan, path: Path, after: bytes, mode: int) -> None:
    before = path.read_bytes() if path.exists() else None
    if before != after or stat.S_IMODE(path.stat().st_mode) != mode:
        plan.changes.append(Change(path, before, after, mode))


def _check_includes(slurm_conf: Path, text: str) -> None:
    for other, content in _files(slurm_conf, text):
        if other != slurm_conf and (found := find(content, *HOOKS)):
            raise ConfProblem(say("commands.hook_included", name=found[0].name, file=str(other)))


def _files(path: Path, text: str) -> Iterator[tuple[Path, str]]:
    """Yields this file with the given text, and all files it includes."""
    files = {path: text}
    waiting = [path]
    while waiting:
        content = files[waiting.pop()]
        for other in (path.parent / name for name in includes(content)):
            if other not in files and other.is_file():
                files[other] = _text(other.read_bytes())
                waiting.append(other)
    yield from files.items()


def _warn(plan: Plan, text: str) -> None:
    for name in ("Prolog", "Epilog"):
        given = value_of(text, f"{name}Timeout") or value_of(text, "PrologEpilogTimeout")
        if given is None:
            plan.warnings.append(say("commands.hook_no_timeout", name=name))
        elif given.isdecimal() and 0 < int(given) < LEAST_TIMEOUT_S:
            plan.warnings.append(say("commands.hook_timeout", name=name, given=given, least=LEAST_TIMEOUT_S))


def _write(change: Change) -> None:
    """Replaces the file atomically, following links and keeping its owner; backs up the site's version."""
    path = change.path.resolve()
    assert change.after is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    status = path.stat() if path.exists() else None
    if change.before is not None and path.suffix == ".conf" and not is_installed(_text(change.before)):
        _write_file(path.with_name(path.name + BACKUP), change.before, change.mode, status)
    _write_file(path, change.after, change.mode, status)


def _write_file(path: Path, data: bytes, mode: int, like: os.stat_result | None) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch(mode=0o600, exist_ok=False)
        with temporary.open("wb") as file:
            file.write(data)
            if like is not None:
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def named(changes: Sequence[Change]) -> list[dict[str, str]]:
    return [{"path": str(change.path), "action": change.what} for change in changes]
