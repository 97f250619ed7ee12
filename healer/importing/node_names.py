"""Hosts of logs -> nodes of Slurm, full names and short ones; people and jobs -> pseudonyms."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

from healer.signals.wire import wrong_node


class NodeNames:
    """`nodes`: as Slurm names them; `others`: further names and addresses by node. Empty `nodes`: every host
    is one, by its short name."""

    def __init__(self, nodes: Iterable[str], others: Mapping[str, Iterable[str]]) -> None:
        self._nodes = frozenset(nodes)
        self._by_host: dict[str, str] = {}
        doubtful: set[str] = set()
        for node in sorted(self._nodes):
            names = {node, *others.get(node, ())}
            for name in (names | set(map(short_name, names))) - {node}:
                if name in self._by_host:
                    doubtful.add(name)
                self._by_host[name] = node
        for name in doubtful:
            del self._by_host[name]

    def node(self, host: str) -> str | None:
        """None: no node of the cluster."""
        if not self._nodes:
            return short_name(host)
        for name in (host, short_name(host)):
            if name in self._nodes:
                return name
            if name in self._by_host:
                return self._by_host[name]
        lower = host.lower()
        return self.node(lower) if lower != host else None


def is_name(node: str) -> bool:
    """Whether a node may be named like this."""
    return not wrong_node("c", node, lambda *_: True)


#: An address is no name with a domain behind it.
_ADDRESS = re.compile(r"[0-9.]+|[0-9a-fA-F]*:[0-9a-fA-F:.]*")


def short_name(host: str) -> str:
    """Without its domain."""
    return host if _ADDRESS.fullmatch(host) else host.partition(".")[0]


#: Fields of a job that name no person, and those that are left out.
_FREE_TEXTS = frozenset({"comment", "extra", "admin_comment", "submit_line", "account"})


def by_digest(names: Iterable[str]) -> list[str]:
    """In an order that says nothing of the names."""
    return sorted(names, key=lambda name: sha256(name.encode()).digest())


class NamesInText:
    """Callable: the text with other names for these, wherever they are whole words."""

    def __init__(self, others: Mapping[str, str]) -> None:
        self._others = others
        words = "|".join(re.escape(name) for name in sorted(others, key=len, reverse=True))
        self._found = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])") if words else None

    def __call__(self, text: str) -> str:
        return text if self._found is None else self._found.sub(lambda name: self._others[name[0]], text)


class Pseudonyms:
    """The same name gets the same pseudonym in the whole recording. `text`: of a reason with users in it."""

    def __init__(self, users: Iterable[str]) -> None:
        ordered = by_digest(set(users) - {"", "root", "slurm"})
        self._users = {name: f"user{number}" for number, name in enumerate(ordered, start=1)}
        self._jobs: dict[str, str] = {}
        self.text = NamesInText(self._users)

    def user(self, name: str) -> str:
        return self._users.get(name, name)

    def job(self, row: dict[str, object]) -> dict[str, object]:
        """A job's fields; free texts are left out."""
        kept = {name: value for name, value in row.items() if name not in _FREE_TEXTS}
        if isinstance(name := kept.get("name"), str):
            kept["name"] = self._jobs.setdefault(name, f"job{len(self._jobs) + 1}")
        if isinstance(user := kept.get("user"), str):
            kept["user"] = self.user(user)
        return kept
