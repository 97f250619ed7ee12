"""`ports.NodeExec` by healer-node's verbs over any channel, and the parsers of its answers."""

import base64
import binascii
import copy
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from healer.model import (
    Bundle,
    Diagnosis,
    FabricState,
    GpuActivity,
    GpuSeen,
    JobOnNode,
    JobStacks,
    KernelRecord,
    MemoryState,
    NodeLook,
    RecorderFile,
    Stack,
)
from healer.ports.node_exec import NodeError, NodeUnavailable
from healer.text import NO_WORDS, Said, is_worded, joined, quoted, say, unstopped

#: The time-outs of reads and effects, above healer-node's own limits.
READ_S, EFFECT_S = 7.5, 4.0
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_OPENING = re.compile(r"[a-z0-9]{8,160}")
_JOB = re.compile(r"[1-9][0-9]{0,9}")
_SENTENCE = re.compile(r"[a-z0-9_]{1,40}")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,120}")

#: Error codes of healer-node with a remedy, which is appended to the node's message (`nodes.remedy_…`).
_REMEDIES = frozenset({"not-signed", "refused", "missing", "bad-config", "no-service", "no-audit"})
#: Codes after which the outcome is unknown, and a retry may succeed.
_UNKNOWN = frozenset({"timed-out", "too-much"})


class Channel(Protocol):
    """Carries one request to healer-node on a node and brings back its document."""

    name: str

    def ask(self, node: str, words: tuple[str, ...], timeout_s: float, run: str = "") -> Mapping[str, Any]:
        """`run`: in whose name; empty for looks alone. Raises NodeUnavailable without an answer, NodeError if
        a retry cannot help."""
        ...


# Wide: implements `ports.NodeExec`.
class NodeVerbs:
    """`ports.NodeExec`. `level`: DCGM's level of tests, 1 to 4. `read_s`, `effect_s` bound one call."""

    def __init__(
        self, channel: Channel, *, level: int = 2, read_s: float = READ_S, effect_s: float = EFFECT_S
    ) -> None:
        self.name, self.channel = channel.name, channel
        self._level, self._read_s, self._effect_s = str(level), read_s, effect_s
        self._run = ""

    def of_run(self, run: str) -> "NodeVerbs":
        in_its_name = copy.copy(self)
        in_its_name._run = run
        return in_its_name

    def restart_service(self, node: str, service: str) -> None:
        self._ask(node, self._effect_s, "service-restart", service)

    def service_active(self, node: str, service: str) -> bool:
        return self._ask(node, self._read_s, "service-status", service).get("active") is True

    def fabric_state(self, node: str) -> FabricState:
        return read_fabric(node, self._ask(node, self._read_s, "fabric-state"))

    def memory_state(self, node: str, limit_s: float | None = None) -> MemoryState:
        limit_s = self._read_s if limit_s is None else min(limit_s, self._read_s)
        return read_memory(node, self._ask(node, limit_s, "memory-state"))

    def second_look(self, node: str, opening: str, pci: str | None, limit_s: float) -> NodeLook:
        if not _OPENING.fullmatch(opening):
            raise ValueError(say("nodes.no_opening", opening=opening))
        where = pci if pci is None or "." in pci else f"{pci}.0"
        if where is not None and not _PCI.fullmatch(where):
            raise ValueError(say("nodes.no_gpu", gpu=pci))
        limit_s = min(limit_s, self._read_s)
        return read_look(node, self._ask(node, limit_s, "second-look", opening, where or "-"))

    def start_diagnosis(self, node: str, key: str) -> None:
        self._ask(node, self._effect_s, "diagnose-start", _checked(key), self._level)

    def diagnosis(self, node: str, key: str) -> Diagnosis | None:
        return read_diagnosis(node, key, self._ask(node, self._read_s, "diagnose-show", _checked(key)))

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        if gpu != "all" and not _PCI.fullmatch(gpu):
            raise ValueError(say("nodes.no_gpu", gpu=gpu))
        self._ask(node, self._read_s, "gpu-reset", _checked(key), gpu)

    def reset(self, node: str, key: str) -> Diagnosis | None:
        return read_reset(node, key, self._ask(node, self._read_s, "gpu-reset-show", _checked(key)))

    def start_collection(self, node: str, key: str) -> None:
        self._ask(node, self._effect_s, "collect", _checked(key))

    def collection(self, node: str, key: str) -> Bundle | None:
        return read_bundle(node, key, self._ask(node, self._read_s, "collect-show", _checked(key)))

    def read_collection(self, node: str, key: str, start: int) -> bytes:
        answer = self._ask(node, self._read_s, "collect-read", _checked(key), str(start))
        try:
            return base64.b64decode(str(answer.get("data", "")), validate=True)
        except binascii.Error as error:
            raise NodeError(say("nodes.collect_no_bytes", node=node, key=key)) from error

    def job_stacks(self, node: str, job: str) -> JobStacks:
        return read_job_stacks(node, self._ask(node, self._read_s, "job-stacks", _number(job)))

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        return read_job_on_node(node, self._ask(node, self._read_s, "job-recorder", _number(job)))

    def identify(self, node: str) -> Mapping[str, Any]:
        """Boot id, driver, GPUs with UUID and serial number."""
        return self._ask(node, self._read_s, "identify")

    def _ask(self, node: str, timeout_s: float, *words: str) -> Mapping[str, Any]:
        answer = self.channel.ask(node, words, timeout_s, self._run)
        if answer.get("ok") is True:
            return answer
        code = str(answer.get("code", ""))
        text = said_by_node(answer) or say("nodes.gave_no_reason")
        if code == "unknown-key":
            raise NodeError(say("nodes.never_asked", node=node, key=words[1]))
        if code == "busy":
            raise NodeUnavailable(say("nodes.busy", node=node, text=text), sent=False)
        if code in _UNKNOWN:
            raise NodeUnavailable(say("nodes.refused", node=node, text=text))
        refused = say("nodes.refused", node=node, text=unstopped(text))
        if code not in _REMEDIES:
            raise NodeError(refused)
        raise NodeError(joined([refused, say(f"nodes.remedy_{code}")], "space"))


