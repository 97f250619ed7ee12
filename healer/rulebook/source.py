"""YAML files with line numbers: reads them, converts their entries to structs, and reports problems by
line."""

import difflib
import functools
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml

from healer.model.vocabulary import did_you_mean
from healer.text import Said, reworded, say
from healer.text.decoder_errors import decoder_error

T = TypeVar("T")


class Problem(msgspec.Struct, frozen=True):
    """One thing wrong in a file of the rules. `line` counts from 1; `hint` may be empty."""

    file: str
    line: int
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" + (f" ({self.hint})" if self.hint else "")

    def sentence(self, folder: Path | None = None) -> Said:
        """The same line, in the language of its reader."""
        place = f"{folder / self.file if folder is not None else self.file}:{self.line}"
        if self.hint:
            return say("rulebook.problem_hint", place=place, text=self.text, hint=self.hint)
        return say("rulebook.problem", place=place, text=self.text)


Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Yaml(Loader):
    """YAML 1.2's plain values: `off`, `yes`, `no` and dates are words, as a person would expect them. A key
    is a name, also one of digits alone: a partition of Slurm may be called 1."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep=deep)


# Whole numbers are decimal or hex: YAML 1.1 would read 010 as eight and 1:30 as ninety, and Slurm's `0001`
# is a name. PyYAML asks only resolvers of a value's first character, and matches from the left alone.
for _tag, _first, _form in (
    ("bool", "tTfF", r"true|True|TRUE|false|False|FALSE"),
    ("null", ["~", "n", "N", ""], r"~|null|Null|NULL|"),
    ("int", "-+0123456789", r"[-+]?(?:0|[1-9]\d*)|0x[0-9a-fA-F]+"),
    ("float", "-+.0123456789", r"[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+"),
):
    _Yaml.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_form})\Z"), list(_first))


class Source:
    """One file: its data, and the line of every entry. Wrong YAML is a problem, its data then None."""

    def __init__(self, path: Path, name: str, problems: list[Problem], raw: bytes | None = None) -> None:
        """`raw`: the contents of the file, if it is not to be read."""
        self.name = name
        self.problems = problems
        self.raw = path.read_bytes() if raw is None else raw
        self.data, wrong = _parsed(self.raw)
        #: No YAML, which is a problem already, rather than an empty file.
        self.is_broken = self.data is None and bool(wrong)
        #: (id of a value, kind) already searched for unknown fields: with aliases one value has many places.
        self._looked: dict[tuple[int, Any], Any] = {}
        for line, text in wrong:
            self._add(line, text)
        #: One mistake is one problem: what else is wrong there follows from it.
        self._wrong_lines = {line for line, _ in wrong}

    @classmethod
    def if_there(cls, path: Path, name: str, problems: list[Problem]) -> "Source":
        """The file, or an empty one if there is none."""
        return cls(path, name, problems, raw=None if path.exists() else b"")

    @functools.cached_property
    def _root(self) -> yaml.Node | None:
        """With the places of its values: four times as large as they are, and only mistakes need it."""
        try:
            return yaml.compose(self.raw, _Yaml)
        except (yaml.YAMLError, ValueError, RecursionError):
            return None

    @functools.cached_property
    def digest(self) -> bytes:
        """A digest of the whole file."""
        return sha256(self.raw).digest()

    def problem(self, path: Sequence[str | int], text: str, hint: str = "") -> None:
        """Something is wrong at this place of the data, e.g. `("places", "gpu1", "rack")`."""
        if (line := self.line(path)) not in self._wrong_lines:
            self._add(line, text, hint)

    def at(self, *path: str | int) -> "Where":
        return Where(self, path)

    def line(self, path: Sequence[str | int]) -> int:
        node, line = self._root, 1
        for part in path:
            child = _child(node, part)
            if child is None:
                break
            line, node = child
        if not path and node is not None:
            line = node.start_mark.line + 1
        return line

    def _add(self, line: int, text: str, hint: str = "") -> None:
        self.problems.append(Problem(self.name, line, text, hint))

    # --- data -> structs ---------------------------------------------------------------------------------

    def items(self) -> list[Any]:
        """The file's entries when it is a list; a problem and nothing when it is not."""
        if self.data is None:
            return []
        if not isinstance(self.data, list):
            self.problem((), say("rulebook.expected_list"))
            return []
        return self.data

    def entries(self, kind: type[T], *, unique: bool = False) -> Iterator[tuple["Where", T]]:
        """Each valid entry, and its place; the others are problems. If `unique`, so is a second one of the
        same `name`."""
        names: set[str] = set()
        for index, item in enumerate(self.items()):
            entry = self.convert((index,), item, kind)
            if entry is None:
                continue
            name = getattr(entry, "name", "")
            if unique and name in names:
                self.problem((index, "name"), say("rulebook.twice", name=name))
            names.add(name)
            yield self.at(index), entry

    def whole(self, kind: type[T]) -> T:
        """The file as one struct whose fields all have defaults; the defaults if it is empty or wrong."""
        return (None if self.data is None else self.convert((), self.data, kind)) or kind()

    def fields(self, names: Collection[str]) -> dict[str, Any]:
        """The file as a mapping; a problem for each field whose name is not in `names`."""
        data = self.mapping((), self.data)
        for name in data:
            if name not in names:
                hint = did_you_mean(str(name), names)
                self.at(name).problem(say("rulebook.unknown_field", name=name), hint)
        return data

    def mapping(self, path: Sequence[str | int], data: Any) -> dict[str, Any]:
        if data is None:
            return {}
        if not isinstance(data, dict):
            text = say("rulebook.expected_mapping")
            self.problem(path, say("rulebook.field", field=path[-1], text=text) if path else text)
            return {}
        return dict(data)  # `data` is what every later load of the same file gets

    def convert(self, path: Sequence[str | int], data: Any, kind: type[T]) -> T | None:
        """The struct; a problem and None when it is wrong. Unknown fields are problems of their own."""
        before = len(self.problems)
        self._unknown_fields(path, data, kind)
        try:
            value = msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            text, _, where = str(error).partition(" - at `")
            if len(self.problems) > before and text.startswith(_OF_NAMES):
                return None  # a name that is spelled wrong is one mistake
            inner = _path(where.rstrip("`"), data, kind)
            self.problem((*path, *inner), _sentence(text, inner, data), _hint(text, inner, data, kind))
            return None
        return value if len(self.problems) == before else None

    def _unknown_fields(self, path: Sequence[str | int], data: Any, kind: Any) -> None:
        if isinstance(data, dict | list | tuple):
            if (id(data), kind) in self._looked:
                return
            self._looked[(id(data), kind)] = data
        struct = _struct_in(kind)
        if isinstance(data, list | tuple):
            for index, item in enumerate(data):
                self._unknown_fields((*path, index), item, kind)
        elif isinstance(data, dict) and get_origin(kind) is dict:
            for key, value in data.items():  # the names are the site's own
                self._unknown_fields((*path, key), value, get_args(kind)[1])
        elif isinstance(data, dict) and struct is not None:
            types = _types(struct)
            for key, value in data.items():
                if key not in types:
                    self.problem(
                        (*path, key), say("rulebook.unknown_field", name=key), did_you_mean(str(key), types)
                    )
                elif isinstance(value, dict | list):
                    self._unknown_fields((*path, key), value, types[key])


