"""The commands that speak to the API, and those for tokens, against a real one."""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from healer.adapters.postgres import node_rows, tables
from healer.adapters.token_key import KEY_FILE
from healer.commands import Failed, Misused
from healer.commands.cli import build, main
from healer.incidents.lifecycle import PROBATION
from healer.model import (
    Cause,
    Decision,
    HitBasis,
    IncidentState,
    Inventory,
    JobHit,
    LogEntry,
    Outcome,
    Run,
    RunState,
    StepEvent,
    Verdict,
)
from healer.text import quoted
from healer.text.language import current
from healer.text.said import to_stored
from tests.support.api import (
    CLUSTER,
    TOKEN_KEY,
    XID_79,
    Api,
    incident,
    save_incident,
    save_run,
    serving,
    snapshot,
)
from tests.support.seals import seal_all

Healer = Callable[..., Result]
OIDC = {
    "HEALER_OIDC_ISSUER": "https://sso.example",
    "HEALER_OIDC_CLIENT_ID": "healer",
    "HEALER_OIDC_CLIENT_SECRET": "a secret of tests",
    "HEALER_PUBLIC_URL": "https://healer.example",
}


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[tuple[Api, httpx.Client]]:
    with serving(fresh_database) as both:
        yield both


@pytest.fixture
def healer(served: tuple[Api, httpx.Client], tmp_path: Path) -> Healer:
    """Runs a command as a role, by default admin."""
    api, client = served

    key = tmp_path / KEY_FILE
    key.write_text(TOKEN_KEY.hex())
    key.chmod(0o600)

    def run(*arguments: str, role: str = "admin", given: str | None = None) -> Result:
        env = {
            "HEALER_URL": str(client.base_url),
            "HEALER_TOKEN": api.token(role, name="ann"),
            "HEALER_TOKEN_FILE": None,
            "HEALER_DATABASE_URL": api.engine.url.render_as_string(hide_password=False),
            "HEALER_DATA_DIR": str(tmp_path),
            "HEALER_CONFIG": None,
        }
        return CliRunner().invoke(build(), arguments, input=given, env=env)

    return run


def test_kernel_lines_from_a_file_and_from_standard_input(healer: Healer, tmp_path: Path) -> None:
    lines = tmp_path / "dmesg"
    lines.write_text(f"[1.0] {XID_79}\n\n[2.0] usb 1-1: new device\n")
    sent = healer("send", "kernel-log", "--node", "gpu0001", "--boot-id", "b", str(lines), role="signals")
    assert (sent.exit_code, sent.stdout) == (0, "1 accepted, 0 duplicates, 1 unrecognised, 0 rejected\n")
    again = healer(
        "send", "kernel-log", "--node", "gpu0001", "--boot-id", "b", "--json",
        role="signals", given=lines.read_text(),
    )  # fmt: skip
    assert json.loads(again.stdout) == {"accepted": 0, "duplicates": 1, "unrecognised": 1, "rejected": []}


def test_a_rejected_line_ends_with_1(healer: Healer) -> None:
    sent = healer("send", "kernel-log", "--node", "nosuch", role="signals", given=XID_79 + "\n")
    assert sent.exit_code == 1
    assert "1 rejected" in sent.stdout
    assert sent.stderr.startswith("line 1: ")


def test_a_heartbeat(healer: Healer) -> None:
    assert "1 accepted" in healer("send", "heartbeat", "--node", "gpu0001", role="signals").stdout


def test_nodes_say_what_goes_on_there(healer: Healer, served: tuple[Api, httpx.Client]) -> None:
    api, _ = served
    shown = snapshot(2)
    asleep = msgspec.structs.replace(shown.nodes["gpu0002"], state=("IDLE", "POWERED_DOWN"))
    api.snapshots.put(msgspec.structs.replace(shown, nodes=shown.nodes | {"gpu0002": asleep}))
    first, second = healer("nodes").stdout.splitlines()[1:]
    assert "now:" not in first
    assert second.endswith("; now: Slurm powered it down to save power (IDLE+POWERED_DOWN)")


