"""The alerts of deploy/ha by promtool: each fires by what it is for, and is silent at a sound pair."""

import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).parents[2] / "deploy/ha/alerts.yml"
SOUND = {
    "primary": ("1", "0"),
    "replica": ("0", "1"),
    "sync_standby": ("0", "1"),
    "xlog_location": ("0+5000000", "0"),
    "xlog_received_location": ("0", "0+5000000"),
}
WRONG = {
    "HealerNoPrimary": {"primary": ("0", "0")},
    "HealerNoStandby": {"sync_standby": ("0", "0")},
    "HealerStandbyLags": {"xlog_received_location": ("0", "5000000")},
}
MINUTES = 10


def series(values: dict[str, tuple[str, str]]) -> list[dict[str, str]]:
    return [
        {
            "series": f'patroni_{name}{{job="patroni", scope="healer", instance="{instance}"}}',
            "values": f"{value}{'' if '+' in value else '+0'}x{MINUTES}",
        }
        for name, pair in values.items()
        for instance, value in zip(("db1", "db2"), pair, strict=True)
    ]


def firing(values: dict[str, tuple[str, str]], alerts: list[str], folder: Path) -> str:
    """What promtool complains of where these alerts, and no others, are expected."""
    expected = [
        {
            "alertname": name,
            "eval_time": f"{MINUTES}m",
            "exp_alerts": [{"exp_labels": {"scope": "healer", "severity": severity}}] if severity else [],
        }
        for name in WRONG
        for severity in [("warning" if name == "HealerStandbyLags" else "critical") if name in alerts else ""]
    ]
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    test = {"interval": "1m", "input_series": series(values), "alert_rule_test": expected}
    (folder / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("name", [*WRONG, ""])
def test_it_fires_by_what_it_is_for(name: str, tmp_path: Path) -> None:
    assert firing(SOUND | WRONG.get(name, {}), [name], tmp_path) == ""


def test_promtool_finds_nothing_to_say_of_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", "--lint=all", "--lint-fatal", RULES], check=True)