#: A folder of rules is read by each part, by a detector twice, and again when one of its files changes.
@functools.lru_cache(maxsize=128)
def _parsed(raw: bytes) -> tuple[Any, Sequence[tuple[int, str]]]:
    """The data, which all share and none changes, and what is wrong at which line. Wrong YAML has no data."""
    loader, wrong = _Yaml(raw), list[tuple[int, str]]()
    try:
        root = loader.get_single_node()
        if root is None:
            return None, wrong
        wrong.extend(_slips(root, set()))
        return loader.construct_document(root), wrong
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, text = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line, text = (mark.line + 1, text) if mark and text else _unreadable(raw, error)
        return None, [*wrong, (line, say("rulebook.not_valid_yaml", why=text))]
    finally:
        loader.dispose()


#: What YAML allows nowhere.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def _unreadable(raw: bytes, error: Exception) -> tuple[int, str]:
    """The line, and what is wrong with its bytes."""
    if isinstance(error, RecursionError):
        return 1, say("rulebook.nested_too_deeply")
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        return raw.count(b"\n", 0, wrong.start) + 1, say("rulebook.not_utf8")
    if (found := _CONTROL.search(raw)) is not None:
        return raw.count(b"\n", 0, found.start()) + 1, say("rulebook.control_character")
    return 1, say("rulebook.not_readable_as_yaml")


