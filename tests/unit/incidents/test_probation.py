"""After a return a node is on probation for a week: a fault of the same part is a relapse."""

import pytest

from healer.model import CommandKind, Incident, Mode, Severity
from tests.support.loop import Site, name, rules_in

PCI = "NVRM: Xid (PCI:0000:9b:00): "
PENDING = PCI + "63, pid=7, Row Remapper: New row marked for remapping, reset gpu to activate."
OTHER = PENDING.replace("9b", "3b")
UNCONTAINED = PCI + "95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: No, D-RST: No"


class Gpu:
    def __init__(self, line: str) -> None:
        self.site = Site(4, mode=Mode.shadow)
        self.first = self.fails(line)

    def fails(self, line: str, days: float = 0.1) -> Incident:
        self.site.rules = rules_in(Mode.shadow)
        self.site.clock.advance(days * 86400)
        known = {one.id for one in self.site.incidents}
        self.site.walk(*self.site.say(1, line))
        (found,) = (one for one in self.site.incidents if one.id not in known)
        return found

    def ends(self, kind: CommandKind, one: Incident) -> None:
        self.site.clock.advance(5)
        at = self.site.now.isoformat()
        since = {"since": at, "cleared_at": at, "repaired": True}
        self.site.send_command(kind, incident=one.id, node=name(1), **since)
        self.site.walk()


def relapse(one: Incident) -> list[str]:
    return [said.text for said in one.evidence if said.text.startswith("A relapse")]


def test_a_fault_of_the_same_part_is_one_severity_more_urgent() -> None:
    gpu = Gpu(PENDING)
    gpu.ends(CommandKind.node_returned, gpu.first)
    again = gpu.fails(PENDING, days=3)
    assert (gpu.first.severity, again.severity) == (Severity.P2, Severity.P1)
    assert relapse(again) == [
        f"A relapse: the node has been on probation since {gpu.first.short_id}: P1, not P2"
    ]


@pytest.mark.parametrize(
    ("line", "days", "ended"),
    [
        (PENDING, 7.1, CommandKind.node_returned),  # probation is over by itself
        (OTHER, 3, CommandKind.node_returned),  # another GPU of the node
        (PENDING, 3, CommandKind.resolve),  # it never was taken out and returned
    ],
)
def test_fault_that_is_no_relapse_keeps_its_usual_severity(
    line: str, days: float, ended: CommandKind
) -> None:
    gpu = Gpu(PENDING)
    gpu.ends(ended, gpu.first)
    later = gpu.fails(line, days)
    assert later.severity is gpu.first.severity and relapse(later) == []


def test_nothing_is_raised_above_p1() -> None:
    gpu = Gpu(UNCONTAINED)
    gpu.ends(CommandKind.node_returned, gpu.first)
    again = gpu.fails(UNCONTAINED)
    assert again.severity is gpu.first.severity and relapse(again) == []
