"""What goes on at a node, in the words that people read."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healer.decisions.node_facts import context_of
from healer.engine.upkeep import note_inventories
from healer.incidents.context import ContextTable, table_of
from healer.model import (
    ContextKind,
    Inventory,
    Maintenance,
    NodeContext,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.observations import Picture
from tests.support.loop import CLUSTER, START, Site, beat, later, name, rules_in, shipped

RULES = shipped()


def shown(
    *,
    node_inventory: Inventory | None = None,
    job_began: float | None = None,
    reservation: Reservation | None = None,
    rules: Any = RULES,
    age_s: float = 0,
    **node: Any,
) -> list[NodeContext]:
    """What is said at 03:00 of gpu0001, whose picture is `age_s` old; `job_began` seconds before."""
    here = SlurmNode(name=name(1), **({"state": ("IDLE",), "gpus": 8} | node))
    jobs = {}
    if job_began is not None:
        began = START - timedelta(seconds=job_began)
        jobs = {"7": SlurmJob(id="7", state="RUNNING", nodes=(name(1),), start_at=began)}
    snapshot = SlurmSnapshot(
        cluster=CLUSTER,
        taken_at=START - timedelta(seconds=age_s),
        nodes={name(1): here},
        jobs=jobs,
        reservations={reservation.name: reservation} if reservation else {},
    )
    return list(context_of(rules, snapshot, here, node_inventory, START))


def inventory(**fields: Any) -> Inventory:
    return Inventory(node=name(1), at=START, facts={}, **fields)


def test_nothing_goes_on_at_most_nodes() -> None:
    assert shown(boot_at=START - timedelta(days=9), job_began=3600) == []


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        (
            {"boot_at": START - timedelta(minutes=2)},
            ContextKind.booted,
            "within minutes of a boot until 03:03 UTC",
        ),
        (
            {"node_inventory": inventory(booted_at=START - timedelta(minutes=1))},
            ContextKind.booted,
            "within minutes of a boot until 03:04 UTC",
        ),
        (
            {"node_inventory": inventory(changed={"driver": ("580.65.06", START - timedelta(minutes=4))})},
            ContextKind.new_driver,
            "driver update until 03:06 UTC: its driver changed to 580.65.06 at 02:56:00 UTC",
        ),
        ({"job_began": 60}, ContextKind.job_start, "start of its job until 03:02 UTC"),
        (
            {"state": ("IDLE", "POWERED_DOWN")},
            ContextKind.power_saving,
            "Slurm powered it down to save power (IDLE+POWERED_DOWN)",
        ),
        (
            {"state": ("IDLE", "REBOOT_ISSUED")},
            ContextKind.rebooting,
            "it is restarting (IDLE+REBOOT_ISSUED)",
        ),
        (
            {"state": ("IDLE", "DRAIN"), "reason": "swap riser", "reason_user": "jonas"},
            ContextKind.drained,
            "jonas drained it: swap riser",
        ),
        (
            {"state": ("IDLE", "MAINTENANCE")},
            ContextKind.maintenance,
            "planned maintenance: Slurm shows IDLE+MAINTENANCE",
        ),
    ],
)
def test_each_kind_in_plain_words(fields: dict[str, Any], kind: ContextKind, text: str) -> None:
    (one,) = shown(**fields)
    assert (one.kind, one.text) == (kind, text)


def test_planned_work_says_when_it_ends() -> None:
    held = Reservation(
        name="switches",
        nodes=(name(1),),
        maintenance=True,
        since=START,
        until=START + timedelta(hours=30),
        flags=("MAINT",),
    )
    (one,) = shown(state=("IDLE", "MAINTENANCE", "RESERVED"), reservation=held)
    assert one.text.endswith("until 2026-11-21 09:00 UTC")
    assert one.until == held.until


def test_work_that_is_announced_for_later_is_not_the_end_of_what_goes_on_now() -> None:
    announced = Reservation(
        name="upgrade",
        nodes=(name(1),),
        maintenance=True,
        since=START + timedelta(days=14),
        until=START + timedelta(days=15),
    )
    (one,) = shown(state=("IDLE", "MAINTENANCE"), reservation=announced)
    assert one.until is None


def test_the_sites_own_window_is_planned_work_too() -> None:
    window = Maintenance(nodes=(name(1),), why="new firmware", until=START + timedelta(hours=1))
    guards = msgspec.structs.replace(RULES.guards, maintenance=(window,))
    (one,) = shown(rules=rules_in(guards=guards))
    assert one.text == "planned maintenance: new firmware until 04:00 UTC"


@pytest.mark.parametrize(
    "reason", ["healer:gpu-lost inc:12345678 gone", "Kill task failed", "Not responding"]
)
def test_a_drain_that_is_no_persons_is_no_context(reason: str) -> None:
    assert shown(state=("IDLE", "DRAIN"), reason=reason, reason_user="slurm") == []


def test_an_old_picture_says_nothing_of_now() -> None:
    assert shown(state=("IDLE", "MAINTENANCE"), age_s=301) == []
    assert shown(state=("IDLE", "MAINTENANCE"), age_s=299) != []


def test_earlier_boots_changes_and_job_starts_are_not_shown() -> None:
    assert shown(boot_at=START - timedelta(minutes=5)) == []
    assert (
        shown(node_inventory=inventory(changed={"driver": ("580.65.06", START - timedelta(minutes=10))}))
        == []
    )
    assert shown(job_began=180) == []


# --- what is kept of the node's own word --------------------------------------------------------------------


def kept(site: Site) -> Inventory | None:
    return site.ledger.tables.inventories.get(name(1))


def test_a_boot_that_was_heard_is_kept_with_its_moment_and_read_again() -> None:
    site = Site(2)
    site.walk(beat(name(1), site.now, boot_id="b1"))
    assert kept(site) is None
    site.clock.advance(60)
    site.walk(beat(name(1), site.now, boot_id="b2"))
    found = kept(site)
    assert found is not None and found.booted_at == later(60)
    again = Picture(CLUSTER, watching_since=site.now)
    again.load_inventories([found])
    assert again.node(name(1)).booted_at == later(60)


def test_another_driver_in_slurms_picture_is_kept_and_read_again() -> None:
    picture = Picture(CLUSTER, watching_since=START)
    for seconds, driver in ((0, "570.86.15"), (30, "580.65.06")):
        node = SlurmNode(name=name(1), state=("IDLE",), driver=driver)
        picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=later(seconds), nodes={name(1): node}))
    site = Site(2)
    with site.ledger.transaction() as tx:
        note_inventories(tx, picture, later(31))
    found = kept(site)
    assert found is not None
    assert (found.at, found.changed) == (later(30), {"driver": ("580.65.06", later(30))})
    again = Picture(CLUSTER, watching_since=later(60))
    again.load_inventories([found])
    assert again.new_versions == picture.new_versions


# --- the table ----------------------------------------------------------------------------------------------


def test_the_table_has_the_entries_of_a_fault_in_their_order_and_is_one_for_a_set_of_rules() -> None:
    table = table_of(RULES.context)
    assert [one.name for one in table.of("gpu-count-low")] == [
        "power-saving", "starting", "planned-work", "just-worked-on", "just-booted", "new-driver",
        "owner-has-it",
    ]  # fmt: skip
    assert table.of("person-drain") == ()
    assert [one.name for one in table.of("xid-79")] == ["planned-work", "owner-has-it"]
    assert table_of(rules_in().context) is table


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("healer.incidents.context._FAULTS_KEPT", 10)
    table = ContextTable(RULES.context)
    for number in range(25):
        assert [one.name for one in table.of(f"hook:{number}")][:1] == ["power-saving"]
    assert len(table._known) <= 10
