"""`healer support-bundle` of a running healer with secrets of every kind in logs, rules and incidents."""

import json
import re
import shutil
import tarfile
import time
from pathlib import Path

import pytest

from healer.settings import shipped_rules
from tests.support.up import Stack
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

#: Secret settings, each as an operator may have set it.
SETTINGS = {
    "HEALER_WEBHOOK_SECRET": "whsec-4f9a1c77d2e8b650",
    "HEALER_SMTP_PASSWORD": "Sommer!2026 \"für\" alle",
    "HEALER_SLACK_TOKEN": "xoxb-123456789012-AbCdEfGhIjKl",
    "HEALER_PAGERDUTY_KEY": "pd0123456789abcdef0123456789abcd",
    "HEALER_NOTIFY_WEBHOOK_URL": "http://127.0.0.1:9/hook/5e884898da28047151d0e56f8dc62927?key=qpwoeiruty1029",
}  # fmt: skip
BMC = "calvin-of-the-racks"
#: Planted, and known to no setting.
STRANGE = {
    "DSN": "dsn-pa55w0rd-zzz", "cookie": "c00kie-value-9876543210", "bearer": "b34rer.value.0123456789",
    "key": "MIIEvQIBADANBgkqhkiG9w0BAQEF", "rule": "rule-webhook-t0ken-31337",
    "kernel": "kernel-line-s3cret-42",
}  # fmt: skip


def plant(stack: Stack) -> None:
    log = stack.data_dir / "log" / "api.log"
    lines = [
        f'{{"event": "cannot connect to postgresql://healer:{STRANGE["DSN"]}@db/healer"}}',
        f'{{"event": "refused", "headers": {{"cookie": "healer={STRANGE["cookie"]}"}}}}',
        f"> Authorization: Bearer {STRANGE['bearer']}",
        f"-----BEGIN PRIVATE KEY-----\n{STRANGE['key']}\n-----END PRIVATE KEY-----",
        *(f'{{"event": "sent", "with": {json.dumps(value)}}}' for value in (*SETTINGS.values(), BMC)),
        f"the key {stack.token_key().hex()} and {(stack.data_dir / 'audit-key').read_text()}",
    ]
    with log.open("a") as file:
        file.write("\n".join(lines) + "\n")


def test_no_secret_is_in_it_and_what_helps_is(scratch: Path) -> None:
    rules, password = scratch / "rules", scratch / "bmc-password"
    shutil.copytree(shipped_rules(), rules)
    notifications = rules / "notifications.yaml"
    notifications.write_text(f"# test with token: {STRANGE['rule']}\n" + notifications.read_text())
    password.write_text(f"{BMC}\n")
    settings = SETTINGS | {"HEALER_RULES_DIR": str(rules), "HEALER_SLURM_ADAPTERS": "sim"}
    with Stack(scratch, **settings) as stack:
        token = stack.token("operator", "--name", "ann.smith")
        line = f"NVRM: Xid (PCI:0000:9b:00): 79, password={STRANGE['kernel']} fallen off the bus"
        body = {"cluster": "pod1", "node": "gpu0003", "boot_id": "b", "entries": [{"line": line, "seq": 1}]}
        path = f"{stack.url}/api/v1/signals/kernel-log"
        wait_until(
            lambda: stack.http.post(
                path, headers=stack.headers("signals", "--vouches", "kernel"), json=body
            ).status_code == 202,
            20, what="the line is accepted",
        )  # fmt: skip
        wait_until(lambda: incidents(stack), 30, what="an incident")
        plant(stack)
        stack.environ |= {"HEALER_TOKEN": token, "HEALER_BMC_PASSWORD_FILE": str(password)}
        made = stack.run("support-bundle", "--output", str(scratch / "s.tgz"), "--json")
        named = stack.run("support-bundle", "--output", str(scratch / "p.tgz"), "--pseudonymise", "--json")
        assert (scratch / "s.tgz").stat().st_mode & 0o777 == 0o600
        names = json.loads(made.stdout)["members"]
        secrets = [*SETTINGS.values(), BMC, *STRANGE.values(), token, stack.token_key().hex()]
        secrets += [
            line for line in (stack.data_dir / "audit-key").read_text().splitlines() if "--" not in line
        ]
        secrets += ["5e884898da28047151d0e56f8dc62927", "qpwoeiruty1029"]
    files = unpacked(scratch / "s.tgz")
    assert sorted(files) == names
    found = [(name, secret) for name, text in files.items() for secret in secrets if secret in text]
    assert found == []
    assert not [name for name, text in files.items() if re.search(r"heal_\w{6,}_[\w-]{20,}", text)]
    check_what_helps(files)
    pseudonymised = unpacked(scratch / "p.tgz")
    assert named.returncode == 0 and pseudonymised.keys() == files.keys()
    left = [name for name, text in pseudonymised.items() if re.search(r"ann\.smith|gpu00\d\d", text)]
    assert left == []
    assert "node-" in pseudonymised["incidents.json"]


def check_what_helps(files: dict[str, str]) -> None:
    settings = json.loads(files["settings.json"])
    assert settings["HEALER_WEBHOOK_SECRET"] == "(removed)" and settings["HEALER_MODE"] == "shadow"
    assert settings["HEALER_SLACK_SIGNING_SECRET"] is None, "one sees which are not set"
    assert {check["name"] for check in json.loads(files["doctor.json"])} >= {"database", "disk", "files"}
    (incident,) = [entry for entry in json.loads(files["incidents.json"]) if "gpu0003" in json.dumps(entry)]
    assert incident["incident"]["rule"] and "fallen off the bus" in json.dumps(incident)
    assert "healer_signals_total" in files["metrics.txt"]
    assert json.loads(files["counts.json"])["tables"]["incidents"]["bytes"] > 0
    assert json.loads(files["versions.json"])["python"]
    assert "rules/policies.yaml" in files and "logs/detector.log" in files
    assert "cannot connect to" in files["logs/api.log"], "the line stays, without its secret"


def incidents(stack: Stack) -> list[object]:
    answer = stack.http.get(f"{stack.url}/api/v1/incidents", headers=stack.headers("viewer"))
    return answer.json()["items"]


def unpacked(file: Path) -> dict[str, str]:
    with tarfile.open(file) as tar:
        members = [(info.name, tar.extractfile(info)) for info in tar.getmembers()]
        return {
            name.removeprefix("healer-support/"): content.read().decode()
            for name, content in members
            if content
        }


def test_it_is_made_where_nothing_runs(scratch: Path) -> None:
    """Then it is needed most."""
    stack = Stack(scratch, HEALER_SLURM_ADAPTERS="sim")
    began = time.time()
    done = stack.run("support-bundle", "--output", str(scratch / "s.tgz"))
    assert "files" in done.stdout and (scratch / "s.tgz").stat().st_mtime >= int(began)
    files = unpacked(scratch / "s.tgz")
    assert files["counts.json"].startswith('"not available') and "no healer runs" in files["metrics.txt"]
