"""The wire forms of kernel lines, heartbeats and checkpoints -> observations.

Each entry of a request becomes exactly one of these: an observation (new or a duplicate, which the store
decides), unrecognised, or rejected with its index and the reason. One bad entry never loses the good ones.
Only a body with a wrong outer structure is refused as a whole (`BadBody`).
"""

import codecs
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from healer.model import NO_LINES, Component, LineBook, Observation, ObservationKind
from healer.ports.measurements import HasNode
from healer.signals.identity import Origin, digest_of, identify
from healer.signals.inventory import gpu_row, normal_serial
from healer.signals.kernel_log import NO_YEAR, ParsedLine, clean, normal_pci, parse_batch
from healer.signals.rejects import NOT_JSON, BadBody, BadEntry, Rejected, Rejects, utc_time
from healer.text import Said, say

#: A kernel line is at most 1 KiB and a record of /dev/kmsg at most 8 KiB; driver lines are far below this.
LINE_LIMIT_BYTES = 4096
#: The most entries per request: more than may wait to be stored, so an honest sender would get 429 anyway.
ENTRIES_MAX = 100_000
#: The most lines per request as text; most lines of a log do not count.
LINES_MAX = 250_000
#: A sender's clock that is further ahead of ours is not believed; beyond the difference of any two zones it
#: is no clock.
FUTURE_LIMIT, FUTURE_MOST = timedelta(hours=1), timedelta(hours=26)
#: The widest offset of any time zone: only beyond it is a date without zone certainly past.
_WIDEST_ZONE = timedelta(hours=14)
#: What host names and Slurm's hostlists can hold.
_NODE_NAME, _NODE_NAME_MAX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), 64
_BOOT_ID_MAX = 36
_BOOT_ID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# Ids are stored unchanged: no spaces, no control characters.
_JOB_ID = r"[0-9A-Za-z_.+\[\]-]{1,64}"
_ID, _ID_MAX = re.compile(r"[\x21-\x7e]{1,256}"), 256
#: Limit of cached checks of node names, boot ids and other ids.
_REMEMBERED = 16_384


