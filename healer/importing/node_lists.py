"""Nodes as Slurm's commands print them: `sinfo -R` (also many of them, by cron), `scontrol show node`."""

import re
from datetime import datetime

import msgspec

from healer.adapters.slurm import parse_json, parse_text
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.parse_json import NotUnderstood
from healer.importing.controller_log import drain_mark
from healer.importing.happenings import Found, NodeChange
from healer.importing.local_stamps import LocalStamps, micros
from healer.importing.source_text import Bytes, pieces, texts_of
from healer.model import SlurmNode
from healer.model.slurm import is_empty_reason
from healer.text import said_by, say

#: A list of 100,000 nodes is smaller.
_DOCUMENT_BYTES = 256 << 20
_WHEN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
_REASON = re.compile(
    rf"(?P<reason>.*?)\s+(?P<user>[^\s|]+)\s+(?P<at>{_WHEN})\s+(?:(?P<state>[a-z]+[*~#!%$@^+-]*)\s+)?(?P<nodes>\S+)\s*$"
)
_HEADER = re.compile(r"\s*REASON\b.*NODELIST|\s*NODELIST\b.*REASON|[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d ")
_SIGNED = re.compile(rf"(?P<reason>.*) \[(?P<user>[^\[\]@\s]+)@(?P<at>{_WHEN})\]", re.DOTALL)
_UID = re.compile(r"\(\d+\)$")
#: -o puts a blank where a line begins. What people wrote follows Slurm's own words.
_ONE_LINE = re.compile(r"^(NodeName=\S+ .*? State=\S+ .*?)((?: Reason=.*)?)$", re.MULTILINE)
_FIRST_KEYS = re.compile(
    r" +(?=(?:CPUAlloc|ActiveFeatures|Gres|NodeAddr|State|NextState|Partitions|BootTime|Comment|Extra)=)"
)
_LAST_KEYS = re.compile(r" +(?=(?:Reason|Comment|Extra|InstanceId|ReservationName|Topology|Parameters)=)")
#: Fields of a node that hold for the whole time.
_LASTING = ("gpus", "gpu_model", "cpus", "partitions", "features")


class Reasons:
    """Who took nodes out, when and why."""

    def __init__(self, found: Found, stamps: LocalStamps) -> None:
        self._found, self._stamps = found, stamps
        self._columns: list[str] = []

    def read(self, file: Bytes) -> None:
        for line in texts_of(file, self._found.tally):
            self._take(line)

    def _take(self, line: str) -> None:
        if not line.strip():
            return
        if _HEADER.match(line):
            self._columns = line.strip().split("|") if "|" in line else []
            return
        try:
            row = self._row(line)
            self.out(words.expand_hosts(row["nodes"]), row)
        except (ValueError, KeyError) as error:
            self._found.tally.skip(say("importing.no_reason_row", why=said_by(error)), line)

    def _row(self, line: str) -> dict[str, str]:
        """Raises ValueError and KeyError."""
        if self._columns:
            named = dict(zip(self._columns, line.split("|"), strict=True))
            return {
                "reason": named["REASON"], "user": named.get("USER", ""), "at": named["TIMESTAMP"].strip(),
                "state": named.get("STATE", ""), "nodes": named["NODELIST"].strip(),
            }  # fmt: skip
        match = _REASON.match(line)
        if match is None:
            raise ValueError(say("importing.reason_row"))
        return {name: value or "" for name, value in match.groupdict().items()}

    def out(self, nodes: tuple[str, ...], row: dict[str, str]) -> None:
        """A reason that someone set. Raises ValueError for an invalid time."""
        at_us = self._stamps.at(datetime.fromisoformat(row["at"]))
        reason, user = row["reason"].strip(), _UID.sub("", row["user"].strip())
        base = "DOWN" if row["state"].lower().startswith("down") else "DRAINED"
        self._found.nodes.update(nodes)
        if user:
            self._found.users.add(user)
        for node in nodes:
            self._found.marks.saw(drain_mark(node, reason), at_us)
        change = NodeChange(nodes, "shown", state=(base,), reason=reason, user=user, at_us=at_us)
        self._found.add(at_us, change)


def read_nodes(file: Bytes, found: Found, stamps: LocalStamps) -> None:
    """`scontrol show node`, also with -o, or `--json`, one picture. What it says of the state holds only for
    its moment: the reason is taken, with its time."""
    parts: list[bytes] = []
    for piece in pieces(file, found.tally):
        parts.append(piece)
        if found.tally.read_bytes > _DOCUMENT_BYTES:
            found.tally.skip(say("importing.long_list", mib=_DOCUMENT_BYTES >> 20))
            return
    raw = b"".join(parts)
    found.tally.lines += raw.count(b"\n")
    try:
        text = raw.decode("utf-8", "replace")
        nodes = parse_json.nodes(raw) if raw.lstrip().startswith(b"{") else parse_text.nodes(_in_lines(text))
    except (NotUnderstood, ValueError) as error:
        found.tally.skip(say("importing.no_list", why=said_by(error)))
        return
    if not nodes:
        found.tally.skip(say("importing.not_recognised"))
        return
    found.complete = True
    found.nodes.update(nodes)
    reasons = Reasons(found, stamps)
    for node in nodes.values():
        row = msgspec.to_builtins(node)
        found.rows[node.name] = {
            name: row[name] for name in (*_LASTING, "hostname", "address") if name in row
        }
        found.tally.signals += 1
        _reason_of(node, reasons, found)


def _in_lines(text: str) -> str:
    """`scontrol show node -o` in the form without -o."""
    return _ONE_LINE.sub(lambda record: _begun(_FIRST_KEYS, record[1]) + _begun(_LAST_KEYS, record[2]), text)


def _begun(keys: re.Pattern[str], text: str) -> str:
    return keys.sub("\n   ", text)


def _reason_of(node: SlurmNode, reasons: Reasons, found: Found) -> None:
    if is_empty_reason(node.reason):
        return
    base = "down" if node.base == "DOWN" else ""
    if node.reason_at is not None:
        at_us = micros(node.reason_at)
        fields = {"reason": node.reason, "user": node.reason_user}
        found.add(
            at_us, NodeChange((node.name,), "shown", (base.upper() or "DRAINED",), at_us=at_us, **fields)
        )
    elif signed := _SIGNED.fullmatch(node.reason):
        try:
            reasons.out((node.name,), {**signed.groupdict(), "state": base})
        except ValueError as error:
            found.tally.skip(say("importing.no_time_why", why=said_by(error)), node.reason, line=0)
    else:
        found.tally.skip(say("importing.undated_reason"), node.reason, line=0)