def said_by_node(answer: Mapping[str, Any]) -> Said:
    """The node's sentence: by key if this version has it with those arguments, else its own text."""
    match answer.get("said"):
        case {"key": str(key), "args": {**args}} if _SENTENCE.fullmatch(key):
            given = {
                name: part[:_TEXT_MAX] if isinstance(part, str) else part
                for name, part in args.items()
                if isinstance(name, str) and isinstance(part, str | int | float)
            }
            sentence = say(f"nodes.node_{key}", **given)
            if is_worded(sentence):
                return sentence
    return quoted(str(answer.get("text") or "")[:_TEXT_MAX])


def _number(job: str) -> str:
    if not _JOB.fullmatch(job):
        raise ValueError(say("nodes.no_job", job=job))
    return job


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(say("nodes.no_key", key=key))
    return key


# --- parsers: an answer in, a struct of `healer.model` out, or NodeError ---

#: The state of GPUs without a fabric: PCIe cards, and models before Hopper.
_NO_FABRIC = frozenset({"", "N/A", "Not Supported"})
#: Models whose NVLink domain spans several nodes and so needs a cluster and a clique. On nodes with their own
#: NVSwitches both are always zero.
_RACK_SCALE = ("GB200", "GB300")
_TEXT_MAX, _RECORD_MAX = 300, 1000
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: healer-node stops a bundle at 16 MB, plus what it had still to write.
BUNDLE_MOST_BYTES = 24 * 1024 * 1024
#: The largest file of NCCL's flight recorder that healer-node sends.
_DUMP_BYTES = 2 * 1024 * 1024


