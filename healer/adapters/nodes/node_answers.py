"""What healer-node's documents mean. Pure: a document in, one of `healer.model` out, or NodeError."""

import base64
import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from healer.model import (
    Bundle,
    Diagnosis,
    FabricState,
    GpuActivity,
    JobOnNode,
    JobStacks,
    MemoryState,
    RecorderFile,
    Stack,
)
from healer.ports.node_exec import NodeError

#: What a GPU says of a fabric that it has no part in: cards on PCIe, and models before Hopper.
_NO_FABRIC = frozenset({"", "N/A", "Not Supported"})
#: Models whose NVLink domain joins several nodes: there a clique and a cluster are part of a whole fabric. On
#: nodes with NVSwitches of their own both are always zero.
_RACK_SCALE = ("GB200", "GB300")
_TEXT_MAX = 300
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: healer-node ends a bundle at 16 MB; what it had still to write comes on top.
BUNDLE_MOST_BYTES = 24 * 1024 * 1024
#: The largest file of NCCL's recorder that healer-node carries.
_DUMP_BYTES = 2 * 1024 * 1024


def fabric(node: str, told: Mapping[str, Any]) -> FabricState:
    """The worst GPU's words. Where no GPU knows a fabric there is none to be broken. Raises NodeError."""
    gpus = [gpu for gpu in told.get("gpus", ()) if isinstance(gpu, dict)]
    if not gpus:
        raise NodeError(f"nvidia-smi on {node} shows no GPU, so nothing is known of its fabric.")
    if all(gpu.get("state", "") in _NO_FABRIC for gpu in gpus):
        text = "no GPU of it tells of an NVLink fabric: nothing to check"
        return FabricState(state="Not Supported", status="N/A", healthy=True, text=text)
    for gpu in gpus:
        if why := _not_up(gpu):
            text = f"fabric of GPU {gpu.get('pci', '?')}: {why}"
            return FabricState(
                state=str(gpu.get("state", "")), status=str(gpu.get("status", "")), healthy=False, text=text
            )
    text = f"fabric Completed: Success on {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
    return FabricState(state="Completed", status="Success", healthy=True, text=text)


def _not_up(gpu: Mapping[str, Any]) -> str:
    """Why this GPU is not in the fabric; empty: it is. All four have to hold (facts c.7)."""
    state, status = str(gpu.get("state", "")), str(gpu.get("status", ""))
    if (state, status) != ("Completed", "Success"):
        return f"{state or 'no state'}: {status or 'no status'}"
    if not any(model in str(gpu.get("product", "")) for model in _RACK_SCALE):
        return ""
    if not str(gpu.get("cluster", "")).strip("0-"):
        return "Completed, but in no cluster (its UUID is zero)"
    if str(gpu.get("clique", "")).strip() in {"", "0", "N/A"}:
        return "Completed, but in no clique"
    return ""


#: What a GPU may say of its memory (nvidia-smi -q, facts c.7), and what "Yes" to it means. A model tells
#: what it has.
_MEMORY = {
    "pending": "a row waits to be remapped",
    "failed": "a row could not be remapped",
    "retirement": "a page waits to be retired",
    "channel": "a channel waits to be repaired",
    "tpc": "a part of the chip waits to be repaired",
    "sram": "too many errors in its on-chip memory",
}
_NOT_TOLD = frozenset({"", "n/a", "[n/a]", "not supported"})


def memory(node: str, told: Mapping[str, Any]) -> MemoryState:
    """What is not well with the memory of the node's GPUs. NodeError where one says neither yes nor no."""
    gpus = [gpu for gpu in told.get("gpus", ()) if isinstance(gpu, dict)]
    faults = [f"GPU {gpu.get('pci', '?')}: {why}" for gpu in gpus for why in _memory_of(node, gpu)]
    return MemoryState(gpus=len(gpus), faults=tuple(faults))


