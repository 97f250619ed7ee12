"""Prometheus' file_sd: which files a form names, and what stands in one.

Read as Prometheus 2.42 reads it (a test asks one), except that what is wrong about a group costs that group
alone: there it costs the file. An entry without targets may be half of one, and costs the file here too.
"""

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import msgspec

from healer.rulebook.source import Problem, Source, Words

#: Files of one form.
FILES_MAX = 1000
#: Labels that say how to fetch, and not whose it is.
_PATH, _SCHEME, _PARAMETER = "__metrics_path__", "__scheme__", "__param_"
_SCHEMES = ("http", "https")


class Group(msgspec.Struct, frozen=True):
    """Addresses with the same labels. `where` names the file and the entry, to say what is wrong."""

    targets: tuple[str, ...]
    labels: dict[str, str] = {}
    where: str = ""


class Unreadable(ValueError):
    """Nothing of the file can be told. The text says why, and names the file."""


class WrongGroup(ValueError):
    """The labels of a group are none, or say no address that can be asked. The text says why."""


class _Whole(msgspec.Struct, frozen=True):
    """What an entry has to say to be no half one."""

    targets: tuple[str, ...] | None


class _Written(_Whole, frozen=True):
    """A group as it stands in a file."""

    labels: dict[str, Any] | None = None


class _Json(_Written, frozen=True, forbid_unknown_fields=True):
    """`Source.convert` tells the unknown fields of YAML."""


class _Text(Source):
    """YAML whose scalars stay as they are written: `rack: 010` is "010"."""

    loader: ClassVar[type] = Words


def files_of(form: str) -> list[str]:
    """The files that a form names, in order. Only the file's name is a pattern: what lies in a folder below
    is another form's."""
    folder, name = Path(form).parent, Path(form).name
    if not any(one in name for one in "*?["):
        return [form]
    try:
        found = sorted(one for one in os.listdir(folder) if fnmatchcase(one, name))  # noqa: PTH208 - names alone
    except OSError:
        return []
    return [str(folder / one) for one in found[:FILES_MAX]]


def read_groups(path: Path) -> tuple[list[Group], list[str]]:
    """(the groups, what is wrong with others). Raises OSError, and Unreadable where no group is right, or
    where the file seems to be half of one."""
    groups, wrong = _of_json(path) if path.suffix.lower() == ".json" else _of_yaml(path)
    if wrong and not groups:
        raise Unreadable(wrong[0])
    return groups, wrong


def how(labels: dict[str, str], scheme: str, path: str) -> tuple[str, str, dict[str, str]]:
    """(scheme, path with its query, the other labels) of a target whose job has this scheme and path.

    An empty label is none. The path begins with /, or nothing would part it from the host. Raises WrongGroup.
    """
    scheme, path = labels.get(_SCHEME) or scheme, labels.get(_PATH) or path
    _check_scheme(scheme)
    if not path.startswith("/"):
        path = f"/{path}"
    query = {
        name.removeprefix(_PARAMETER): value for name, value in labels.items() if name.startswith(_PARAMETER)
    }
    if query:
        path += ("&" if "?" in path else "?") + urlencode(query)
    others = {
        name: value
        for name, value in labels.items()
        if name not in (_SCHEME, _PATH) and not name.startswith(_PARAMETER)
    }
    return scheme, path, others


def _of_yaml(path: Path) -> tuple[list[Group], list[str]]:
    problems: list[Problem] = []
    source = _Text(path, str(path), problems)
    items = source.items("groups of targets")
    if problems:
        raise Unreadable(str(problems[0]))
    if not source.raw.strip():
        raise Unreadable(f"{path} is empty; where there are no targets it has to be []")
    _check_whole(path, items)
    written = [source.convert((number,), item, _Written) for number, item in enumerate(items)]
    groups, wrong = _groups(path, written)
    if items and _is_cut(source.raw, items[-1], groups[-1]):
        raise Unreadable(f"{_where(path, len(items) - 1)}: the file ends within it")
    return _right(groups), [*map(str, problems), *wrong]


def _of_json(path: Path) -> tuple[list[Group], list[str]]:
    try:
        items = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"{path}: {error}") from None
    if not isinstance(items, list):
        raise Unreadable(f"{path}: expected a list of groups of targets")
    _check_whole(path, items)
    written: list[_Written | None] = []
    problems: list[str] = []
    for number, item in enumerate(items):
        try:
            written.append(msgspec.convert(item, _Json))
        except msgspec.ValidationError as error:
            written.append(None)
            problems.append(f"{_where(path, number)}: {error}")
    groups, wrong = _groups(path, written)
    return _right(groups), problems + wrong


def _check_whole(path: Path, items: list[Any]) -> None:
    for number, item in enumerate(items):
        try:
            msgspec.convert(item, _Whole)
        except msgspec.ValidationError as error:
            raise Unreadable(f"{_where(path, number)}: {error}") from None


def _is_cut(raw: bytes, item: dict[str, Any], group: Group | None) -> bool:
    """Whether a file of YAML ends within its last entry, as half a file may be YAML yet: after `targets:`, or
    within a word that makes the entry wrong."""
    if list(item)[-1] == "targets" and item["targets"] is None:
        return True
    if group is None:
        return not raw.endswith((b"\n", b"]", b"}", b"'", b'"'))
    last = group.targets[-1] if group.targets else ""
    return bool(last) and ":" not in last and raw.endswith(last.encode())


def _groups(path: Path, written: list[_Written | None]) -> tuple[list[Group | None], list[str]]:
    """None for each that is wrong."""
    groups: list[Group | None] = []
    wrong: list[str] = []
    for number, one in enumerate(written):
        group, where = None, _where(path, number)
        try:
            if one is not None:  # else it was told
                group = Group(one.targets or (), _labels(one.labels or {}), where)
        except WrongGroup as error:
            wrong.append(f"{where}: {error}")
        groups.append(group)
    return groups, wrong


def _right(groups: list[Group | None]) -> list[Group]:
    return [one for one in groups if one is not None]


def _where(path: Path, number: int) -> str:
    return f"{path}, entry {number + 1}"


def _labels(written: dict[str, Any]) -> dict[str, str]:
    """A scalar is text, and null is no label."""
    labels: dict[str, str] = {}
    for name, value in written.items():
        if not isinstance(value, str | bool | int | float | None):
            raise WrongGroup(f"labels.{name[:100]}: has to be text")
        if value is not None:
            labels[name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    _check_scheme(labels.get(_SCHEME) or _SCHEMES[0])
    return labels


def _check_scheme(scheme: str) -> None:
    if scheme not in _SCHEMES:
        raise WrongGroup(f"{_SCHEME}: {scheme[:100]!r} is neither http nor https")