def test_lists_as_tables_and_as_json(healer: Healer, served: tuple[Api, httpx.Client]) -> None:
    api, _ = served
    with api.engine.begin() as conn:
        save_incident(conn, incident(1))
    nodes = healer("nodes").stdout.splitlines()
    assert nodes[0].split() == ["NODE", "VERDICT", "SLURM", "NEW", "JOBS", "WHY"]
    assert nodes[1].startswith("gpu0001") and "isolate" in nodes[1]
    assert [one["name"] for one in json.loads(healer("nodes", "--json").stdout)] == [
        "gpu0001", "gpu0002", "gpu0003", "gpu0004",
    ]  # fmt: skip
    assert incident(1).id[:8] in healer("incidents").stdout
    shown = healer("incidents", incident(1).id[:8])
    assert shown.stdout.startswith("P1 open: GPU 3 of gpu0001")
    assert "VERDICT: GPU 3 of gpu0001 has fallen off the bus" in shown.stdout
    assert "job 4711 of alice" in shown.stdout


def test_a_run_from_plan_to_start(healer: Healer) -> None:
    plan = healer("run", "drain", "--node", "gpu0001", "--dry-run")
    assert "Drain a node: healer acts" in plan.stdout
    assert healer("runs", "--json").stdout == "[]\n"
    assert healer("run", "drain", "--node", "gpu0001").exit_code == 2
    made = healer("run", "drain", "--node", "gpu0001", "--reason", "fan", "--json")
    run = json.loads(made.stdout)
    assert run["state"] == "running"
    assert run["id"] in healer("runs").stdout
    assert "Requested by ann: fan" in healer("runs", run["id"]).stdout


def test_no_step_of_a_run_that_is_undone_still_waits(
    healer: Healer, served: tuple[Api, httpx.Client]
) -> None:
    waits(served, "drain", RunState.undone)
    entry = LogEntry(run="r1", at=datetime.now(UTC), epoch=1, step="repair", event=StepEvent.waiting)
    with served[0].engine.begin() as conn:
        row = {"run": "r1", "at": entry.at, "step": entry.step, "event": entry.event}
        conn.execute(tables.run_log.insert().values(**row, doc=to_stored(entry)))
    rows = healer("runs", "r1").stdout.splitlines()[3:]
    assert [re.split("  +", row)[:2] for row in rows] == [["drain", "not run"], ["repair", "not finished"]]


def test_a_run_in_shadow_is_not_shown_as_if_it_had_acted(
    healer: Healer, served: tuple[Api, httpx.Client]
) -> None:
    waits(served, "drain", RunState.done, shadow=True)
    assert "  done (shadow)  " in healer("runs").stdout
    assert healer("runs", "r1").stdout.startswith("Drain a node on gpu0001: done (shadow)\n")
    assert json.loads(healer("runs", "--json").stdout)[0]["state"] == "done"


def test_a_run_that_waits_is_approved(healer: Healer, served: tuple[Api, httpx.Client]) -> None:
    waits(served, "drain")
    assert healer("approve", "r1", "--reason", "seen").stdout == "run r1: running\n"


def test_yes_is_taken_where_a_person_acts_and_never_stands_for_a_second_one(healer: Healer) -> None:
    """As scripts give it; ann requests and approves."""
    made = healer("run", "power-cycle", "--node", "gpu0001", "--reason", "dead", "--yes", "--json")
    run = json.loads(made.stdout)
    assert run["state"] == "held"
    refused = healer("approve", run["id"], "--reason", "mine", "--yes")
    assert isinstance(refused.exception, Failed) and "second person" in str(refused.exception)
    (left,) = json.loads(healer("runs", "--json").stdout)
    assert (left["state"], left["approved_by"]) == ("held", None)


def test_an_approved_run_that_a_guard_holds_says_why(
    healer: Healer, served: tuple[Api, httpx.Client]
) -> None:
    """It printed `held` alone, which on a run that waited for the approval reads as if that had no effect."""
    waits(served, "drain")
    healer("pause", "--reason", "network change")
    assert healer("approve", "r1", "--reason", "seen").stdout == (
        "run r1: held (Paused (all) by ann: network change.)\n"
    )


