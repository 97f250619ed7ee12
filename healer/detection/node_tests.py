"""What a sweep's tests of a node in service found. What follows is the rules': one answer drains nobody."""

from collections.abc import Sequence

from healer.model import Command, CommandKind, Component, Evidence, FaultClass, Finding, Sense
from healer.signals.identity import digest_of

#: What a fault of this kind begins with: `node-test:answers`; `node-test:compared` where all tests passed and
#: a figure is worse than on the good node.
FAULT = "node-test:"
#: Answers that no test of its own gave: a figure below the good node's; found by halves of a job's nodes.
_FAILED = {"compared": "is worse than the good node", "together": "is slower than its like"}


def findings(cluster: str, commands: Sequence[Command]) -> list[Finding]:
    """One for each test that failed. Its rule is the caller's to find."""
    return [_finding(cluster, one) for one in commands if one.kind is CommandKind.test_failed]


def _finding(cluster: str, told: Command) -> Finding:
    node, test, says = (str(told.data[name]) for name in ("node", "test", "says"))
    where = Component(cluster=cluster, node=node)
    failed = _FAILED.get(test, f"failed the test {test}")
    text = f"{node} {failed} while it was idle: {says}"
    evidence = Evidence(
        # Of one run the same, however often a worker that died told it.
        digest=digest_of("node-test", str(told.data["run"]), test),
        at=told.at,
        component=where,
        text=text,
        arrived_at=told.at,
        sense=Sense.hook,
    )
    return Finding(
        rule="",
        fault=f"{FAULT}{test}",
        fault_class=FaultClass.degraded,
        component=where,
        at=told.at,
        arrived_at=told.at,
        text=text,
        title=f"{node} {failed}",
        confidence=1.0,
        evidence=(evidence,),
        # The job that it made slow: what was told of that is explained by it.
        jobs=(str(told.data["job"]),) if told.data.get("job") else (),
    )
