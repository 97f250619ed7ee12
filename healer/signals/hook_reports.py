"""`POST /signals/hooks/…`: what Slurm's prolog, epilog and health check saw on their node.

A report is split into what other routes accept too: kernel lines, columnar samples, nvidia-smi's XML. The
rest is the hook's own observation: its checks, each with a text if it failed, and the life of the job for
which it ran.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec

from healer.model import Component, Observation, ObservationKind
from healer.signals.identity import digest_of
from healer.signals.rejects import BadBody, BadEntry, Rejected, Rejects
from healer.signals.wire import (
    HasNode,
    Short,
    check_id,
    event_time,
    kernel_log_observations,
    named_nodes,
    node_of,
    normal_boot_id,
)
from healer.text import say

HOOKS = ("prolog", "epilog", "health-check")
#: Reports of one request: a node's spool holds what one request takes (1 MB), of 400 bytes at least each.
REPORTS_MAX = 5_000
CHECKS_MAX = 32
#: Older measurements do not count as current; kernel lines and checks keep their own time.
FRESH = timedelta(seconds=60)
_CHECK = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_Id = Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]{1,128}$")]
_Text = Annotated[str, msgspec.Meta(max_length=500)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class HookCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One local check of the node. `text` says what is wrong; empty: it passed."""

    name: str
    text: _Text = ""


class HookLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One kernel line of the node, as in `POST /signals/kernel-log`."""

    line: str
    time: str | None = None
    seq: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


class HookReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a hook saw. `id` is the same when the hook runs twice for the same life of a job.

    `hook` is the one that it comes of, where that is not the route's: a spool holds reports of all three.
    `restarts` is that life's restart count. `host` and `ports` are columnar samples, `inventory` what the
    node is made of, `nvidia_smi` the XML of `nvidia-smi -q -x`. `refused` names the check for which the hook
    failed without having been answered.
    """

    node: Short
    id: _Id | None = None
    hook: Literal["prolog", "epilog", "health-check"] | None = None
    cluster: _Name | None = None
    time: str | None = None
    boot_id: _Name | None = None
    job: str | int | None = None
    restarts: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    kernel: tuple[HookLine, ...] = ()
    host: dict[str, float | None] = {}
    ports: dict[str, dict[str, float | None]] = {}
    nvidia_smi: str = ""
    inventory: dict[_Name, _Text] = {}
    checks: Annotated[tuple[HookCheck, ...], msgspec.Meta(max_length=CHECKS_MAX)] = ()
    refused: str = ""


class HookSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One report, split up. `samples`: a body of `POST /signals/metrics`, b"" if there is none."""

    cluster: str
    node: str
    hook: str
    key: str
    at: datetime
    observation: Observation
    lines: tuple[Observation, ...] = ()
    alternatives: dict[str, tuple[str, ...]] = {}
    samples: bytes = b""
    xml: bytes = b""
    job: str | None = None
    restarts: int | None = None
    refused: str = ""


class HooksSeen(msgspec.Struct, frozen=True, kw_only=True):
    reports: tuple[HookSeen, ...] = ()
    unrecognised: int = 0
    rejected: tuple[Rejected, ...] = ()
    rejected_more: int = 0


def hook_reports(body: Any, hook: str, has_node: HasNode, now: datetime, *, cluster: str) -> HooksSeen:
    """One report or a list of them, oldest first; `cluster` where a report names none. Raises BadBody."""
    seen: list[HookSeen] = []
    rejects, unrecognised = Rejects(), 0
    for index, item in enumerate(_items(body)):
        try:
            report = msgspec.convert(item, HookReport)
            hook_seen, strange = _seen(report, report.hook or hook, has_node, now, report.cluster or cluster)
        except (BadEntry, msgspec.ValidationError) as error:
            rejects.add(index, error)
        else:
            seen.append(hook_seen)
            unrecognised += strange
    return HooksSeen(
        reports=tuple(seen), unrecognised=unrecognised, rejected=rejects.sorted(), rejected_more=rejects.more
    )


def nodes_of_hooks(body: Any, *, cluster: str) -> set[tuple[str, str]]:
    """Every (cluster, node) that the body names, for tokens bound to one of them."""
    return named_nodes(_items(body), cluster)


def _items(body: Any) -> list[Any]:
    items = body if isinstance(body, list) else [body]
    if not isinstance(body, dict | list):
        raise BadBody(say("signals.node_shape"))
    if len(items) > REPORTS_MAX:
        raise BadBody(say("signals.too_many_reports", n=len(items), most=REPORTS_MAX))
    return items


def _seen(
    report: HookReport, hook: str, has_node: HasNode, now: datetime, cluster: str
) -> tuple[HookSeen, int]:
    report = msgspec.structs.replace(report, node=node_of(cluster, report.node, has_node))
    at = event_time(report.time, now) or now
    boot_id = normal_boot_id(report.boot_id)
    job = None if report.job is None else str(report.job)
    check_id("boot_id", boot_id)
    check_id("job", job)
    _check_names(report)
    entries = [msgspec.to_builtins(line) for line in report.kernel]
    around = {"cluster": cluster, "node": report.node, "boot_id": boot_id, "entries": entries}
    lines = kernel_log_observations(around, has_node, now, cluster=cluster)
    if lines.rejected:
        raise BadEntry(say("signals.field", field="kernel", text=lines.rejected[0].reason))
    key = report.id or digest_of(at.isoformat())[:32]
    fresh, results = now - at <= FRESH, _results(report)
    return (
        HookSeen(
            cluster=cluster,
            node=report.node,
            hook=hook,
            key=key,
            at=at,
            observation=Observation(
                digest=digest_of("hook", cluster, report.node, hook, key),
                kind=ObservationKind.hook,
                component=Component(cluster=cluster, node=report.node, job=job),
                event_at=at,
                arrived_at=now,
                boot_id=boot_id,
                data={"hook": hook, "id": key, **results},
            ),
            lines=lines.observations,
            alternatives=lines.alternatives,
            samples=_samples(report, cluster) if fresh else b"",
            xml=report.nvidia_smi.encode() if fresh else b"",
            job=job,
            restarts=report.restarts,
            refused=report.refused if report.refused in results.get("failed", ()) else "",
        ),
        lines.unrecognised,
    )


def _check_names(report: HookReport) -> None:
    for check in report.checks:
        if not _CHECK.fullmatch(check.name):
            raise BadEntry(say("signals.bad_check", name=repr(check.name[:40])))


def _results(report: HookReport) -> dict[str, Any]:
    """The failed checks, with their texts, and the passed ones; empty without a check."""
    # One line for people: each line of a message or ticket is one of healer's own sentences.
    failed = {check.name: _one_line(check.text) or check.name for check in report.checks if check.text}
    passed = [check.name for check in report.checks if not check.text]
    return ({"failed": failed} if failed else {}) | ({"passed": passed} if passed else {})


def _one_line(text: str) -> str:
    return " ".join(filter(None, text.splitlines()))


def _samples(report: HookReport, cluster: str) -> bytes:
    if not (report.host or report.ports or report.inventory):
        return b""
    body = {"cluster": cluster, "node": report.node, "host": report.host, "ports": report.ports}
    body |= {"inventory": report.inventory} if report.inventory else {}
    return msgspec.json.encode(body if report.time is None else body | {"time": report.time})


def arrivals(seen: HooksSeen) -> Iterator[tuple[Observation, tuple[str, ...]]]:
    """(observation, other digests under which it may already be stored) of everything to store."""
    for report in seen.reports:
        for line in report.lines:
            yield line, report.alternatives.get(line.digest, ())
        yield report.observation, ()