def read_fabric(node: str, answer: Mapping[str, Any]) -> FabricState:
    """The state of the worst GPU; healthy if no GPU has a fabric. Raises NodeError."""
    gpus = [gpu for gpu in answer.get("gpus", ()) if isinstance(gpu, dict)]
    if not gpus:
        raise NodeError(say("nodes.fabric_no_gpu", node=node))
    if all(gpu.get("state", "") in _NO_FABRIC for gpu in gpus):
        text = say("nodes.fabric_none")
        return FabricState(state="Not Supported", status="N/A", healthy=True, text=text)
    for gpu in gpus:
        if why := _not_up(gpu):
            text = say("nodes.fabric_of_gpu", pci=str(gpu.get("pci", "?")), why=why)
            return FabricState(
                state=str(gpu.get("state", "")), status=str(gpu.get("status", "")), healthy=False, text=text
            )
    text = say("nodes.fabric_up", count=len(gpus))
    return FabricState(state="Completed", status="Success", healthy=True, text=text)


def _not_up(gpu: Mapping[str, Any]) -> Said:
    """Why this GPU is not in the fabric; empty if it is. All four conditions must hold (facts c.7)."""
    state, status = str(gpu.get("state", "")), str(gpu.get("status", ""))
    if (state, status) != ("Completed", "Success"):
        return say(
            "nodes.fabric_state",
            state=state or say("nodes.fabric_no_state"),
            status=status or say("nodes.fabric_no_status"),
        )
    if not any(model in str(gpu.get("product", "")) for model in _RACK_SCALE):
        return NO_WORDS
    if not str(gpu.get("cluster", "")).strip("0-"):
        return say("nodes.fabric_no_cluster")
    if str(gpu.get("clique", "")).strip() in {"", "0", "N/A"}:
        return say("nodes.fabric_no_clique")
    return NO_WORDS


#: Memory fields of a GPU (nvidia-smi -q, facts c.7), in which "Yes" is a fault (`nodes.memory_is_…`). Models
#: have some of them.
_MEMORY = ("pending", "failed", "retirement", "channel", "tpc", "sram", "unrepairable")
#: What the driver may ask for.
_ASKS = ("reset", "reboot", "drain and reset")
_NOT_REPORTED = frozenset({"", "n/a", "[n/a]", "not supported"})


def read_memory(node: str, answer: Mapping[str, Any]) -> MemoryState:
    """Memory faults of the node's GPUs. Raises NodeError for an answer that is neither yes nor no."""
    gpus = [gpu for gpu in answer.get("gpus", ()) if isinstance(gpu, dict)]
    faults = [
        say("nodes.memory_of_gpu", gpu=str(gpu.get("pci", "?")), why=why)
        for gpu in gpus
        for why in _memory_of(node, gpu)
    ]
    return MemoryState(gpus=len(gpus), faults=tuple(faults), shown=_shown(gpus))