@pytest.mark.parametrize(
    ("state", "outcome", "word"),
    [
        (RunState.held, Outcome.held, "Held"),
        (RunState.rejected, Outcome.refused, "Refused"),
        (RunState.running, Outcome.held, None),  # the guard allows it meanwhile
    ],
)
def test_a_run_that_was_held_or_refused_says_why(
    healer: Healer, served: tuple[Api, httpx.Client], state: RunState, outcome: Outcome, word: str | None
) -> None:
    waits(served, "drain", state)
    api, _ = served
    now, why = datetime.now(UTC), "seven of ten nodes are out of service"
    named = {"incident": None, "playbook": "drain", "proposal": None, "run": "r1"}
    made = Decision(at=now, cluster=CLUSTER, outcome=outcome, why=quoted(why), **named)
    row = {"cluster": CLUSTER, "outcome": outcome, "run": "r1", "at": now}
    with api.engine.begin() as conn:
        conn.execute(sa.insert(tables.decisions).values(**row, doc=to_stored(made)))
    shown = healer("runs", "r1").stdout
    assert shown.startswith("Drain a node on gpu0001: ")
    assert f"{word}: {why}\n" in shown if word else why not in shown


def waits(
    served: tuple[Api, httpx.Client],
    playbook: str,
    state: RunState = RunState.waiting_approval,
    *,
    shadow: bool = False,
) -> None:
    """A run r1 of healer's own on gpu0001, which waits for an approval."""
    run = Run(
        id="r1",
        cluster=CLUSTER,
        playbook=playbook,
        state=state,
        by="healer",
        reason="GPU fell off the bus",
        created_at=datetime.now(UTC),
        node="gpu0001",
        rule="gpu-lost",
        shadow=shadow,
    )
    api, _ = served
    with api.engine.begin() as conn:
        save_run(conn, run)


def test_restarts_are_offered_by_the_plan_and_named_with_the_run(
    healer: Healer, served: tuple[Api, httpx.Client]
) -> None:
    api, _ = served
    jobs = [api.slurm.add_job(gpus=2, user=user) for user in ("alice", "carl")]
    bound = api.slurm.add_job(gpus=2, user="bob", requeue=False)
    api.look()
    plan = healer("run", "empty", "--node", "gpu0001", "--dry-run").stdout
    assert f"waits for job {jobs[0]} of alice; --restart {jobs[0]}:0 restarts it with the run" in plan
    assert f"waits for job {bound} of bob, which cannot be restarted: " in plan
    named = ("--restart", jobs[0], "--restart", jobs[1], "--json")
    made = json.loads(healer("run", "empty", "--node", "gpu0001", "--reason", "lies", *named).stdout)
    assert made["input"]["restart"] == dict.fromkeys(jobs, 0)


def test_an_approval_names_restarts_too(healer: Healer, served: tuple[Api, httpx.Client]) -> None:
    api, _ = served
    job = api.slurm.add_job()
    api.look()
    waits(served, "empty")
    approved = healer("approve", "r1", "--reason", "lies", "--restart", job, "--json").stdout
    assert json.loads(approved)["input"]["restart"] == {job: 0}


def test_a_refusal_is_one_sentence(healer: Healer, served: tuple[Api, httpx.Client]) -> None:
    api, _ = served
    api.slurm.person_drain("gpu0004", "PSU", "bob")
    api.look()
    refused = healer("run", "drain", "--node", "gpu0004", "--reason", "x")
    assert isinstance(refused.exception, Failed)
    assert str(refused.exception) == (
        "bob took gpu0004 out of service (PSU); healer never replaces a person's reason. (409)"
    )


@pytest.mark.parametrize("command", ["nodes", "incidents", "runs", "messages", "goodput", "signals losses"])
def test_a_list_of_an_unknown_cluster_fails(healer: Healer, command: str) -> None:
    refused = healer(*command.split(), "--cluster", "nope", role="viewer")
    assert str(refused.exception) == "there is no cluster nope; there are pod1 (404)"