def _memory_of(node: str, gpu: Mapping[str, Any]) -> Iterator[str]:
    pci = gpu.get("pci", "?")
    if all(str(gpu.get(name, "")).lower() in _NOT_TOLD for name in ("pending", "failed", "retirement")):
        raise NodeError(f"nvidia-smi on {node} tells nothing of the memory of GPU {pci}.")
    for name, words in _MEMORY.items():
        value = str(gpu.get(name, "")).lower()
        if value == "yes":
            yield words
        elif value != "no" and value not in _NOT_TOLD:
            raise NodeError(f"nvidia-smi on {node} says {value[:40]!r} of the memory of GPU {pci}.")
    asked = str(gpu.get("recovery", ""))
    if asked.lower() not in _NOT_TOLD | {"none"}:
        yield f"the driver asks for {asked[:40]!r}"


def diagnosis(node: str, key: str, told: Mapping[str, Any]) -> Diagnosis | None:
    """None while the tests run. What gave no verdict is no failed test: NodeError, and a person is asked."""
    state = told.get("state")
    if state == "running":
        return None
    if state == "failed":
        raise NodeError(f"The tests of {node} could not be carried out: {told.get('text', '')}.")
    if state != "finished":
        raise NodeError(f"The tests {key} of {node} gave no result: {told.get('text', state)}.")
    output = told.get("output")
    if not isinstance(output, dict):
        raise NodeError(f"dcgmi on {node} printed no verdict: {str(told.get('text', ''))[:_TEXT_MAX]}")
    return _verdict(node, output, told.get("exit"))


def reset(node: str, key: str, told: Mapping[str, Any]) -> Diagnosis | None:
    """None while it runs. A daemon that did not start again is a failed reset: the node is not as it was."""
    state, text = told.get("state"), str(told.get("text", ""))[:_TEXT_MAX]
    if state == "running":
        return None
    if state != "finished":
        raise NodeError(f"The reset {key} on {node} came to nothing: {text or state}.")
    idle = [str(name) for name in told.get("not_started") or ()]
    if idle:
        text = f"{', '.join(idle)} did not start again after it"
        return Diagnosis(passed=False, text=text, failed=tuple(idle))
    if told.get("passed") is not True:
        said = f"nvidia-smi --gpu-reset ended with {told.get('exit')}: {text}"
        return Diagnosis(passed=False, text=said, failed=("gpu-reset",))
    return Diagnosis(passed=True, text=f"the GPU reset is done ({_what(told)})")


def bundle(node: str, key: str, told: Mapping[str, Any]) -> Bundle | None:
    """None while it is made. A part that could not be had is told among the parts, and no error."""
    state, size = told.get("state"), told.get("bytes")
    if state == "running":
        return None
    if state != "finished":
        raise NodeError(f"The logs {key} of {node} were not collected: {told.get('text') or state}.")
    digest = str(told.get("sha256", ""))
    if not isinstance(size, int) or not 0 < size <= BUNDLE_MOST_BYTES or not _SHA256.fullmatch(digest):
        raise NodeError(f"{node} tells of a file {key} that healer does not take: {size} bytes.")
    parts = [one for one in told.get("parts") or () if isinstance(one, dict)]
    return Bundle(size_bytes=size, sha256=digest, parts=tuple(_part(one) for one in parts))


def _part(one: Mapping[str, Any]) -> str:
    lines = f"{one.get('name', '?')}: {one.get('lines', 0)} lines"
    return f"{lines}, {str(one['text'])[:_TEXT_MAX]}" if one.get("text") else lines


def job_stacks(node: str, told: Mapping[str, Any]) -> JobStacks:
    try:
        stacks = tuple(
            Stack(
                pid=int(one["pid"]),
                threads={str(thread["name"]): tuple(map(str, thread["frames"])) for thread in one["threads"]},
            )
            for one in told["stacks"]
        )
        return JobStacks(processes=len(told["processes"]), stacks=stacks, text=str(told["text"])[:_TEXT_MAX])
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(f"{node} told of stacks what healer does not read: {error}") from error


