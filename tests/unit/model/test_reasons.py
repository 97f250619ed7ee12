"""Whose a reason is: Slurm's own strings (d.9 of the facts) and those of other programs (c.5)."""

import pytest

from healer.model import OwnerKind
from healer.model.slurm import is_empty_reason, owner_of, slurm_kind

_BOUNDS = "doesn't match socket boundaries"
SLURMS_OWN = [
    ("Not responding", "not-responding"),
    ("Node unexpectedly rebooted", "rebooted"),
    ("Prolog error", "prolog-error"),
    ("Job env setup error", "job-environment"),
    ("Epilog error", "epilog-error"),
    ("Kill task failed", "kill-task-failed"),
    ("Kill task failed (JobId=4711 StepId=batch)", "kill-task-failed"),
    ("Job step not running", "kill-task-failed"),
    ("Job step not running (JobId=4711 StepId=0)", "kill-task-failed"),
    ("batch job complete failure", "batch-failure"),
    ("Low RealMemory (reported:1 < 100.00% of configured:2)", "low-resources"),
    ("Low socket*core*thread count", "low-resources"),
    ("Low socket*core*thread count, Low CPUs", "low-resources"),
    ("Low TmpDisk", "low-resources"),
    ("Low CPUs, gres/gpu count reported lower than configured (7 < 8)", "low-resources"),
    ("gres/gpu count reported lower than configured (7 < 8)", "gres-count"),
    ("gres/gpu count too low (0 < 8)", "gres-count"),
    ("gres/gpu:h100 count too low (7 < 8)", "gres-count"),
    ("gres/gpu count changed and jobs are using them (8 != 7)", "gres-count"),
    ("gres/gpu type changed and jobs are using them", "gres-count"),
    ("gres/gpu type (h200) reported but not configured", "gres-count"),
    ("Low RealMemory (reported:1 < 100.00% of configured:2), CoreSpec differ", "low-resources"),
    ("Bad core count", "low-resources"),
    (f"gres/gpu GRES core specification 12-15 {_BOUNDS}. (Socket 0 is cores 0-16)", "low-resources"),
    (
        f"gres/gpu GRES core specification 0-3,8 for node n1 {_BOUNDS}. (Socket 0 is cores 0-7)",
        "low-resources",
    ),
    (
        f"Low CPUs, gres/gpu GRES autodetected core affinity 24-31 on node n1 {_BOUNDS}. "
        "(Socket 0 is cores 0-7). See Socket Affinity section of gres.html for more information.",
        "low-resources",
    ),
    (
        f"gres/gpu GRES autodetected core affinity 24-31 on node n1 {_BOUNDS}. "
        "(Socket 0 is cores 0-31). Consider setting Parameters=l3cache_as_socket as part of the Node "
        "configuration.",
        "low-resources",
    ),
    ("SlurmdSpoolDir is full", "spool-full"),
    ("Duplicate jobid", "duplicate-job"),
    ("Prolog/Epilog failure", "prolog-error"),
    ("Reboot ASAP", "reboot"),
    ("reboot requested", "reboot"),
    ("Reboot ASAP : reboot issued", "reboot"),
    ("reboot requested : reboot issued : reboot complete", "reboot"),
    ("ResumeTimeout reached", "power"),
    ("Powered down after resume", "power"),
    ("POWER_DOWN_ASAP", "power"),
    ("Epilog error : Not responding", "epilog-error"),
]


@pytest.mark.parametrize(("reason", "kind"), SLURMS_OWN)
def test_slurms_own_reasons(reason: str, kind: str) -> None:
    assert slurm_kind(reason) == kind
    assert (owner_of(reason, "root").kind, owner_of(reason, "root").name) == (OwnerKind.slurm, "Slurm")


@pytest.mark.parametrize(
    "reason",
    [
        "Not responding to ping since noon",
        "Epilog error seen by ann, do not touch",
        "Reboot ASAP please",
        "Low CPUs budget left for this rack",
        "see Kill task failed",
        "SlurmdSpoolDir is full again, ticket 4711",
        "gres/gpu type changed, new cards",
        "gres/gpu GRES core specification 12-15 doesn't match socket boundaries. ann looks at it",
        f"gres/gpu GRES core specification 12-15 {_BOUNDS}. See ticket 4711, ann swaps the board",
        f"gres/gpu GRES core specification 12-15 {_BOUNDS}. Consider it broken, do not touch",
        "Job step not running, ann",
        "PSU : swap it",
        "Kill task failed : RMA 4711, do not touch",
    ],
)
def test_a_persons_sentence_that_begins_like_slurms_is_the_persons(reason: str) -> None:
    assert slurm_kind(reason) is None
    assert (owner_of(reason, "ann").kind, owner_of(reason, "ann").name) == (OwnerKind.person, "ann")


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("NHC: check_fs_mount:  /scratch not mounted", "NHC"),
        ("[node_problem] gpu_health: xid 79 [hc_program]", "soperator"),
        ("[user_problem] disk full", "soperator"),
        ("[hardware_problem] link", "soperator"),
        ("[compute_maintenance] planned", "soperator"),
        ("slurm-operator: Pod (x) was deleted", "slurm-operator"),
        ("[HC] GPU count", "Slinky"),
        ("Action:Replace", "HyperPod"),
        ("Action:Reboot", "HyperPod"),
        ("k8s: cordoned", "SUNK"),
        ("ann: rack move sunk:verify-undrain", "SUNK"),
        ("cyclecloud_waiting_for_topology", "CycleCloud"),
        ("NHC: check_hw : Not responding", "NHC"),
    ],
)
def test_reasons_of_other_programs(reason: str, name: str) -> None:
    owner = owner_of(reason, "root")
    assert (owner.kind, owner.name) == (OwnerKind.program, name)


def test_our_reason_is_recognised_with_anything_slurm_appended() -> None:
    assert owner_of("healer:gpu-lost inc:01234567 x : reboot issued", "slurm").kind is OwnerKind.healer


@pytest.mark.parametrize(
    "added",
    [" ; ann: RMA 4711", ", RMA", " : RMA", " | RMA", " : reboot issued : RMA", " x" * 60, " : "],
)
def test_person_who_adds_to_the_reason_of_healer_owns_the_drain(added: str) -> None:
    owner = owner_of(f"healer:gpu-lost inc:01234567 x{added}", "ann")
    assert owner.kind is OwnerKind.person


def test_text_that_slurm_appends_does_not_make_slurm_the_owner() -> None:
    owner = owner_of("ann: PSU : Not responding", "slurm")
    assert (owner.kind, owner.name, str(owner)) == (OwnerKind.person, "", "somebody")


@pytest.mark.parametrize(
    ("reason", "none"), [("", True), ("none", True), ("(null)", True), ("None", True), ("none left", False)]
)
def test_placeholders_for_no_reason(reason: str, none: bool) -> None:
    assert is_empty_reason(reason) is none