def test_json_is_json_beside_each_other_form(healer: Healer) -> None:
    found = json.loads(healer("goodput", "--csv", "--json", role="viewer").stdout)
    assert (found["by"], found["items"]) == ("partition", [])
    listed = json.loads(healer("simulate", "--list", "--json").stdout)
    assert {"rack-power", "worn-512"} <= {scenario["name"] for scenario in listed}


def test_pauses(healer: Healer) -> None:
    made = healer("pause", "--reason", "roll-out", "--for", "30m", "--json")
    identity = json.loads(made.stdout)["id"]
    (shown,) = json.loads(healer("pause", "--list", "--json").stdout)
    headings, row = healer("pause", "--list").stdout.splitlines()
    assert "roll-out" in row and shown["until"][:19] in row and shown["until"] not in row
    assert "UNTIL (UTC)" in headings
    too_short = healer("pause", "--end", identity[:7], "--reason", "done")
    assert str(too_short.exception) == f"no pause {identity[:7]} is active (404)"
    ended = healer("pause", "--end", identity[:8], "--reason", "done", "--json")  # as its own help writes it
    assert json.loads(ended.stdout)["id"] == identity
    assert healer("pause", "--list", "--json").stdout == "[]\n"
    assert isinstance(healer("pause", "--for", "2h").exception, Misused)
    wrong = healer("pause", "--reason", "x", "--for", "soon")
    assert wrong.exit_code == 2 and "Invalid value for --for" in wrong.stderr


def test_a_good_node_brings_what_its_newest_test_that_passed_has_measured(
    healer: Healer, served: tuple[Api, httpx.Client]
) -> None:
    api, _ = served
    at = datetime.now(UTC)
    run = {"id": "r1", "cluster": CLUSTER, "playbook": "validate", "node": "gpu0001", "state": "done"}
    results_by_outcome = [
        (True, {"nccl_busbw_gb_per_s": "350", "driver": "580.65.06"}),
        (True, {"nccl_busbw_gb_per_s": "360.5", "gpu_count": "8", "driver": "580.65.06", "x": "1"}),
        (False, {"nccl_busbw_gb_per_s": "12"}),
    ]
    with api.engine.begin() as conn:
        inventory = Inventory(node="gpu0001", at=at, facts={"driver": "580.65.06"})
        node_rows.save_inventories(conn, CLUSTER, [inventory])
        conn.execute(tables.runs.insert().values(**run, shadow=False, created_at=at, doc=run))
        for passed, results in results_by_outcome:
            doc = {"data": {"verb": "diagnose", "passed": passed, "results": results}}
            line = {"run": "r1", "at": at, "step": "test", "event": "done", "doc": doc}
            conn.execute(tables.run_log.insert().values(**line))
    shown = healer("learn", "--node", "gpu0001", "--yes").stdout
    assert "nccl_busbw_gb_per_s  360.5" in shown and "gpu_count            8" in shown
    stored = json.loads(healer("learn", "--show", "--json").stdout)["items"]
    assert stored[0]["figures"] == {"nccl_busbw_gb_per_s": 360.5, "gpu_count": 8.0}
    assert "360.5" in healer("learn", "--show").stdout


