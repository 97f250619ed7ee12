"""What is said of slurmctld, since when, and how often it is asked."""

from datetime import UTC, datetime, timedelta

import pytest

from healer.model import Controller, Trouble, WatchSettings
from healer.observations.slurm_poll import POLL_S, REST_MAX_S, noted, rest_s, troubles

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
LIMITS = WatchSettings()


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def seen(seconds: float = 0, **about: object) -> Controller:
    return Controller(cluster="pod1", at=at(seconds), **about)  # type: ignore[arg-type]


def after(*polls: Controller) -> Controller:
    """The state after these polls, one after the other."""
    known = None
    for one in polls:
        known = noted(one, known, LIMITS)
    assert known is not None
    return known


def test_a_controller_that_does_well_has_no_troubles() -> None:
    well = after(seen(answer_s=0.01, role="primary", threads=3, agent_queue=0, dbd_queue=0))
    assert well.since == {}
    assert troubles(well) == []
    assert troubles(None) == []


@pytest.mark.parametrize(
    ("about", "trouble", "words"),
    [
        ({"problem": "No answer in 4 s."}, Trouble.away, "cannot be read: No answer in 4 s"),
        ({"role": "backup", "host": "ctl2"}, Trouble.backup, "The backup controller ctl2 took over"),
        ({"answer_s": 2.5}, Trouble.slow, "takes 2.5 s to answer"),
        (
            {"threads": 200, "agent_queue": 7},
            Trouble.backlog,
            "200 requests in progress and 7 messages queued",
        ),
        ({"agent_queue": 500}, Trouble.backlog, "500 messages queued"),
        (
            {"adapter": "cli", "fallbacks": ("rest: no socket.",)},
            Trouble.passed_over,
            "reached through cli: rest: no socket",
        ),
    ],
)
def test_each_trouble_says_what_it_is_and_since_when(
    about: dict[str, object], trouble: Trouble, words: str
) -> None:
    later = after(seen(0, **about), seen(2, **about))
    (state,) = troubles(later)
    assert (state.trouble, state.since) == (trouble, START)
    assert words in state.text
    assert after(seen(0, **about), seen(2)).since == {}


def test_another_cluster_is_no_silence() -> None:
    state = noted(seen(problem="Slurm is the cluster pod2, not pod1."), None, LIMITS, other_cluster=True)
    (foreign,) = troubles(state)
    assert (foreign.trouble, foreign.text) == (Trouble.other_cluster, "Slurm is the cluster pod2, not pod1")


def test_while_it_is_away_its_figures_are_the_last_known_ones() -> None:
    busy = seen(0, host="ctl1", version="24.11.5", threads=220, dbd_queue=4)
    away = after(busy, seen(10, problem="connection refused"))
    assert (away.host, away.version, away.threads, away.at) == ("ctl1", "24.11.5", 220, at(10))
    assert away.since == {Trouble.away: at(10), Trouble.backlog: START}
    back = noted(seen(20, threads=1), away, LIMITS)
    assert (back.since, back.problem) == ({}, None)


def test_slurmdbd_is_away_when_its_queue_grows_and_does_not_fall() -> None:
    grows = [seen(0, dbd_queue=0), seen(2, dbd_queue=5), seen(4, dbd_queue=5), seen(6, dbd_queue=40)]
    state = after(*grows)
    assert state.since == {Trouble.accounting: at(2)}
    assert "40 are queued" in troubles(state)[0].text
    assert after(*grows, seen(8, dbd_queue=39)).since == {}
    assert after(*grows, seen(8, dbd_queue=0)).since == {}


def test_a_queue_that_was_full_when_healer_began_is_judged_by_what_it_does_next() -> None:
    assert after(seen(0, dbd_queue=50)).since == {}
    assert after(seen(0, dbd_queue=50), seen(2, dbd_queue=50)).since == {}
    assert after(seen(0, dbd_queue=50), seen(2, dbd_queue=51)).since == {Trouble.accounting: at(2)}


@pytest.mark.parametrize(
    ("spent_s", "rest"), [(0.01, POLL_S), (0.25, 10.0), (3.0, REST_MAX_S), (25.0, REST_MAX_S)]
)
def test_a_poll_takes_a_fortieth_of_the_time_and_no_rest_outlives_the_picture(
    spent_s: float, rest: float
) -> None:
    assert rest_s(spent_s, seen(), POLL_S) == pytest.approx(rest)


def test_it_is_asked_less_and_less_while_it_is_behind_and_at_once_as_before_after_that() -> None:
    behind, rests = seen(since={Trouble.backlog: START}), [POLL_S]
    for _ in range(4):
        rests.append(rest_s(0.01, behind, rests[-1]))
    assert rests == [2, 4, 8, 12, 12]
    assert rest_s(0.01, seen(), rests[-1]) == POLL_S


def test_unreachable_slurm_is_polled_at_the_usual_pace() -> None:
    assert rest_s(0.01, seen(problem="refused", since={Trouble.away: START}), 8.0) == POLL_S
