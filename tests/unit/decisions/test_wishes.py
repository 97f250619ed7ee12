"""What a job's owner asks of healer, in the job's comment or --extra."""

from typing import Any

import pytest

from healer.decisions.comments import (
    GRACE_MAX_S,
    Remark,
    Wish,
    remark_in,
    restart_consent,
    wish_of,
    with_remark,
)
from healer.model import RestartConsent, SlurmJob


def job(**fields: Any) -> SlurmJob:
    given: dict[str, Any] = {"partition": "train", "qos": "normal"}
    return SlurmJob(id="1", state="RUNNING", **(given | fields))


@pytest.mark.parametrize(
    ("fields", "wish"),
    [
        ({}, Wish()),
        ({"comment": "healer:requeue"}, Wish(requeue=True)),
        ({"comment": "x, healer:requeue;y"}, Wish(requeue=True)),
        ({"extra": "healer:requeue"}, Wish(requeue=True)),
        ({"comment": "no-healer:requeue"}, Wish()),
        ({"comment": "healer:keep"}, Wish(keep=True)),
        ({"comment": "healer:swap=4"}, Wish(least=4)),
        ({"comment": "healer:swap=4 healer:requeue", "extra": "healer:swap=6"}, Wish(requeue=True, least=6)),
        ({"comment": "healer:swap"}, Wish(unknown=("healer:swap",))),
        ({"comment": "healer:swap=0"}, Wish(unknown=("healer:swap=0",))),
        ({"comment": "healer:swap=-1"}, Wish(unknown=("healer:swap=-1",))),
        ({"comment": "healer:swap=1e3"}, Wish(unknown=("healer:swap=1e3",))),
        ({"comment": "healer:swap=²"}, Wish(unknown=("healer:swap=²",))),
        ({"comment": "healer:signal=USR1@90"}, Wish(requeue=True, signal="USR1", grace_s=90)),
        ({"comment": "healer:signal=SIGTERM"}, Wish(requeue=True, signal="TERM", grace_s=60)),
        ({"comment": "healer:signal=10@5"}, Wish(requeue=True, signal="USR1", grace_s=5)),
        (
            {"comment": "healer:signal=USR2@99999"},
            Wish(requeue=True, signal="USR2", grace_s=GRACE_MAX_S),
        ),
        ({"comment": "healer:signal=KILL@5"}, Wish(unknown=("healer:signal=KILL@5",))),
        ({"comment": "healer:signal=$(reboot)"}, Wish(unknown=("healer:signal=$(reboot)",))),
        ({"comment": "healer:yes"}, Wish(unknown=("healer:yes",))),
        ({"comment": "Healer:keep HEALER:swap=4"}, Wish(unknown=("Healer:keep", "HEALER:swap=4"))),
        # sbatch's own option says how the job saves its work, and agrees to nothing.
        ({"submit_line": "sbatch --signal=B:USR1@120 x.sh"}, Wish(signal="USR1", grace_s=120)),
        ({"submit_line": "sbatch --signal usr2 x.sh"}, Wish(signal="USR2", grace_s=60)),
        ({"submit_line": "sbatch --signal=B:9 x.sh"}, Wish()),
        (
            {"submit_line": "sbatch --signal=R:INT@30 x", "comment": "healer:signal=USR1@10"},
            Wish(requeue=True, signal="USR1", grace_s=10),
        ),
    ],
)
def test_words(fields: dict[str, str], wish: Wish) -> None:
    assert wish_of(job(**fields)) == wish


@pytest.mark.parametrize(
    ("fields", "site", "agrees"),
    [
        ({}, RestartConsent(), False),
        ({"comment": "healer:requeue"}, RestartConsent(), True),
        ({"comment": "healer:signal=USR1"}, RestartConsent(), True),
        ({"submit_line": "sbatch --signal=USR1"}, RestartConsent(), False),
        ({}, RestartConsent(partitions=("train",)), True),
        ({}, RestartConsent(partitions=("debug",), qos=("low",)), False),
        ({}, RestartConsent(qos=("normal",)), True),
        ({"comment": "healer:keep"}, RestartConsent(partitions=("train",)), False),
        ({"comment": "healer:keep healer:requeue"}, RestartConsent(), False),
    ],
)
def test_restart_consent_follows_from_the_job_and_the_site(
    fields: dict[str, str], site: RestartConsent, agrees: bool
) -> None:
    assert (restart_consent(job(**fields), site) is not None) is agrees


# --- our part of the admin comment --------------------------------------------------------------------------


@pytest.mark.parametrize("others", ["", "ask bob", "ask bob | ticket 17", "  | x", "a |  | b", "a healer: b"])
def test_others_words_in_the_admin_comment_stay_to_the_byte(others: str) -> None:
    said = with_remark(others, Remark(text="GPU 3 | fell\noff", off=("gpu0001", "gpu0002")))
    assert remark_in(said) == Remark(text="GPU 3 / fell off", off=("gpu0001", "gpu0002"))
    assert with_remark(said, Remark(text="new")) == with_remark(others, Remark(text="new"))
    assert with_remark(said, Remark(off=("gpu0002",))).endswith("healer: off:gpu0002")
    assert with_remark(said, Remark()) == others


def test_a_long_text_is_cut_and_the_nodes_are_not() -> None:
    off = tuple(f"gpu{number:04d}" for number in range(30))
    assert remark_in(with_remark("", Remark(text="x" * 9000, off=off))).off == off
