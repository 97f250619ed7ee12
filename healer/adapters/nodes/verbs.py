"""`ports.NodeExec` by healer-node's verbs, over any channel that carries one request and its answer."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Protocol

from healer.adapters.nodes import node_answers as answers
from healer.model import Bundle, Diagnosis, FabricState, JobOnNode, JobStacks, MemoryState
from healer.ports.node_exec import NodeError, NodeUnavailable

#: What a program on the node may take to answer, beside the way there: healer-node's own limits are lower.
READ_S, EFFECT_S = 7.5, 4.0
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_JOB = re.compile(r"[1-9][0-9]{0,9}")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,120}")

#: The way out of each code of healer-node, behind the node's own words.
_WAYS_OUT = {
    "refused": "If it should be allowed, VERBS or SERVICES in /etc/healer-node.conf of the node decide.",
    "missing": "Install it there, or name its folder as PROGRAMS in /etc/healer-node.conf.",
    "bad-config": "Correct /etc/healer-node.conf of the node.",
    "no-service": "Install it there, or take it out of the playbook.",
    "no-audit": "Make room for the node's log: without it nothing is changed there.",
}
#: It was not done, or nobody knows; later it may be otherwise.
_UNKNOWN = frozenset({"timed-out", "too-much"})


class Channel(Protocol):
    """Carries one request to healer-node on a node and brings back its document."""

    name: str

    def ask(self, node: str, words: tuple[str, ...], timeout_s: float) -> Mapping[str, Any]:
        """Raises NodeUnavailable without an answer, NodeError where the way there is closed for good."""
        ...


# Wide: implements `ports.NodeExec`.
class NodeVerbs:
    """`ports.NodeExec`. `level`: how deep DCGM's tests go, 1 to 4. `read_s`, `effect_s` bound one call."""

    def __init__(
        self, channel: Channel, *, level: int = 2, read_s: float = READ_S, effect_s: float = EFFECT_S
    ) -> None:
        self.name, self.channel = channel.name, channel
        self._level, self._read_s, self._effect_s = str(level), read_s, effect_s

    def restart_service(self, node: str, service: str) -> None:
        self._ask(node, self._effect_s, "service-restart", service)

    def service_active(self, node: str, service: str) -> bool:
        return self._ask(node, self._read_s, "service-status", service).get("active") is True

    def fabric_state(self, node: str) -> FabricState:
        return answers.fabric(node, self._ask(node, self._read_s, "fabric-state"))

    def memory_state(self, node: str) -> MemoryState:
        return answers.memory(node, self._ask(node, self._read_s, "memory-state"))

    def start_diagnosis(self, node: str, key: str) -> None:
        self._ask(node, self._effect_s, "diagnose-start", _checked(key), self._level)

    def diagnosis(self, node: str, key: str) -> Diagnosis | None:
        return answers.diagnosis(node, key, self._ask(node, self._read_s, "diagnose-show", _checked(key)))

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        if gpu != "all" and not _PCI.fullmatch(gpu):
            raise ValueError(f"{gpu!r} is no GPU's PCI address")
        self._ask(node, self._read_s, "gpu-reset", _checked(key), gpu)

    def reset(self, node: str, key: str) -> Diagnosis | None:
        return answers.reset(node, key, self._ask(node, self._read_s, "gpu-reset-show", _checked(key)))

    def start_collection(self, node: str, key: str) -> None:
        self._ask(node, self._effect_s, "collect", _checked(key))

    def collection(self, node: str, key: str) -> Bundle | None:
        return answers.bundle(node, key, self._ask(node, self._read_s, "collect-show", _checked(key)))

    def read_collection(self, node: str, key: str, start: int) -> bytes:
        told = self._ask(node, self._read_s, "collect-read", _checked(key), str(start))
        try:
            return base64.b64decode(str(told.get("data", "")), validate=True)
        except binascii.Error as error:
            raise NodeError(f"{node} sent something else than the bytes of {key}.") from error

    def job_stacks(self, node: str, job: str) -> JobStacks:
        return answers.job_stacks(node, self._ask(node, self._read_s, "job-stacks", _number(job)))

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        return answers.job_on_node(node, self._ask(node, self._read_s, "job-recorder", _number(job)))

    def identify(self, node: str) -> Mapping[str, Any]:
        """Boot id, driver, GPUs with UUID and serial number."""
        return self._ask(node, self._read_s, "identify")

    def _ask(self, node: str, timeout_s: float, *words: str) -> Mapping[str, Any]:
        told = self.channel.ask(node, words, timeout_s)
        if told.get("ok") is True:
            return told
        code, text = str(told.get("code", "")), str(told.get("text", "")) or "it gave no reason"
        if code == "unknown-key":
            raise NodeError(f"{node} was never asked for {words[1]}.")
        if code == "busy":
            raise NodeUnavailable(f"{node} is busy: {text}.", sent=False)
        if code in _UNKNOWN:
            raise NodeUnavailable(f"{node}: {text}.")
        way_out = _WAYS_OUT.get(code, "")
        raise NodeError(f"{node}: {text.rstrip('.')}.{' ' if way_out else ''}{way_out}")


def _number(job: str) -> str:
    if not _JOB.fullmatch(job):
        raise ValueError(f"{job!r} is no number of a job")
    return job


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} cannot name tests on a node")
    return key