def _shown(gpus: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    shown: dict[str, bool] = {}
    for name in (*_MEMORY, "recovery"):
        values = [str(gpu.get(name, "")).lower() for gpu in gpus]
        if not values or not _NOT_REPORTED.isdisjoint(values):
            continue
        if name == "recovery":
            shown |= {f"asks {asked}": asked in values for asked in _ASKS}
        else:
            shown[name] = "yes" in values
    return shown


def _memory_of(node: str, gpu: Mapping[str, Any]) -> Iterator[Said]:
    pci = str(gpu.get("pci", "?"))
    if all(str(gpu.get(name, "")).lower() in _NOT_REPORTED for name in ("pending", "failed", "retirement")):
        raise NodeError(say("nodes.no_memory", node=node, gpu=pci))
    for name in _MEMORY:
        value = str(gpu.get(name, "")).lower()
        if value == "yes":
            yield say(f"nodes.memory_is_{name}")
        elif value != "no" and value not in _NOT_REPORTED:
            raise NodeError(say("nodes.odd_memory", node=node, value=value[:40], gpu=pci))
    asked = str(gpu.get("recovery", ""))
    if asked.lower() not in _NOT_REPORTED | {"none"}:
        yield say("nodes.memory_recovery", asked=asked[:40])


def read_look(node: str, answer: Mapping[str, Any]) -> NodeLook:
    try:
        records = tuple(
            KernelRecord(float(at_s), str(text)[:_RECORD_MAX]) for at_s, text in answer["records"]
        )
        since = answer["log_from_s"]
        return NodeLook(
            up_s=float(answer["up_s"]),
            log_from_s=float(since) if since is not None else None,
            records=records,
            gpu=_gpu_seen(answer["gpu"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(say("nodes.look_unread", node=node, error=str(error))) from error


def _gpu_seen(gpu: Mapping[str, Any] | None) -> GpuSeen:
    """Lost: the driver has it, and nvidia-smi, which answered, does not reach it. An address that the driver
    does not have says nothing."""
    if gpu is None or gpu["reached"] is None:
        return GpuSeen.unknown
    if gpu["reached"] is True:
        return GpuSeen.answers
    return GpuSeen.lost if gpu["known"] is True else GpuSeen.unknown


def read_diagnosis(node: str, key: str, answer: Mapping[str, Any]) -> Diagnosis | None:
    """None while the tests run. Without a verdict it raises NodeError, and a person is asked."""
    state = answer.get("state")
    if state == "running":
        return None
    if state == "failed":
        raise NodeError(say("nodes.tests_not_run", node=node, text=said_by_node(answer)))
    if state != "finished":
        text = said_by_node(answer) or quoted(str(state))
        raise NodeError(say("nodes.tests_no_result", key=key, node=node, text=text))
    output = answer.get("output")
    if not isinstance(output, dict):
        message = str(answer.get("text", ""))[:_TEXT_MAX]
        raise NodeError(say("nodes.tests_no_verdict", node=node, said=message))
    return _verdict(node, output, answer.get("exit"))


def read_reset(node: str, key: str, answer: Mapping[str, Any]) -> Diagnosis | None:
    """None while it runs. A daemon that did not start again counts as a failed reset."""
    state, text = answer.get("state"), said_by_node(answer)
    if state == "running":
        return None
    if state != "finished":
        why = text or quoted(str(state))
        raise NodeError(say("nodes.reset_no_result", key=key, node=node, text=why))
    idle = [str(name) for name in answer.get("not_started") or ()]
    if idle:
        text = say("nodes.reset_not_started", services=", ".join(idle))
        return Diagnosis(passed=False, text=text, failed=tuple(map(quoted, idle)))
    if answer.get("passed") is not True:
        text = say("nodes.reset_ended", code=str(answer.get("exit")), said=text)
        return Diagnosis(passed=False, text=text, failed=(quoted("gpu-reset"),))
    return Diagnosis(passed=True, text=say("nodes.reset_done", what=_what(answer)))


def read_bundle(node: str, key: str, answer: Mapping[str, Any]) -> Bundle | None:
    """None while it is collected. A part that could not be collected is listed among the parts."""
    state, size = answer.get("state"), answer.get("bytes")
    if state == "running":
        return None
    if state != "finished":
        text = said_by_node(answer) or quoted(str(state))
        raise NodeError(say("nodes.collect_no_result", key=key, node=node, text=text))
    digest = str(answer.get("sha256", ""))
    if not isinstance(size, int) or not 0 < size <= BUNDLE_MOST_BYTES or not _SHA256.fullmatch(digest):
        raise NodeError(say("nodes.collect_no_file", node=node, key=key, size=str(size)))
    parts = [part for part in answer.get("parts") or () if isinstance(part, dict)]
    return Bundle(size_bytes=size, sha256=digest, parts=tuple(map(_part_line, parts)))


def _part_line(part: Mapping[str, Any]) -> Said:
    name, count, text = str(part.get("name", "?")), part.get("lines"), said_by_node(part)
    lines = say("words.count_line", count=count if isinstance(count, int) else 0)
    return say("words.labelled", label=name, text=joined(filter(None, (lines, text)), "comma"))


def read_job_stacks(node: str, answer: Mapping[str, Any]) -> JobStacks:
    try:
        stacks = tuple(
            Stack(
                pid=int(stack["pid"]),
                threads={
                    str(thread["name"]): tuple(map(str, thread["frames"])) for thread in stack["threads"]
                },
            )
            for stack in answer["stacks"]
        )
        return JobStacks(processes=len(answer["processes"]), stacks=stacks, text=said_by_node(answer))
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(say("nodes.stacks_unread", node=node, error=str(error))) from error


def read_job_on_node(node: str, answer: Mapping[str, Any]) -> JobOnNode:
    try:
        gpus = tuple(
            GpuActivity(
                pci=str(gpu["pci"]),
                util_percent=_amount(gpu["util"], "%"),
                power_w=_amount(gpu["power"], "W"),
                power_limit_w=_amount(gpu["limit"], "W"),
            )
            for gpu in answer["gpus"]
        )
        dumps = tuple(
            RecorderFile(
                rank=int(dump["rank"]),
                at=datetime.fromtimestamp(float(dump["at"]), UTC),
                data=_unpacked(dump["data"]) if "data" in dump else None,
            )
            for dump in answer["dumps"]
        )
        text = said_by_node(answer)
        counted = answer.get("counted") is True
        return JobOnNode(
            processes=int(answer["processes"]), counted=counted, gpus=gpus, dumps=dumps, text=text
        )
    except (KeyError, TypeError, ValueError, OverflowError, OSError, zlib.error) as error:
        raise NodeError(say("nodes.job_unread", node=node, error=str(error))) from error


def _amount(words: object, unit: str) -> float | None:
    """The number in `98 %` or `412.53 W`; None for `N/A`."""
    found = re.fullmatch(rf"(\d{{1,6}}(?:\.\d+)?) {unit}", str(words))
    return float(found[1]) if found else None


def _unpacked(packed: str) -> bytes:
    """At most `_DUMP_BYTES` of the decompressed file."""
    return zlib.decompressobj(31).decompress(base64.b64decode(packed), _DUMP_BYTES)


def _what(answer: Mapping[str, Any]) -> str:
    what = answer.get("what")
    gpu = what.get("gpu") if isinstance(what, dict) else None
    return say("nodes.reset_all_gpus") if gpu == "all" else str(gpu or "?")


def _verdict(node: str, output: Mapping[str, Any], status: object) -> Diagnosis:
    """DCGM 4's document, or DCGM 3's ("DCGM GPU Diagnostic")."""
    whole = output.get("DCGM Diagnostic") or output.get("DCGM GPU Diagnostic") or {}
    results = list(_results(whole))
    failed = [(name, words) for name, state, words in results if state == "fail"]
    if failed:
        names = tuple(quoted(name) for name in dict.fromkeys(name for name, _ in failed))
        text = "; ".join(f"{name}: {words}" if words else name for name, words in failed)
        return Diagnosis(passed=False, text=say("nodes.tests_failed", tests=text[:_TEXT_MAX]), failed=names)
    if error := whole.get("runtime_error") or output.get("runtime_error"):
        raise NodeError(say("nodes.tests_error", node=node, error=str(error)[:_TEXT_MAX]))
    passed = sum(state == "pass" for _, state, _ in results)
    if not passed or status:
        raise NodeError(say("nodes.tests_unclear", node=node, status=str(status), n=passed))
    warned = [f"{name}: {words}" for name, state, words in results if state == "warn"]
    text = say("nodes.tests_passed", n=passed)
    if warned:
        text = say("nodes.tests_warned", text=text, warnings="; ".join(warned)[:_TEXT_MAX])
    return Diagnosis(passed=True, text=text)


def _results(whole: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(test and its GPU, status in lower case, DCGM's message)"""
    for category in whole.get("test_categories", ()):
        for test in category.get("tests", ()):
            for result in test.get("results", ()):
                name = str(test.get("name", "?"))
                if result.get("entity_group") and "entity_id" in result:
                    name = f"{name} on {result['entity_group']} {result['entity_id']}"
                elif "gpu_ids" in result:
                    name = f"{name} on GPU {result['gpu_ids']}"
                yield name, str(result.get("status", "")).lower(), _warnings(result)


def _warnings(result: Mapping[str, Any]) -> str:
    found = result.get("warnings") or ()
    found = found if isinstance(found, list) else [found]
    return "; ".join(str(item.get("warning", item) if isinstance(item, dict) else item) for item in found)
