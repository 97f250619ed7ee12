"""The alerts that ship, by promtool: each fires by what it is for and says so, and is silent otherwise."""

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.monitoring import RULE_FILES, alerts

#: Minutes of made-up series, and when the alert is looked at: some last a day before they fire.
MINUTES, MINUTES_OF = 75, {"HealerPausedLong": 25 * 60}
POD1 = {"cluster": "pod1"}


class Case(NamedTuple):
    """`fires` and `quiet`: series -> its value, or its first value and growth a minute."""

    fires: dict[str, str]
    quiet: dict[str, str]
    labels: dict[str, str]
    summary: str


def of(name: str, bad: str, good: str, summary: str, **labels: str) -> Case:
    """Of one series of the cluster pod1."""
    wanted = ", ".join(f'{key}="{value}"' for key, value in {**POD1, **labels}.items())
    series = f"healer_{name}{{{wanted}}}"
    return Case({series: bad}, {series: good}, {**POD1, **labels}, summary)


def without(case: Case, label: str) -> Case:
    """Whose alert does not have this label of the series."""
    return case._replace(labels={key: value for key, value in case.labels.items() if key != label})


def both(name: str, part: str, bad: str, good: str, whole: str) -> tuple[dict[str, str], dict[str, str]]:
    return {name: whole, part: bad}, {name: whole, part: good}


HEALER = '{job="healer", instance="a:8080"}'
HEARD = both(
    'healer_senders{cluster="pod1", route="heartbeat"}',
    'healer_senders_heard{cluster="pod1", route="heartbeat"}',
    "850",
    "950",
    "1000",
)
SPOOL = both(f"healer_spool_limit_bytes{HEALER}", f"healer_spool_bytes{HEALER}", "60", "50", "100")
GROWS = both(f"healer_spool_oldest_seconds{HEALER}", f"healer_spool_bytes{HEALER}", "0+10", "500", "120")
ANSWERS = both(
    'healer_http_requests_total{job="healer", status="200"}',
    'healer_http_requests_total{job="healer", status="503"}',
    "0+10",
    "0+4",
    "0+90",
)
LOST = {"source": "metrics", "reason": "quota"}
CASES = {
    "HealerDown": Case(
        {f"up{HEALER}": "0"},
        {f"up{HEALER}": "1"},
        {"job": "healer", "instance": "a:8080"},
        "healer does not answer at a:8080",
    ),
    "HealerNotScraped": Case(
        {'up{job="node"}': "1"}, {f"up{HEALER}": "0"}, {"job": "healer"}, "Prometheus scrapes no healer"
    ),
    "HealerDatabaseAway": Case(
        {f"healer_database_up{HEALER}": "0"},
        {f"healer_database_up{HEALER}": "1"},
        {"job": "healer"},
        "healer's database does not answer",
    ),
    "HealerPartDown": of(
        "part_beat_age_seconds", "90", "60", "The worker of pod1 has been silent for 1m 30s", part="worker"
    ),
    "HealerDetectorBehind": of(
        "inbox_oldest_seconds", "45", "30", "The detector of pod1 is 45s behind"
    ),
    "HealerWorkersBehind": of(
        "runs_due_oldest_seconds", "61", "60", "A run of pod1 has waited 1m 1s for a worker"
    ),
    "HealerSlurmSnapshotOld": of(
        "slurm_snapshot_age_seconds", "31", "30", "The Slurm snapshot of pod1 is 31s old"
    ),
    "HealerAuditNotSealed": of(
        "audit_unsealed_oldest_seconds", "61", "60", "The audit of pod1 has not been sealed for 1m 1s"
    ),
    "HealerWitnessAway": of(
        "audit_witness_age_seconds", "301", "300", "The witness vault of pod1 has not answered for 5m 1s",
        witness="vault",
    ),
    "HealerBreakerOpen": of("breaker_open", "1", "0", "The breaker of pod1 is open"),
    "HealerSpoolGrows": Case(
        *GROWS, {"instance": "a:8080"}, "The spool of a:8080 grows and has not been emptied for 2m 0s"
    ),
    "HealerSpoolFull": Case(*SPOOL, {"instance": "a:8080"}, "The spool of a:8080 is 60% full"),
    "HealerRunHeld": without(
        of("runs_oldest_seconds", "14460", "14400", "A run of pod1 has been held for 4h 1m 0s", state="held"),
        "state",
    ),
    "HealerApprovalWaits": without(
        of(
            "runs_oldest_seconds", "3660", "3600", "A run of pod1 has waited 1h 1m 0s for approval",
            state="waiting_approval",
        ),
        "state",
    ),
    "HealerRunStuck": without(
        of("runs_active", "2", "0", "2 runs of pod1 are stuck", state="stuck"), "state"
    ),
    "HealerNoFollowerHeard": without(
        of(
            "senders_heard", "0", "1", "No follower of pod1 has been heard for 2 minutes", route="heartbeat"
        ),
        "route",
    ),
    "HealerFollowersQuiet": Case(*HEARD, POD1, "Only 85% of the followers of pod1 are heard"),
    "HealerMessagesFailed": of("messages_failed", "0+1", "7", "Messages of pod1 could not be delivered"),
    "HealerMessagesWait": of(
        "messages_waiting_oldest_seconds", "310", "300",
        "A message of pod1 has waited 5m 10s for its channel",
    ),
    "HealerSignalsLost": Case(
        {'healer_signals_lost_total{source="metrics", reason="quota"}': "0+1"},
        {'healer_signals_lost_total{source="metrics", reason="quota"}': "5"},
        LOST,
        "Signals of metrics are not stored: quota",
    ),
    "HealerAnswersFail": Case(*ANSWERS, {"job": "healer"}, "10% of the requests fail"),
    "HealerDiskFilling": Case(
        {f"healer_database_disk_free_ratio{HEALER}": "0.09"},
        {f"healer_database_disk_free_ratio{HEALER}": "0.1"},
        {"job": "healer"},
        "9% of the disk of the database is free",
    ),
    "HealerScraperDown": of(
        "scrape_report_age_seconds", "121", "120", "The scraper of pod1 has been silent for 2m 1s"
    ),
    "HealerPausedLong": of("pauses", "1", "0", "pod1 has been paused for a day"),
}  # fmt: skip
SHIPPED = {alert["alert"]: alert for alert in alerts()}