def job_on_node(node: str, told: Mapping[str, Any]) -> JobOnNode:
    try:
        gpus = tuple(
            GpuActivity(
                pci=str(one["pci"]),
                util_percent=_amount(one["util"], "%"),
                power_w=_amount(one["power"], "W"),
                power_limit_w=_amount(one["limit"], "W"),
            )
            for one in told["gpus"]
        )
        dumps = tuple(
            RecorderFile(
                rank=int(one["rank"]),
                at=datetime.fromtimestamp(float(one["at"]), UTC),
                data=_unpacked(one["data"]) if "data" in one else None,
            )
            for one in told["dumps"]
        )
        text = str(told["text"])[:_TEXT_MAX]
        return JobOnNode(processes=int(told["processes"]), gpus=gpus, dumps=dumps, text=text)
    except (KeyError, TypeError, ValueError, OverflowError, OSError, zlib.error) as error:
        raise NodeError(f"{node} told of the job what healer does not read: {error}") from error


def _amount(words: object, unit: str) -> float | None:
    """`98 %`, `412.53 W`; None for `N/A` and its like."""
    found = re.fullmatch(rf"(\d{{1,6}}(?:\.\d+)?) {unit}", str(words))
    return float(found[1]) if found else None


def _unpacked(packed: str) -> bytes:
    """No more than healer-node carries of one file."""
    return zlib.decompressobj(31).decompress(base64.b64decode(packed), _DUMP_BYTES)


def _what(told: Mapping[str, Any]) -> str:
    what = told.get("what")
    gpu = what.get("gpu") if isinstance(what, dict) else None
    return "all GPUs" if gpu == "all" else str(gpu or "?")


def _verdict(node: str, output: Mapping[str, Any], status: object) -> Diagnosis:
    """DCGM 4's document, or DCGM 3's ("DCGM GPU Diagnostic")."""
    whole = output.get("DCGM Diagnostic") or output.get("DCGM GPU Diagnostic") or {}
    results = list(_results(whole))
    failed = [(name, words) for name, state, words in results if state == "fail"]
    if failed:
        names = tuple(dict.fromkeys(name for name, _ in failed))
        said = "; ".join(f"{name}: {words}" if words else name for name, words in failed)
        return Diagnosis(passed=False, text=f"tests failed: {said[:_TEXT_MAX]}", failed=names)
    if error := whole.get("runtime_error") or output.get("runtime_error"):
        raise NodeError(f"dcgmi on {node} could not test it: {str(error)[:_TEXT_MAX]}")
    passed = sum(state == "pass" for _, state, _ in results)
    if not passed or status:
        raise NodeError(f"dcgmi on {node} ended with {status}, {passed} tests passed and none failed.")
    warned = [f"{name}: {words}" for name, state, words in results if state == "warn"]
    text = f"all {passed} tests passed" + (f"; warnings: {'; '.join(warned)}" if warned else "")
    return Diagnosis(passed=True, text=text[:_TEXT_MAX])


def _results(whole: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(test and its GPU, status in small letters, DCGM's words)"""
    for category in whole.get("test_categories", ()):
        for test in category.get("tests", ()):
            for one in test.get("results", ()):
                name = str(test.get("name", "?"))
                if one.get("entity_group") and "entity_id" in one:
                    name = f"{name} on {one['entity_group']} {one['entity_id']}"
                elif "gpu_ids" in one:
                    name = f"{name} on GPU {one['gpu_ids']}"
                yield name, str(one.get("status", "")).lower(), _words(one)


def _words(result: Mapping[str, Any]) -> str:
    told = result.get("warnings") or ()
    told = told if isinstance(told, list) else [told]
    return "; ".join(str(one.get("warning", one) if isinstance(one, dict) else one) for one in told)
