"""No sentence for people is made without a key: no text of the rooms that speak reads like one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.sayings import PACKAGE

ROOMS = (
    "decisions", "engine", "incidents", "telling", "actions", "playbooks", "console/views", "signals",
    "adapters", "api", "embedded", "processes", "backups", "importing", "ports", "audit", "bootstrap",
    "topology", "recordings", "observations", "hooks",
)  # fmt: skip
#: The documents of the API and of Prometheus stay English; Slurm's own messages are compared with,
#: or read from its logs.
_OTHERS = (
    "api/documents.py", "api/metrics.py", "adapters/postgres/tables.py", "adapters/postgres/roles.py",
    "adapters/slurm/slurm_words.py", "importing/controller_log.py", "importing/node_log.py",
)  # fmt: skip
_DOCUMENTS = frozenset({"answers", "counter"})
_SQL = re.compile(
    r"\b(?:SELECT|(?:CREATE|ALTER|DROP) (?:ROLE|DATABASE)|(?:RE)?SET SESSION|"
    r"SET LOCAL|LOCK TABLE|ORDER BY|INSERT INTO|UPDATE \w+ SET|COMMENT ON|COPY \w+|pg_\w+)\b"
)
#: Three words in a row, with a hole for what is known only when it runs.
_SENTENCE = re.compile(r"(?:[A-Za-z\u2019']{2,}|\{\})(?:,? [A-Za-z\u2019']{2,}){2,}")
#: What reads like one and is none, or stays English: why.
PLAIN = {
    "the reason of a freed slot, for the database alone": (
        "Slurm no longer knows the node",
        "its run ended before the node was drained",
        "{}'s drain came first",
        "the drain was undone",
        "the node returned to service",
    ),
    "a comment of Slurm": ("Nothing was done to the job",),
    "what programs wait for": ("healer is ready: {}",),
    "a name in the audit and in lists": (
        "a recovery in place",
        "every signal of the catalogue",
        "healer api acting",
    ),
    "a command": ("sacctmgr modify user {} set AdminLevel=Administrator",),
    "for the log": (
        "healer up was killed; ending {} processes",
        "more than {} s or {} samples: the rest fills by itself",
        "it is {} UTC, and the last look was {}",
        "it is {} UTC, and windows go beyond that",
        "run {} was paused before its effect",
        "run {} could not be proven in time",
    ),
    "why a delivery failed, as its row keeps it": (
        "rules/notifications.yaml names this channel no longer",
        "the process that made the last try ended before its answer was noted",
    ),
    "what Slurm shows of a test": ("healer: its turn to be tested",),
    "what incidents of older versions say": ("nobody tells of it any more",),
    "an error for who wrote the code": (
        "no rule takes the fault {} ({})",
        "open_own takes every finding",
        "the sealer's lock is not held",
        "a made-up token was proven",
        "advance() comes before put()",
    ),
    "for the log, or why a worker goes on later": (
        "run {} was claimed by another worker or ended by a person",
        "the session that held run {} is gone",
        "run {} is not held",
        "the database answers too slowly to prove that run {} is held",
        "the standby's confirmation of a commit was not waited for",
        "no time is left",
        "the first line is not the head of a job",
        "unknown series, losses, senders",
        "{} is no call of this process",
    ),
    "a name in the audit and in credentials": ("healer enroll job", "munge, root at {}"),
    "output of a command, as the step keeps it": ("could not be started: {}",),
    "translated as a whole, by its English": (
        "Signals for the detector",
        "Runs for the workers",
        "Audit records for the seal",
        "healer cannot read this job: ",
    ),
    "words of others": (
        "IDENTIFICATION HAS CHANGED",
        "Host key verification failed",
        "host key is known for",
        "drain and reset",
        "Check free disk space",
        "DCGM GPU Diagnostic",
        "{} on GPU {}",
        "Node {} not found",
        "scontrol show reservation",
        "secondary rate limit",
        "gpu is lost",
        "gpu requires reset",
        "unable to determine the device handle",
        "requested functionality has been deprecated",
        "elapsed time per iteration (ms)",
        "(?:fallen off the bus and is not responding to commands\\.?|"
        "installed in this system is not supported by the)",
    ),
}


def _texts(tree: ast.AST) -> Iterator[str]:
    """Without docstrings, arguments of `say`, and what is raised for who calls it wrongly."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Call(func=ast.Name(id="say")):
                for argument in node.keywords:
                    yield from _texts(argument)
                continue
            case ast.Raise(exc=ast.Call(func=ast.Name(id="ValueError" | "TypeError" | "KeyError"))):
                continue
            case (
                ast.Call(func=ast.Attribute(value=ast.Name(id="log")))
                | ast.Call(func=ast.Attribute(value=ast.Name(id="re")))
            ):
                continue
            case ast.Call(func=ast.Name(id=name)) if name in _DOCUMENTS:
                continue
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr():
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
                )
            case _:
                yield from _texts(node)


def _plain(path: Path) -> list[str]:
    """A text of several lines is a script."""
    texts = _texts(ast.parse(path.read_text("utf-8")))
    return [
        text for text in texts
        if _SENTENCE.search(text) and "\n" not in text and not _SQL.search(text) and "<html" not in text
    ]  # fmt: skip


def test_no_sentence_is_made_without_a_key() -> None:
    known = {text for texts in PLAIN.values() for text in texts}
    paths = (
        path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))
        if str(path.relative_to(PACKAGE)) not in _OTHERS
    )  # fmt: skip
    found = {
        f"{path.relative_to(PACKAGE)}: {text}" for path in paths for text in _plain(path) if text not in known
    }
    assert found == set()
