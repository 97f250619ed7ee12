"""What decisions, steps, runs, incidents, findings and adapters say is known in Chinese.

healer puts most of these sentences together out of parts. A part is known where it is one by itself, or where
a finished sentence of `engine_sentences.txt` holds it; each of those has to be Chinese from end to end.
"""

from enum import StrEnum
from pathlib import Path

import pytest
from healer.console.language import Catalogue, load

from healer.console.render import web_dir
from healer.model import (
    AnswerKind,
    BreakerState,
    Cause,
    FaultClass,
    IncidentState,
    Mode,
    NodeStatus,
    Outcome,
    Remedy,
    Review,
    Role,
    RunState,
    Sense,
    StepEvent,
    Verb,
    Verdict,
)
from tests.support.sentences import Reader, Sentence, modules, sentences

pytestmark = pytest.mark.heavy

CATALOGUE: Catalogue = load(web_dir() / "words" / "zh")
FINISHED = [
    line
    for line in (Path(__file__).parent / "engine_sentences.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
#: Programs, states and words of commands that are the same in every language, and data of a site.
_KEPT = frozenset(
    """sbatch scontrol update validate release prolog gpu root admin comment On true false use law Fabric
    Manager Tensor Core Completed Success clique dcgmi ssh sshd tidy""".split()  # noqa: SIM905
)
READER = Reader(CATALOGUE, _KEPT)

WORDS: list[type[StrEnum]] = [
    AnswerKind, BreakerState, Cause, FaultClass, IncidentState, Mode, NodeStatus, Outcome, Remedy, Review,
    Role, RunState, Sense, StepEvent, Verb, Verdict,
]  # fmt: skip

#: Files whose texts no page shows, and why.
UNSHOWN = {
    "tell_people.py": "the bodies of tickets and messages, in their readers' language; words for owners",
    "news.py": "the bodies of messages and tickets",
    "telemetry_windows.py": "for who calls it wrongly",
    "language": "for who writes a rule, beside the line that is wrong",
}

#: Texts that no page shows as words, and why.
SILENT = {
    "decisions/capacity.py": {
        "max_share, max_nodes": "names of settings",
        "sweep.max_share, sweep.max_nodes": "same",
    },
    "decisions/sweeps.py": {"Resources": "Slurm's word", "Priority": "Slurm's word"},
    "actions/node_work.py": {
        "dmesg; nvidia-smi -q; nvidia-bug-report.sh": "commands",
        "nvidia-smi -q | grep -A 4 Fabric": "a command",
        "nvidia-smi -q -d ROW_REMAPPER,ECC": "a command",
    },
    "actions/base.py": {"{}{} inc:{} {}": "the reason of a drain, as it stands in Slurm"},
    "actions/group_job.py": {"{} {}, {} % of {}": "figures"},
    "actions/test_form.py": {"says (\\S+) (.{1,160})": "a pattern"},
    "incidents/book.py": {"hard node": "a key"},
    "incidents/incident_verdict.py": {"Prometheus": "a name", "Lustre": "a name"},
    "detection/watches.py": {"{} ({}, from {})": "names"},
    "detection/readings.py": {"fallen off the bus": "the driver's words", "Correctable": "the driver's word"},
    "detection/measured.py": {" (before {}{})": "before a sentence of its own"},
    "adapters/nodes/verbs.py": {
        "Not Supported": "nvidia-smi's words",
        "{}: {} lines": "names of files",
        "DCGM Diagnostic": "dcgmi's words",
        "DCGM GPU Diagnostic": "dcgmi's words",
    },
    "adapters/nodes/request_signing.py": {"healer-node 1": "what is signed"},
    "adapters/nodes/ssh.py": {
        "IDENTIFICATION HAS CHANGED": "ssh's words",
        "Host key verification failed": "ssh's words",
        "host key is known for": "ssh's words",
        "Permission denied": "ssh's words",
    },
    "engine/drive.py": {"undo {}": "a key"},
}


def _modules() -> list[Path]:
    found = modules(
        "decisions", "actions", "playbooks", "incidents", "telling/news.py",
        "telling/news.py", "detection", "observations", "adapters/bmc",
        "adapters/nodes", "adapters/commands", "engine/drive.py", "engine/walk.py",
        "engine/decide_incidents.py",
        "engine/permission.py", "ports/lease.py", "engine/upkeep.py",
        "model/node.py", "model/routes.py", "model/component.py",
    )  # fmt: skip
    return [
        one for one in found if one.name not in {"__init__.py", *UNSHOWN} and one.parent.name not in UNSHOWN
    ]


def _holds(finished: str, part: str) -> bool:
    """The words of the part, in their order."""
    at = 0
    for words in filter(None, part.strip().split("{}")):
        at = finished.find(words, at)
        if at < 0:
            return False
        at += len(words)
    return True


def _is_no_sentence(one: Sentence) -> bool:
    """Patterns of the code, names of signals, keys of a BMC's JSON."""
    pattern = any(sign in one.text for sign in ("(?", ".*", "\\S", "|"))
    signals = all("_" in word for word in one.text.split())
    return pattern or signals or (one.module.startswith("adapters/bmc") and one.text.isalpha())


@pytest.mark.parametrize("path", _modules(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_a_module_says_is_known(path: Path) -> None:
    unknown = [
        f"{one.module}:{one.line}: {one.text}"
        for one in sentences(path)
        if one.text not in SILENT.get(one.module, ())
        and not _is_no_sentence(one)
        and not READER.understands_some(one.text)
        and not any(_holds(finished, one.text) for finished in FINISHED)
    ]
    assert unknown == []


def test_finished_sentences_are_chinese_from_end_to_end() -> None:
    assert {text: CATALOGUE.translate(text) for text in FINISHED if not READER.understands(text)} == {}


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.__name__)
def test_each_word_of_a_closed_list_is_known(kind: type[StrEnum]) -> None:
    assert [one.value for one in kind if not READER.understands(one.value)] == []


@pytest.mark.parametrize(
    ("english", "said"),
    [
        (
            "held: 1 of 1 slots of this hour used, the next is free at 04:00 on 20 Nov UTC.",
            "暂缓：本小时已用名额 1/1，下一个名额于 11 月 20 日 04:00 UTC 空出。",
        ),
        (
            "GPU 3 of gpu1 fell off the bus (Xid 79, certain); the node cannot be used until it is rebooted; "
            "job 7 crashed with it; its other 3 nodes are well.",
            "gpu1 的 GPU 3 从总线掉线（Xid 79，确定）；该节点在重启之前不可用；"
            "作业 7 随之崩溃；其余 3 个节点正常。",
        ),
        ("Drained: healer:gpu-lost inc:0a1b2c3d x", "已排空：healer:gpu-lost inc:0a1b2c3d x"),
        # A word that means something else where it stands alone: a breaker is closed, a person writes a note.
        ("gpu1: drained by jonas: no reason given", "gpu1：由 jonas 排空：未说明原因"),
        ("gpu1: drained by jonas: swap riser", "gpu1：由 jonas 排空：swap riser"),
        ("P0 over: gpu1 GPU 3: GPU fell off the bus", "P0 已结束：gpu1 GPU 3：GPU 从总线掉线"),
        ("over: fixed", "已结束：fixed"),
        ("Closed: by a person", "已关闭：由人员关闭"),
        ("note: P1 gpu1 GPU 3: GPU fell off the bus", "通知：P1 gpu1 GPU 3：GPU 从总线掉线"),
    ],
)
def test_sentences_within_sentences(english: str, said: str) -> None:
    assert CATALOGUE.translate(english) == said