_BYTE_ORDERS = (
    (codecs.BOM_UTF8, None), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip


def byte_order(head: bytes) -> tuple[int, str | None]:
    """(the length of the byte-order mark that a text begins with, its encoding if that is not UTF-8)."""
    return next(((len(mark), name) for mark, name in _BYTE_ORDERS if head.startswith(mark)), (0, None))


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a request. `alternatives`: digest -> other digests under which it may already be stored.
    `rejected_more` were rejected too, and are only counted."""

    observations: tuple[Observation, ...] = ()
    unrecognised: int = 0
    rejected: tuple[Rejected, ...] = ()
    rejected_more: int = 0
    alternatives: dict[str, tuple[str, ...]] = {}


#: Also a full host name.
Short = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class KernelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line. What it does not name, it takes from the body around it. `time` is RFC 3339 with a zone."""

    line: str
    time: str | None = None
    seq: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    boot_id: Short | None = None
    node: Short | None = None
    cluster: Short | None = None
    job: str | int | None = None


class KernelLog(msgspec.Struct, frozen=True, kw_only=True):
    """A whole body of the contract's form, where all of it is as it should be."""

    entries: list[KernelEntry]
    cluster: str | None = None
    node: str | None = None
    boot_id: str | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a heartbeat: the index Slurm uses, the PCI address, the UUID, the board's serial number."""

    index: Annotated[int, msgspec.Meta(ge=0, le=255)]
    pci: str
    uuid: str = ""
    serial: str = ""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    node: Short
    cluster: Short | None = None
    boot_id: Short | None = None
    time: str | None = None
    gpus: tuple[Gpu, ...] = ()
    #: Kernel lines that the sender could not deliver, in total since it was set up.
    lost: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    #: From a node's own token: it only asks for the verdict, and nothing is stored.
    asks: bool = False


_kernel_log = msgspec.json.Decoder(KernelLog).decode


def kernel_log_body(raw: bytes) -> KernelLog | None:
    """The body, decoded directly into its type. None if anything in it is invalid: then decode its JSON and
    let `kernel_log_observations` find the errors, entry by entry."""
    try:
        return _kernel_log(raw)
    except NOT_JSON:
        return None


def kernel_log_observations(
    body: Any, has_node: HasNode, now: datetime, *, cluster: str, book: LineBook = NO_LINES
) -> Accepted:
    """`body` is a KernelLog or the decoded JSON: one object of the contract's form, or a list of them.

    `book`: shapes of lines without a code. `cluster` is the default. Indexes count entries
    through all objects of a list. Raises BadBody.
    """
    heap = _Heap(has_node, now, book)
    if isinstance(body, KernelLog):
        check_entries(len(body.entries))
        outer = {
            "cluster": body.cluster or cluster,
            "node": body.node or None,
            "boot_id": body.boot_id or None,
        }
        for index, entry in enumerate(body.entries):
            heap.take(index, outer, entry)
        return heap.done()
    for index, (outer, entry) in enumerate(_entries(body, cluster)):
        heap.take(index, outer, entry)
    return heap.done()


class NodeBoot(NamedTuple):
    """The node that printed a text, and its boot if known."""

    cluster: str
    node: str
    boot_id: str | None = None


def kernel_text_observations(
    text: str, has_node: HasNode, now: datetime, source: NodeBoot, *, book: LineBook = NO_LINES
) -> Accepted:
    """Plain lines of one node. Blank lines are no entries; an index is a line's number, from 0.
    Raises BadBody for far too many."""
    heap = _Heap(has_node, now, book)
    outer = source._asdict()
    check_entries(text.count("\n"), LINES_MAX, "lines")
    for index, line in enumerate(text.split("\n")):
        if line.strip():
            heap.take(index, outer, {"line": line})
    return heap.done()


def entries_observations(
    entries: Iterable[tuple[int, dict[str, Any], Any]],
    has_node: HasNode,
    now: datetime,
    *,
    wrong: Iterable[tuple[int, Said]] = (),
    book: LineBook = NO_LINES,
) -> Accepted:
    """Entries contained in another form: (index, its `cluster`, `node` and `boot_id`, the entry).

    `wrong`: what that form itself rejects, by index and reason."""
    heap = _Heap(has_node, now, book)
    for index, outer, entry in entries:
        heap.take(index, outer, entry)
    for index, why in wrong:
        heap.rejects.add(index, why)
    return heap.done()


def heartbeat_observations(body: Any, has_node: HasNode, now: datetime, *, cluster: str) -> Accepted:
    """One heartbeat, or a list of them. Raises BadBody."""
    return _each(_beats(body), lambda item: _heartbeat(item, has_node, now, cluster))


def _each(items: list[Any], observe: Callable[[Any], Observation]) -> Accepted:
    observations: list[Observation] = []
    rejects = Rejects()
    for index, item in enumerate(items):
        try:
            observations.append(observe(item))
        except (BadEntry, msgspec.ValidationError) as error:
            rejects.add(index, error)
    return Accepted(observations=tuple(observations), rejected=rejects.sorted(), rejected_more=rejects.more)


def nodes_of_kernel_log(body: Any, *, cluster: str) -> set[tuple[str, str]]:
    """Every (cluster, node) that a kernel-log body names: for tokens bound to one node. Raises BadBody."""
    if isinstance(body, KernelLog):
        return {
            (entry.cluster or body.cluster or cluster, entry.node or body.node or "")
            for entry in body.entries
        }
    pairs = [(outer, entry) for outer, entry in _entries(body, cluster) if isinstance(entry, dict)]
    return {
        (str(entry.get("cluster") or outer["cluster"]), str(entry.get("node") or outer["node"] or ""))
        for outer, entry in pairs
    }


def nodes_of_heartbeats(body: Any, *, cluster: str) -> set[tuple[str, str]]:
    """The same of a heartbeat body."""
    return named_nodes(_beats(body), cluster)


def named_nodes(items: Iterable[Any], cluster: str) -> set[tuple[str, str]]:
    """(cluster, node) named by decoded objects, "" without a node."""
    named = [item for item in items if isinstance(item, dict)]
    return {(str(item.get("cluster") or cluster), str(item.get("node") or "")) for item in named}


# --- kernel lines ----------------------------------------------------------------------------------------


def check_entries(count: int, most: int = ENTRIES_MAX, noun: Literal["entries", "lines"] = "entries") -> None:
    if count > most:
        raise BadBody(say(f"signals.most_{noun}", n=count, most=most))


def _objects(body: Any) -> list[Any]:
    return body if isinstance(body, list) else [body]


def _entries(body: Any, cluster: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """(fields around the entry, the entry)."""
    objects = [item for item in _objects(body) if isinstance(item, dict)]
    entries_in_all = sum(len(item["entries"]) for item in objects if isinstance(item.get("entries"), list))
    check_entries(max(len(objects), entries_in_all))
    for number, item in enumerate(_objects(body)):
        where = f"[{number}]" if isinstance(body, list) else say("signals.body")
        if not isinstance(item, dict):
            raise BadBody(say("signals.kernel_log_shape", where=where))
        entries = item.get("entries")
        if not isinstance(entries, list):
            raise BadBody(say("signals.entries_shape", where=where))
        for name in ("cluster", "node", "boot_id"):
            if not isinstance(item.get(name, ""), str | None):
                raise BadBody(say("signals.must_be_string", where=where, name=name))
        outer = {name: item.get(name) or None for name in ("cluster", "node", "boot_id")}
        outer["cluster"] = outer["cluster"] or cluster
        for entry in entries:
            yield outer, entry


class _Heap:
    """Sorts the entries of one request. One node's lines stay together, in order: a lost GPU takes three."""

    def __init__(self, has_node: HasNode, now: datetime, book: LineBook) -> None:
        self.has_node, self.now, self.book = has_node, now, book
        self.rejects = Rejects()
        self.by_node: dict[tuple[str, str], list[_Taken]] = {}
        #: (cluster, node) as sent -> its name in Slurm, and what is wrong with it.
        self.checked: dict[tuple[str, str], tuple[str, Said | None]] = {}

    def take(self, index: int, outer: dict[str, Any], entry: Any) -> None:
        try:
            taken = self._taken(index, outer, entry)
        except (BadEntry, msgspec.ValidationError) as error:
            self.rejects.add(index, error)
        else:
            self.by_node.setdefault((taken.cluster, taken.node), []).append(taken)

    def _taken(self, index: int, outer: dict[str, Any], entry: Any) -> "_Taken":
        line = entry if type(entry) is KernelEntry else msgspec.convert(entry, KernelEntry)
        cluster, node = line.cluster or outer["cluster"], line.node or outer["node"]
        if node is None:
            raise BadEntry(say("signals.no_node"))
        where = (cluster, node)
        if where not in self.checked:
            name = slurm_name(cluster, node, self.has_node)
            self.checked[where] = name, wrong_node(cluster, name, self.has_node)
        node, wrong = self.checked[where]
        if wrong:
            raise BadEntry(wrong)
        boot_id = normal_boot_id(line.boot_id or outer["boot_id"])
        check_id("boot_id", boot_id)
        check_id("job", line.job)
        if len(line.line) > LINE_LIMIT_BYTES // 4:  # a letter has at most four bytes
            size = len(line.line.encode("utf-8", "surrogatepass"))
            if size > LINE_LIMIT_BYTES:
                raise BadEntry(say("signals.line_too_long", size=size, most=LINE_LIMIT_BYTES))
        return _Taken(index, cluster, node, boot_id, line, parse_time(line.time, self.now))

    def done(self) -> Accepted:
        observations: list[tuple[int, Observation]] = []
        alternatives: dict[str, tuple[str, ...]] = {}
        unrecognised, rejects = 0, self.rejects
        for entries in self.by_node.values():
            lines = [taken.entry.line for taken in entries]
            for taken, parsed in zip(entries, parse_batch(lines, self.book), strict=True):
                if parsed is None:
                    unrecognised += 1
                    continue
                observation, others = _observation(taken, parsed, self.now)
                observations.append((taken.index, observation))
                if others:
                    alternatives[observation.digest] = others
        if len(self.by_node) > 1:
            observations.sort(key=lambda pair: pair[0])
        return Accepted(
            observations=tuple([observation for _, observation in observations]),
            unrecognised=unrecognised,
            rejected=rejects.sorted() if rejects.count else (),
            rejected_more=rejects.more if rejects.count else 0,
            alternatives=alternatives,
        )


class _Taken(msgspec.Struct, frozen=True):
    index: int
    cluster: str
    node: str
    boot_id: str | None
    entry: KernelEntry
    at: datetime | None


def slurm_name(cluster: str, host: str, has_node: HasNode) -> str:
    """The node's name in Slurm: the host's own, or the first part of a full one. Not if that names another
    cluster (gpu0001.pod2.example): clusters may use equal node names."""
    short, *domain = host[: 4 * _NODE_NAME_MAX].split(".")
    if not domain or not short or has_node(cluster, host) or not has_node(cluster, short):
        return host
    return host if any(word != cluster and has_node(word, short) for word in domain) else short


def node_of(cluster: str, host: str, has_node: HasNode) -> str:
    """The same of a node of ours. Raises BadEntry."""
    name = slurm_name(cluster, host, has_node)
    if wrong := wrong_node(cluster, name, has_node):
        raise BadEntry(wrong)
    return name


def wrong_node(cluster: str, node: str, has_node: HasNode) -> Said | None:
    if not is_node_name(node):
        return say("signals.bad_node_name")
    if not cluster:
        return say("signals.name_cluster")
    return None if has_node(cluster, node) else say("signals.unknown_node", node=node, cluster=cluster)


def is_node_name(word: str) -> bool:
    return len(word) <= _NODE_NAME_MAX and _is_node_name(word)


def is_job_id(word: str) -> bool:
    return re.fullmatch(_JOB_ID, word) is not None


# The same questions recur with each line of a node.


@functools.lru_cache(maxsize=_REMEMBERED)
def _is_node_name(word: str) -> bool:
    return _NODE_NAME.fullmatch(word) is not None


def check_id(name: str, word: str | int | None) -> None:
    if not is_id(word):
        raise BadEntry(say("signals.bad_id", name=name))


def is_id(word: str | int | None) -> bool:
    """Whether it is a valid id; a missing one is."""
    if word is None:
        return True
    text = str(word)
    return len(text) <= _ID_MAX and _is_id(text)


@functools.lru_cache(maxsize=_REMEMBERED)
def _is_id(word: str) -> bool:
    return _ID.fullmatch(word) is not None


def normal_boot_id(text: str | None) -> str | None:
    """The form of /proc/sys/kernel/random/boot_id: journald prints the same id without its dashes."""
    return _normal_boot_id(text) if text and len(text) <= _BOOT_ID_MAX else text


@functools.lru_cache(maxsize=_REMEMBERED)
def _normal_boot_id(text: str) -> str:
    if not _BOOT_ID.fullmatch(text):
        return text
    digits = text.replace("-", "").lower()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def event_time(text: str | None, now: datetime) -> datetime | None:
    """The time of an entry, in UTC, as far as it is trusted; None: it gives none. Raises BadEntry.

    A clock that is hours ahead was set to local time, or never set: its node's messages are as true as any
    others, and count from their arrival.
    """
    reported = parse_time(text, now)
    return None if reported is None else effective_time(reported, now)


def parse_time(text: str | None, now: datetime) -> datetime | None:
    """The sender's time in UTC; None: it gives none, or one that no time zone explains. Raises BadEntry."""
    at = None if text is None else utc_time(text)
    return None if at is None or at > now + FUTURE_MOST else at


def effective_time(reported: datetime, now: datetime) -> datetime:
    """The time that counts for something reported at `reported`."""
    return reported if reported <= now + FUTURE_LIMIT else now


def _observation(taken: _Taken, line: ParsedLine, now: datetime) -> tuple[Observation, tuple[str, ...]]:
    entry = taken.entry
    reported = taken.at or _stamp_time(line, now)
    seq = entry.seq if entry.seq is not None else line.seq
    origin = Origin(taken.cluster, taken.node, taken.boot_id, seq, line.stamp)
    identity = identify(origin, line.content, event_at=reported, arrived_at=now)
    data = dict(line.data)
    at = effective_time(reported, now) if reported else now
    if reported and at != reported:
        data["ahead_s"] = (reported - now).total_seconds()
    if entry.job is not None:
        data["job"] = str(entry.job)
    observation = Observation(
        digest=identity.digest,
        kind=line.kind,
        component=Component(
            cluster=taken.cluster,
            node=taken.node,
            pci=line.pci,
            link=line.link,
            switch=line.switch,
            nic=line.nic,
        ),
        event_at=at,
        arrived_at=now,
        boot_id=taken.boot_id,
        code=line.code,
        text=line.text,
        line=clean(entry.line).strip(),
        data=data,
        seq=seq,
    )
    return observation, identity.alternatives


def _stamp_time(line: ParsedLine, now: datetime) -> datetime | None:
    """The event's time from the line's own stamp, if that can be known.

    A stamp with a zone is trusted. One without only shows that the line is old: if it is further back than
    any time zone and our limit for old lines together could explain.
    """
    if line.stamp_at is not None:
        return line.stamp_at if line.stamp_at <= now + FUTURE_LIMIT else None
    local = line.stamp_local
    if local is None:
        return None
    if local.year == NO_YEAR:
        local = _with_year(local, now)
    at = local.replace(tzinfo=UTC)
    return at if at < now - _WIDEST_ZONE - timedelta(hours=1) else None


def _with_year(local: datetime, now: datetime) -> datetime:
    """The latest such date that is not in the future (by more than a day: zones)."""
    for year in range(now.year + 1, now.year - 9, -1):
        try:
            moment = local.replace(year=year)
        except ValueError:
            continue  # 29 February
        if moment.replace(tzinfo=UTC) <= now + timedelta(days=1):
            return moment
    return local


# --- heartbeats ------------------------------------------------------------------------------------------


def _beats(body: Any) -> list[Any]:
    if not isinstance(body, dict | list):
        raise BadBody(say("signals.node_shape"))
    beats = _objects(body)
    check_entries(len(beats))
    return beats


def _heartbeat(item: Any, has_node: HasNode, now: datetime, cluster: str) -> Observation:
    beat = msgspec.convert(item, Heartbeat)
    where = beat.cluster or cluster
    node = node_of(where, beat.node, has_node)
    reported = parse_time(beat.time, now) or now
    at = effective_time(reported, now)
    boot_id = normal_boot_id(beat.boot_id)
    check_id("boot_id", boot_id)
    data: dict[str, Any] = {}
    if at != reported:
        data["ahead_s"] = (reported - now).total_seconds()
    if beat.gpus:
        data["gpus"] = [_gpu(gpu) for gpu in beat.gpus]
    if beat.lost:
        data["lost"] = beat.lost
    return Observation(
        digest=digest_of("heartbeat", where, node, boot_id or "", f"{at.timestamp():.6f}"),
        kind=ObservationKind.heartbeat,
        component=Component(cluster=where, node=node),
        event_at=at,
        arrived_at=now,
        boot_id=boot_id,
        data=data,
    )


def _gpu(gpu: Gpu) -> dict[str, Any]:
    pci = normal_pci(gpu.pci)
    if pci is None:
        raise BadEntry(say("signals.bad_pci", pci=repr(gpu.pci), gpu=gpu.index))
    check_id("uuid", gpu.uuid or None)
    return gpu_row(gpu.index, pci, gpu.uuid, normal_serial(gpu.serial))


_Job = Annotated[str, msgspec.Meta(pattern=f"^{_JOB_ID}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class JobCheckpointBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One checkpoint. `durable`: it is where a restarted job will find it, and whole. `sha256`: of the file;
    of a folder, of what `sha256sum` prints of its files, sorted by path."""

    job: _Job | Annotated[int, msgspec.Meta(ge=1)]
    step: _Count
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]
    durable: bool
    restart: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    cluster: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")] | None = None
    time: str | None = None


def checkpoint_observations(body: Any, now: datetime, *, cluster: str) -> Accepted:
    """One checkpoint, or a list of them, decoded from JSON. A repeat is a duplicate. Raises BadBody."""
    if not isinstance(body, dict | list):
        raise BadBody(say("signals.checkpoint_shape"))
    items = _objects(body)
    check_entries(len(items))
    return _each(items, lambda item: _checkpoint(item, now, cluster))


def _checkpoint(item: Any, now: datetime, cluster: str) -> Observation:
    checkpoint = msgspec.convert(item, JobCheckpointBody)
    where, job = checkpoint.cluster or cluster, str(checkpoint.job)
    at = event_time(checkpoint.time, now) or now
    data = {
        "restart": checkpoint.restart,
        "step": checkpoint.step,
        "path": checkpoint.path,
        "durable": checkpoint.durable,
    }
    identity = [checkpoint.restart, checkpoint.step, checkpoint.path, checkpoint.durable]
    if checkpoint.sha256 is not None:
        data["sha256"] = checkpoint.sha256
        identity.append(checkpoint.sha256)
    return Observation(
        digest=digest_of("checkpoint", where, job, *identity),
        kind=ObservationKind.checkpoint,
        component=Component(cluster=where, job=job),
        event_at=at,
        arrived_at=now,
        data=data,
    )