def test_a_good_node_is_learnt_shown_and_forgotten(healer: Healer, served: tuple[Api, httpx.Client]) -> None:
    api, http = served
    drivers = {"gpu0001": "580.65.06", "gpu0002": "580.65.06", "gpu0003": "570.86.15"}
    inventories = [
        Inventory(node=name, at=datetime.now(UTC), facts={"driver": driver})
        for name, driver in drivers.items()
    ]
    with api.engine.begin() as conn:
        node_rows.save_inventories(conn, CLUSTER, inventories)
    plan = healer("learn", "--node", "gpu0001").stdout
    assert "driver  580.65.06" in plan
    assert "gpu0003  driver 570.86.15" in plan
    assert "1 node of the kind cpu differs, 1 reported nothing\nnothing is recorded: --yes records it" in plan
    assert json.loads(healer("learn", "--show", "--json").stdout)["items"] == []
    assert healer("learn", "--node", "gpu0001", "--yes").stdout.endswith("recorded\n")
    assert "cpu   gpu0001" in healer("learn", "--show").stdout
    shown = http.get(f"/api/v1/nodes/{CLUSTER}/gpu0003", headers=api.headers("viewer")).json()
    assert (shown["inventory"], shown["differs"]) == ({"driver": "570.86.15"}, {"driver": "570.86.15"})
    assert shown["reference"]["node"] == "gpu0001"
    subjects = {
        one["verb"] for one in http.get("/api/v1/audit", headers=api.headers("viewer")).json()["items"]
    }
    assert "reference.learnt" in subjects
    assert healer("learn", "--forget", "--yes").stdout == "forgotten: cpu, from gpu0001\n"
    assert "no reference was recorded" in healer("learn", "--show").stdout
    silent = healer("learn", "--node", "gpu0004")
    assert isinstance(silent.exception, Failed)
    assert str(silent.exception).startswith("gpu0004 has not reported its driver")


def test_a_token_is_printed_once_and_revoked(healer: Healer, served: tuple[Api, httpx.Client]) -> None:
    api, client = served
    made = healer("token", "create", "--role", "viewer", "--name", "bob", "--expires", "90d")
    assert "start `healer worker`, which seals" in made.stderr
    seal_all(api.engine)
    token = made.stdout.strip()
    assert token.startswith("heal_")
    assert len(token.split("_", 2)[2]) == 43
    headers = {"Authorization": f"Bearer {token}"}
    assert client.get("/api/v1/nodes", headers=headers).status_code == 200
    shown = healer("token", "list").stdout
    assert "created_at (UTC)" in shown and "+00:00" not in shown
    listed = healer("token", "list", "--json").stdout
    assert token.split("_")[1] in listed
    assert token.split("_", 2)[2] not in listed
    ended = healer("token", "revoke", token, "--json")
    assert json.loads(ended.stdout) == [{"id": token.split("_")[1]}]
    assert isinstance(healer("token", "revoke", token).exception, Failed)
    link = healer("token", "create", "--role", "viewer", "--once").stdout
    assert "/sign-in?token=heal_" in link


@pytest.mark.parametrize("also", [["--once"], []], ids=["link", "token"])
def test_an_empty_validity_makes_no_token(
    healer: Healer, served: tuple[Api, httpx.Client], also: list[str]
) -> None:
    """`--expires "$LASTS"` of a script without that variable made a token that never expires."""
    api, _ = served
    refused = healer("token", "create", "--role", "viewer", "--name", "bob", "--expires", "", *also)
    assert refused.exit_code == 2 and "Invalid value for --expires" in refused.stderr
    with api.engine.connect() as conn:
        assert conn.scalar(sa.select(sa.func.count()).where(tables.tokens.c.name == "bob")) == 0


