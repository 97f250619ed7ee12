"""Collected files over the API: for operators alone, whole, and who took one is written down."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from healer.commands.cli import build
from healer.model import Bundle, EvidenceFile, Run, RunState
from healer.text import quoted
from tests.support.api import CLUSTER, Api, incident, save_incident, save_run

Served = tuple[Api, httpx.Client]
DATA = b"\x1f\x8b" + b"packed" * 50


def collected(api: Api) -> tuple[str, EvidenceFile]:
    """The id of an incident, and the file of it."""
    one = incident(1)
    with api.engine.begin() as conn:
        save_incident(conn, one)
    bundle = Bundle(size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest(), parts=("dmesg: 9 lines",))
    file = EvidenceFile(
        id="e1", cluster=CLUSTER, node="gpu0001", run="r1", incident=one.id, name="gpu0001.txt.gz",
        at=datetime(2026, 11, 20, 3, tzinfo=UTC), bundle=bundle,
    )  # fmt: skip
    api.evidence.add(file, 0, DATA)
    api.evidence.finish(file)
    return one.id, file


def of_job(file: EvidenceFile) -> Run:
    """The run that collected the file, for the job 4711."""
    return Run(
        id=file.run, cluster=CLUSTER, playbook="collect-evidence", state=RunState.done, by="healer",
        reason=quoted("asked for"), created_at=file.at, node=file.node, job="4711", incident=file.incident,
    )  # fmt: skip


def test_an_operator_lists_and_takes_it_and_that_is_audited(served: Served) -> None:
    api, client = served
    found, file = collected(api)
    headers = api.headers("operator", name="ann")
    listed = client.get(f"/api/v1/incidents/{found}/evidence", headers=headers).json()["items"]
    assert [(one["id"], one["bundle"]["parts"]) for one in listed] == [("e1", ["dmesg: 9 lines"])]
    taken = client.get("/api/v1/evidence/e1", headers=headers)
    assert (taken.content, taken.headers["content-type"]) == (DATA, "application/gzip")
    assert file.name in taken.headers["content-disposition"]
    with api.engine.connect() as conn:
        actors = conn.execute(sa.text("SELECT actor FROM audit_records WHERE verb = 'evidence.taken'"))
        assert actors.scalars().all() == ["ann"]


def test_missing_evidence_is_reported_and_others_see_nothing(served: Served) -> None:
    api, client = served
    found, _ = collected(api)
    operator = api.headers("operator")
    assert client.get("/api/v1/evidence/e9", headers=operator).status_code == 404
    assert client.get("/api/v1/incidents/nothing/evidence", headers=operator).status_code == 404
    assert client.get("/api/v1/runs/nothing/evidence", headers=operator).status_code == 404
    for path in (f"/api/v1/incidents/{found}/evidence", "/api/v1/evidence/e1"):
        assert client.get(path, headers=api.headers("viewer")).status_code == 403
    elsewhere = api.headers("operator", cluster="pod2")
    assert client.get("/api/v1/evidence/e1", headers=elsewhere).status_code == 403


def test_a_token_of_one_job_takes_what_runs_for_that_job_collected_and_nothing_else(served: Served) -> None:
    api, client = served
    found, file = collected(api)
    with api.engine.begin() as conn:
        save_run(conn, of_job(file))
    of_it, of_another = (api.headers("operator", cluster=CLUSTER, job=job) for job in ("4711", "4712"))
    for path in (f"/api/v1/runs/{file.run}/evidence", f"/api/v1/evidence/{file.id}"):
        assert client.get(path, headers=of_it).status_code == 200
        assert client.get(path, headers=of_another).status_code == 403
    for headers in (of_it, of_another):
        assert client.get(f"/api/v1/incidents/{found}/evidence", headers=headers).status_code == 403


def test_the_command_line_lists_it_and_writes_it(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, client = served
    found, _ = collected(api)
    monkeypatch.setenv("HEALER_URL", str(client.base_url))
    monkeypatch.setenv("HEALER_TOKEN", api.token("operator"))
    listed = CliRunner().invoke(build(), ["evidence", found])
    assert listed.exit_code == 0 and "e1" in listed.output and "dmesg: 9 lines" in listed.output
    out = tmp_path / "it.gz"
    assert CliRunner().invoke(build(), ["evidence", found, "--out", str(out)]).exit_code == 0
    assert out.read_bytes() == DATA
    wrong = CliRunner().invoke(build(), ["evidence", found, "--out", str(out), "--file", "e9"])
    assert wrong.exit_code != 0 and "no such file" in str(wrong.exception)
