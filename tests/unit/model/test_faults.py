"""What the names of faults say."""

import pytest

from healer.model.faults import (
    NODE_SILENT,
    Trait,
    are_independent_parts,
    check_of,
    code_of,
    fault_is,
    faults_with,
    heads_with,
    once,
    silences_behind,
)


@pytest.mark.parametrize(
    ("trait", "those", "others"),
    [
        (Trait.watched, "node-offline jobs-waiting:a:b jobs-held:x accounting-away", "node-silent"),
        (Trait.drain, "person-drain slurm-drain:x foreign-drain:ansible", "healer-drain"),
        (Trait.slurm_drain, "slurm-drain:prolog", "person-drain"),
        (
            Trait.follows_lost_gpu,
            "xid-74 xid-14 xid-145 sxid-20034 driver-asks-reset",
            "xid-13 xid-79 gpu-lost",
        ),
        (Trait.lost_gpu, "xid-79 gpu-lost", "xid-790 gpu-hot"),
        (Trait.gpu_line, "xid-13 gpu-lost driver-asks-reset", "sxid-20034 nic-link-down"),
        (Trait.several_at_once, "drift:driver:570 jobs-waiting:gpu:Priority", "node-offline"),
        (Trait.of_past, "lemon lemon-node forecast-ecc drifted unusual-node", "xid-48 slower-than-fleet"),
        (Trait.alert, "alert:HostDown", "hook:HostDown"),
    ],
)
def test_a_name_or_its_head_says_what_is_true_of_a_fault(trait: Trait, those: str, others: str) -> None:
    assert all(fault_is(one, trait) for one in those.split())
    assert not any(fault_is(one, trait) for one in others.split())


def test_a_fault_has_the_traits_of_every_row_that_fits() -> None:
    assert (
        fault_is("xid-79", Trait.gpu) and fault_is("xid-79", Trait.coded) and fault_is("xid-79", Trait.sticky)
    )


def test_full_names_and_prefixes_are_distinguished() -> None:
    assert "node-silent" in faults_with(Trait.by_code) and "hook:" in heads_with(Trait.by_code)
    assert not any(name.endswith((":", "*")) for name in faults_with(Trait.by_code))


def test_only_parts_that_are_known_are_other_parts() -> None:
    assert are_independent_parts("xid-79", "nic-link-down")
    assert not are_independent_parts("xid-79", "repeats:sxid-1")
    assert not are_independent_parts("xid-79", "task-hung")


def test_fault_name_contains_its_code_check_and_repeated_fault() -> None:
    assert [code_of(one) for one in ("xid-79", "repeats:sxid-3", "driver-asks-reset", "gpu-lost")] == [
        "Xid 79",
        "SXid 3",
        "Xid 154",
        "",
    ]
    assert (check_of("hook:fs-full"), check_of("fs-full")) == ("fs-full", None)
    assert (once("repeats:xid-31"), once("xid-31")) == ("xid-31", "xid-31")


def test_a_silent_rack_explains_its_nodes_silences() -> None:
    assert {NODE_SILENT, "node-offline", "rack-offline"} <= silences_behind("rack-silent")
    assert silences_behind("xid-79") == frozenset()