def rule_files(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder, without hidden ones: an editor's lock (a link that leads nowhere) or a copy of
    another system."""
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def parse_ahead(folder: Path) -> None:
    """Parses the files of a folder, for the processes that are forked afterwards."""
    for file in folder.rglob("*.yaml"):
        with suppress(OSError):
            _parsed(file.read_bytes())


#: More than any count or time here; a span of time and the database hold no more either.
_LARGEST = 2.0**53


def _slips(node: yaml.Node, done: set[int]) -> Iterator[tuple[int, str]]:
    """Equal keys, of which YAML would silently keep the last, and values that nothing can hold. `done`: ids
    of visited nodes, as aliases of aliases put one of them into millions of places."""
    if id(node) in done:
        return
    done.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        if text := _unusable(node):
            yield node.start_mark.line + 1, text
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _slips(item, done)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key.value, str):  # else a list or a mapping, which the loader refuses
                if key.value in seen:
                    yield key.start_mark.line + 1, say("rulebook.key_twice", name=key.value)
                seen.add(key.value)
            if isinstance(value, yaml.ScalarNode) and (text := _unusable(value)):
                yield value.start_mark.line + 1, say("rulebook.field", field=key.value, text=text)
            elif not isinstance(value, yaml.ScalarNode):
                yield from _slips(value, done)


def _unusable(value: yaml.ScalarNode) -> str:
    if value.tag.endswith((":int", ":float")):
        number = int(value.value, 16) if "x" in value.value else float(value.value)
        return "" if abs(number) <= _LARGEST else say("rulebook.number_too_large")
    return say("rulebook.nul_character") if "\0" in value.value else ""


@dataclass(frozen=True, slots=True)
class Where:
    """An entry of a file, or a field of one: the place that a problem names."""

    source: Source
    path: tuple[str | int, ...]

    def at(self, *path: str | int) -> "Where":
        return Where(self.source, (*self.path, *path))

    @property
    def line(self) -> int:
        return self.source.line(self.path)

    def problem(self, text: str, hint: str = "") -> None:
        self.source.problem(self.path, text, hint)

    def wrong(self, field: str, text: str, hint: str = "") -> None:
        """A problem of this field; `text` continues after its name."""
        self.at(field).problem(say("rulebook.field", field=field, text=text), hint)

    def check_above_0(self, field: str, value: float, most: int) -> None:
        """A problem of this field unless its value is above 0 and at most `most`."""
        self.check(field, 0 < value <= most, say("rulebook.above_at_most", most=most))

    def check_between(self, field: str, value: float, least: float, most: float) -> None:
        """A problem of this field unless its value is between these two, or equal to one of them."""
        self.check(field, least <= value <= most, say("rulebook.between", least=least, most=most))

    def check(self, field: str, holds: bool, text: str, hint: str = "") -> None:
        """Unless it holds: a problem of this field."""
        if not holds:
            self.wrong(field, text, hint)


def unified_diff(file: str, before: str | None, text: str) -> str:
    """A change of a rule file for its review: a unified diff with the names as git writes them, for `git
    apply`. `before` None: the file is new."""
    lines = difflib.unified_diff(
        (before or "").splitlines(keepends=True),
        text.splitlines(keepends=True),
        f"a/rules/{file}" if before is not None else "/dev/null",
        f"b/rules/{file}",
    )
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )


def _child(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    return None


#: How msgspec's sentences about the name of a field begin.
_OF_NAMES = ("Object missing", "Object contains")


@functools.cache
def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct inside `tuple[S, ...]`, `S | None` and the like."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    for inner in get_args(kind):
        if (found := _struct_in(inner)) is not None:
            return found
    return None


@functools.cache  # working out the types of a struct takes a quarter of a millisecond
def _types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def _path(text: str, data: Any, kind: Any) -> tuple[str | int, ...]:
    """`$.steps[2].do` -> ("steps", 2, "do"). `[...]` is a value of a mapping: the first that is wrong."""
    path: list[str | int] = []
    for name, number, value in re.findall(r"\.([\w-]+)|\[(\d+)\]|(\[\.\.\.\])", text):
        if name:
            struct = _struct_in(kind)
            kind = _types(struct).get(name) if struct is not None else None
        else:
            kind = _held_by(kind, dict if value else (tuple, list))
        if value:
            values = dict(_value(data, path) or {}).items()
            path.append(next((key for key, held in values if _is_wrong(held, kind)), ""))
        else:
            path.append(int(number) if number else name)
    return tuple(path)


def _held_by(kind: Any, origins: Any) -> Any:
    """The type of what a list, tuple or dict of this type holds."""
    for each in (kind, *get_args(kind)):
        if isinstance(get_origin(each), type) and issubclass(get_origin(each), origins):
            return get_args(each)[-1 if get_origin(each) is dict else 0]
    return None


def _is_wrong(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, TypeError):
        return True
    return False


def _value(data: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _sentence(text: str, path: Sequence[str | int], data: Any) -> str:
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", text):
        return say("rulebook.field_missing", name=missing[1])
    where = ".".join(str(part) for part in path if isinstance(part, str))
    if wrong := re.fullmatch(r"Expected `(.+)`, got `(.+)`", text):
        text = say("rulebook.expected_got", wanted=wrong[1], got=wrong[2])
    if not isinstance(text, Said):
        text = reworded(decoder_error(text), text.replace("`", ""))
    if text.startswith("Invalid enum value"):
        text = say("rulebook.not_one_its_words", value=_value(data, path))
    text = reworded(text, text[0].lower() + text[1:])
    return say("rulebook.field", field=where, text=text) if where else text


def _hint(text: str, path: Sequence[str | int], data: Any, kind: type) -> str:
    if "datetime" in text:
        return say("rulebook.moment_such_as")
    if not text.startswith("Invalid enum value"):
        return ""
    words = _words(kind, [part for part in path if isinstance(part, str)])
    return did_you_mean(str(_value(data, path)), words) or say("rulebook.one_of", words=", ".join(words))


def _words(kind: Any, names: Sequence[str]) -> list[str]:
    """The words of the enum, or of the literal, at this place of a struct."""
    for name in names:
        struct = _struct_in(kind)
        if struct is None:
            return []
        kind = next((f.type for f in msgspec.structs.fields(struct) if f.encode_name == name), None)
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    for inner in (kind, *_all_args(kind)):
        if isinstance(inner, type) and hasattr(inner, "__members__"):
            return [member.value for member in inner.__members__.values()]
    return []


def _all_args(kind: Any) -> list[Any]:
    found: list[Any] = []
    for inner in get_args(kind):
        found += [inner, *_all_args(inner)]
    return found