def test_a_sign_in_link_leads_to_the_healer_that_runs_here(
    served: tuple[Api, httpx.Client], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api, _ = served
    (tmp_path / KEY_FILE).write_text(TOKEN_KEY.hex())
    (tmp_path / KEY_FILE).chmod(0o600)
    monkeypatch.setenv("HEALER_DATABASE_URL", api.engine.url.render_as_string(hide_password=False))
    monkeypatch.setenv("HEALER_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("HEALER_URL", raising=False)

    def link() -> str:
        return CliRunner().invoke(build(), ["token", "create", "--role", "viewer", "--once"]).stdout

    assert link().startswith("http://127.0.0.1:8080/sign-in?")
    (tmp_path / "running.json").write_text(
        json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:9443", "database_url": "", "broker_url": ""})
    )
    assert link().startswith("http://127.0.0.1:9443/sign-in?")
    monkeypatch.setenv("HEALER_PUBLIC_URL", "https://healer.example")
    assert link().startswith("https://healer.example/sign-in?")


def test_above_viewer_a_token_is_a_persons(
    healer: Healer, served: tuple[Api, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, client = served
    monkeypatch.setenv("LOGNAME", "mara")
    for options, name in (((), "mara"), (("--name", "jon"), "jon")):
        made = healer("token", "create", "--role", "operator", "--json", *options)
        seal_all(api.engine)
        token = json.loads(made.stdout)
        assert token["name"] == name
        headers = {"Authorization": f"Bearer {token['token']}"}
        paused = client.post("/api/v1/pauses", headers=headers, json={"reason": "x"})
        assert (paused.status_code, paused.json()["by"]) == (201, name)
        assert api.people.find(name) is not None
    monkeypatch.setenv("LOGNAME", "healer")
    assert "cannot be the name of one" in str(healer("token", "create", "--role", "admin").exception)
    assert json.loads(healer("token", "create", "--role", "viewer", "--json").stdout)["name"] == ""


def test_with_a_provider_a_token_above_viewer_is_of_a_person_it_knows(
    healer: Healer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OIDC.items():
        monkeypatch.setenv(name, value)
    refused = healer("token", "create", "--role", "operator", "--name", "mara")
    assert "the identity provider has no person called mara" in str(refused.exception)
    assert healer("token", "create", "--role", "operator", "--name", "mara/ci").exit_code == 0


def test_without_a_token_one_sentence(healer: Healer) -> None:
    env = {"HEALER_TOKEN": "", "HEALER_TOKEN_FILE": None}
    done = CliRunner().invoke(build(), ["nodes"], env=env)
    assert "HEALER_TOKEN" in str(done.exception)


def test_a_node_shows_until_when_it_is_on_probation(served: tuple[Api, httpx.Client]) -> None:
    api, http = served
    closed = datetime.now(UTC) - timedelta(days=2)
    until = closed + PROBATION
    back = {"state": IncidentState.resolved, "closed": closed, "nodes": {"gpu0001": Verdict.watch}}
    with api.engine.begin() as conn:
        save_incident(conn, msgspec.structs.replace(incident(1), probation_until=until, **back))
    shown = http.get(f"/api/v1/nodes/{CLUSTER}/gpu0001", headers=api.headers("viewer")).json()
    assert (shown["verdict"], datetime.fromisoformat(shown["probation_until"])) == ("watch", until)
    other = http.get(f"/api/v1/nodes/{CLUSTER}/gpu0002", headers=api.headers("viewer")).json()
    assert (other["verdict"], other.get("probation_until")) == ("healthy", None)


def test_breaking_the_glass(healer: Healer, served: tuple[Api, httpx.Client]) -> None:
    api, client = served
    assert "no seal" in healer("break-glass", "status").stdout
    sealed = json.loads(healer("break-glass", "seal", "--json").stdout)["secret"]
    assert "not used" in healer("break-glass", "status").stdout
    wrong = healer("break-glass", "use", "--reason", "x", "--secret-file", "-", given="GLASS-AAAA\n")
    assert wrong.exit_code == 1 and "mistyped" in str(wrong.exception)
    used = healer("break-glass", "use", "--reason", "away", "--secret-file", "-", "--json", given=sealed)
    assert "the audit has not sealed this token yet" in used.stderr
    seal_all(api.engine)
    token = json.loads(used.stdout)["token"]
    assert client.get("/api/v1/nodes", headers={"Authorization": f"Bearer {token}"}).status_code in (200, 503)
    shown = healer("break-glass", "status").stdout
    assert "away" in shown and "break-glass (" in shown
    ended = healer("break-glass", "end", "--reason", "it is back")
    assert ended.exit_code == 0 and "new seal" in ended.stdout
    at = json.loads(healer("break-glass", "status", "--json").stdout)["ended_at"][:16].replace("T", " ")
    assert f"it ended {at} UTC" in healer("break-glass", "status").stdout
    again = healer("break-glass", "end", "--reason", "x")
    assert (again.exit_code, again.stdout) == (0, ended.stdout), "its first answer was lost on the way"


def test_break_glass_access_that_ran_out_has_ended(healer: Healer, served: tuple[Api, httpx.Client]) -> None:
    """Hours after its end it was said that it ends, with an administrator looked for in vain."""
    api, _ = served
    secret = json.loads(healer("break-glass", "seal", "--json").stdout)["secret"]
    used = healer("break-glass", "use", "--reason", "away", given=f"{secret}\n")
    assert used.stdout.strip().startswith("heal_"), "HEALER_TOKEN=$(healer …) takes no question"
    assert "secret" in used.stderr
    (ends,) = (line for line in healer("break-glass", "status").stdout.splitlines() if "it ends " in line)
    assert ends.partition(";")[0] in used.stderr
    with api.engine.begin() as tx:
        tx.execute(sa.update(tables.tokens).values(expires_at=datetime(2026, 11, 20, 3, 0, tzinfo=UTC)))
    assert "it ended 2026-11-20 03:00 UTC" in healer("break-glass", "status").stdout


def test_a_chinese_terminal_gets_chinese_and_programs_get_the_same_everywhere(
    served: tuple[Api, httpx.Client], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api, client = served
    monkeypatch.setenv("HEALER_URL", str(client.base_url))
    monkeypatch.setenv("HEALER_TOKEN", api.token("viewer", name="ann"))
    monkeypatch.delenv("HEALER_CA_FILE", raising=False)
    monkeypatch.delenv("LC_ALL", raising=False)

    def printed(language: str, *arguments: str) -> str:
        monkeypatch.setenv("LANG", language)
        token = current.set("en")
        try:
            main(["nodes", *arguments])
        except SystemExit as end:
            assert not end.code
        finally:
            current.reset(token)
        return capsys.readouterr().out

    assert printed("C.UTF-8").split()[:2] == ["NODE", "VERDICT"]
    chinese = printed("zh_CN.UTF-8")
    assert chinese.split()[:2] == ["节点", "判定"] and "未发现问题" in chinese
    assert printed("zh_CN.UTF-8", "--json") == printed("en_US.UTF-8", "--json")


def test_spares_are_planned_from_a_job_and_the_sites_own_faults(
    healer: Healer, served: tuple[Api, httpx.Client]
) -> None:
    """Twelve of these incidents stopped a job; a program's own fault, one that hit no job and one that is
    part of another do not count. The first is 103 hours old, and four nodes have GPUs."""
    api, _ = served
    now = datetime.now(UTC)
    hit = JobHit(job="4711", basis=HitBasis.checkpoint, ended_at=now)

    def save(first: int, last: int, **more: Any) -> None:
        with api.engine.begin() as conn:
            for number in range(first, last + 1):
                save_incident(conn, incident(number * 60, **more))

    save(1, 9, hit=(hit,))
    few = healer("plan", "spares", "--job", "4711", role="viewer")
    assert few.exit_code != 0 and "9" in str(few.exception)
    save(10, 12, hit=(hit,))
    save(101, 101, hit=(hit,), cause=Cause.application)
    save(102, 102, hit=(msgspec.structs.replace(hit, ended_at=None),))
    save(103, 103, hit=(hit,), merged_into=incident(60).id)
    planned = json.loads(healer("plan", "spares", "--job", "4711", "--json", role="viewer").stdout)
    assert planned["asked"]["nodes"] == 2
    assert planned["asked"]["mtbf_h"] == pytest.approx(4 * 103 / 12, rel=0.01)
    assert planned["best"] == max(planned["plans"], key=lambda plan: plan["per_gpu"])["spares"]


def test_spares_are_planned_from_no_job_of_a_guessed_cluster(
    healer: Healer, served: tuple[Api, httpx.Client]
) -> None:
    """There may be a job of that number in each."""
    api, _ = served
    plan = ("plan", "spares", "--job", "4711", "--mtbf", "100")
    assert healer(*plan, role="viewer").exit_code == 0
    api.app.state.services = dataclasses.replace(api.services, clusters=(CLUSTER, "pod9"))
    guessed = healer(*plan, role="viewer")
    assert "specify the cluster: one of pod1, pod9" in str(guessed.exception)
    assert healer(*plan, "--cluster", CLUSTER, role="viewer").exit_code == 0