def promtool_tests(name: str, case: Case) -> list[dict[str, Any]]:
    """promtool's tests that it fires, and that it does not."""
    shipped, minutes = SHIPPED[name], MINUTES_OF.get(name, MINUTES)
    fired = {
        "exp_labels": {**case.labels, **shipped["labels"]},
        "exp_annotations": {**shipped["annotations"], "summary": case.summary},
    }
    return [
        {
            "interval": "1m",
            "input_series": [{"series": one, "values": f"{value}x{minutes}"} for one, value in given.items()],
            "alert_rule_test": [{"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": expected}],
        }
        for given, expected in ((case.fires, [fired]), (case.quiet, []))
    ]


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == SHIPPED.keys()


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_by_what_it_is_for_and_not_otherwise(name: str, tmp_path: Path) -> None:
    document = {"rule_files": [str(path) for path in RULE_FILES], "tests": promtool_tests(name, CASES[name])}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


def test_pause_of_all_clusters_is_one_alert(tmp_path: Path) -> None:
    case = Case(
        {'healer_pauses{cluster=""}': "1"}, {"up": "1"}, {}, "Every cluster has been paused for a day"
    )
    document = {"rule_files": [str(RULE_FILES[0])], "tests": promtool_tests("HealerPausedLong", case)}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


#: Recording rule -> made-up series, the labels of what is recorded, and its value: 0 of something is 0, not
#: nothing.
RECORDED = {
    "cluster:healer_nodes:in_service_ratio": (
        {'healer_nodes{cluster="pod1", state="drained", held_by="healer"}': "4"}, POD1, 0.0,
    ),
    "cluster_rule:healer_reviews:precision_month": (
        {'healer_reviews_last_month{cluster="pod1", rule="hang", review="false_alarm"}': "3"},
        {**POD1, "rule": "hang"}, 0.0,
    ),
    "job:healer_http_requests:error_ratio_5m": (
        {'healer_http_requests_total{job="healer", status="200"}': "0+10"}, {"job": "healer"}, 0.0,
    ),
    "cluster_route:healer_senders:heard_ratio": (HEARD[0], {**POD1, "route": "heartbeat"}, 0.85),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_a_ratio_is_recorded_where_its_upper_part_is_empty(name: str, tmp_path: Path) -> None:
    given, labels, value = RECORDED[name]
    text = ", ".join(f'{key}="{word}"' for key, word in labels.items())
    expected = [{"labels": f"{name}{{{text}}}", "value": value}]
    test = {
        "interval": "1m",
        "input_series": [{"series": series, "values": f"{each}x20"} for series, each in given.items()],
        "promql_expr_test": [{"expr": name, "eval_time": "15m", "exp_samples": expected}],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [str(RULE_FILES[1])], "tests": [test]}))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


def test_promtool_finds_nothing_to_say_of_the_rules() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, RULE_FILES))


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    for name, alert in SHIPPED.items():
        assert alert["labels"]["severity"] in ("critical", "warning"), name
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert len(alert["annotations"]["description"]) > 30, name
