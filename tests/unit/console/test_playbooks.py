"""The pages of playbooks, and the runbooks beside them."""

import re
from pathlib import Path

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.actions import CHECKS, VERBS, WAITS
from healer.console.render import Runbooks
from healer.console.views import playbooks_view
from healer.console.views.playbooks_view import UNDOES
from healer.model import Playbook, Role, Run, RunState, Step, Verb
from healer.rulebook.runbooks import MOVED, runbooks_dir
from tests.support import console_site, sayings
from tests.support.console_sample import CLUSTER, NOW, shipped
from tests.support.console_site import Site, make_sample

COOKIE = {"Cookie": "healer_session=cookie-good"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Site(make_sample(32), role=Role.viewer).app)


def playbook(*steps: Step, **more: object) -> Playbook:
    given = {"name": "one", "title": "One", "target": "node", **more}
    return Playbook(steps=steps, **given)  # type: ignore[arg-type]


def run(state: RunState, **more: object) -> Run:
    return Run(
        id="r", cluster=CLUSTER, playbook="one", state=state, by="healer", reason="", created_at=NOW,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_every_verb_check_and_wait_has_words_and_says_truly_whether_it_is_undone() -> None:
    keys = [f"verb_{verb}{part}" for verb in VERBS for part in ("", "_verified")]
    keys += [f"verb_{verb}_undone" for verb in UNDOES]
    keys += [*(f"check_{check}" for check in CHECKS), *(f"wait_{wait}" for wait in WAITS)]
    assert {f"console.{key}" for key in keys} <= sayings.entries("en").keys()
    assert {verb for verb, action in VERBS.items() if action.undo is not None} == UNDOES


@pytest.mark.parametrize(
    ("name", "takes", "person"),
    [
        ("drain", "the node", "Wait until the node is resumed"),
        ("requeue", "a job's work", ""),
        ("collect-evidence", "", ""),
        ("gpu-fatal", "the node and a job's work", "Wait for the repair"),
    ],
)
def test_a_playbook_says_what_it_takes_and_what_needs_a_person(name: str, takes: str, person: str) -> None:
    found = playbooks_view.entry(shipped().playbooks[name], [], [], NOW)
    assert (found.takes, found.person) == (takes, person)


def test_runs_are_counted_by_how_they_ended_and_shadow_runs_apart() -> None:
    ran = [run(RunState.done), run(RunState.done, shadow=True), run(RunState.stuck), run(RunState.done)]
    other = msgspec.structs.replace(run(RunState.cancelled), playbook="other")
    found = playbooks_view.entry(playbook(), [], [other, *ran], NOW)
    assert found.ended == "2 done, 1 stuck, 1 in shadow"
    assert found.last is not None and found.last.run is ran[0]
    assert playbooks_view.entry(playbook(), [], [], NOW).last is None


def test_step_shows_its_limits_its_condition_and_its_undo() -> None:
    drain, kept, test, wait, repair = playbooks_view.step_lines(
        playbook(
            Step(id="drain", do=Verb.drain, timeout_s=30, retries=4),
            Step(id="kept", do=Verb.drain, undo="keep", verify="node_answers"),
            Step(id="test", check="fabric_state", when="drain.passed", timeout_s=600),
            Step(id="empty", wait="empty", wait_s=86400, for_each="jobs_hit"),
            Step(id="repair", wait="repair"),
        )
    )
    assert (drain.limits, drain.undone, drain.takes) == ("30 s, 5 attempts", "Lifts the drain.", True)
    assert kept.undone == "Stays." and "And node_answers: Slurm reaches the node" in kept.verified
    assert (test.only, test.limits, test.undone) == ("Only if drain.passed.", "10 min", "")
    assert (wait.only, wait.limits) == ("Once for each of jobs_hit.", "asks a person after 1 d")
    assert (repair.limits, repair.kind) == ("none", "waits")


def test_every_playbook_has_a_page_with_its_runbook(client: TestClient) -> None:
    for name, one in shipped().playbooks.items():
        page = client.get(f"/playbooks/{name}", headers=COOKIE)
        assert page.status_code == 200, name
        assert ("h-book" in page.text) is bool(one.runbook), name
    listed = client.get("/playbooks", headers=COOKIE).text
    assert listed.count("<tr data-row=") == len(shipped().playbooks)
    assert client.get("/playbooks?q=gpu-reset", headers=COOKIE).text.count("<tr data-row=") == 1
    assert "No matching playbooks." in client.get("/playbooks?q=none+such", headers=COOKIE).text


@pytest.mark.parametrize("path", ["/playbooks/none", "/runbooks/none", "/runbooks/..%2F..%2Fpyproject"])
def test_unknown_playbook_is_answered_with_404(client: TestClient, path: str) -> None:
    assert client.get(path, headers=COOKIE).status_code == 404


def test_a_playbook_names_the_rules_that_use_it_with_their_modes(client: TestClient) -> None:
    page = client.get("/playbooks/gpu-fatal", headers=COOKIE).text
    row = page[page.index('data-row="gpu-lost"') :].partition("</tr>")[0]
    assert "approve" in row and "set by mara" in row
    assert "None: started by people only." in client.get("/playbooks/gpu-reset", headers=COOKIE).text


def test_every_runbook_is_served_and_its_links_lead_somewhere(client: TestClient) -> None:
    known = {path.stem for path in runbooks_dir().glob("*.md")}
    assert "gpu-reset" in known
    for name in known:
        page = client.get(f"/runbooks/{name}", headers=COOKIE).text
        text = page[page.index('class="panel prose"') :]
        for link in re.findall(r'href="([^"]+)"', text):
            assert link.startswith(("/runbooks/", "https://", "#")), (name, link)
            assert not link.startswith("/runbooks/") or link.removeprefix("/runbooks/") in known, (name, link)


def test_an_old_name_of_a_runbook_leads_to_the_page_that_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a playbook of the site, whose file an upgrade leaves alone."""
    site = playbook(Step(id="x", title="Say it", do=Verb.notify), title="Ours")
    site = msgspec.structs.replace(site, name="ours", runbook="power-cycle")
    rules = msgspec.structs.replace(shipped(), playbooks={**shipped().playbooks, "ours": site})
    monkeypatch.setattr(console_site, "shipped", lambda: rules)
    client = TestClient(Site(make_sample(8)).app)
    for old, new in MOVED.items():
        page = client.get(f"/runbooks/{old}", headers=COOKIE)
        assert page.status_code == 200 and not (runbooks_dir() / f"{old}.md").exists()
        assert Runbooks(runbooks_dir()).title(new) in page.text
    reboot = client.get("/runbooks/reboot", headers=COOKIE).text
    assert all(f'href="/playbooks/{name}' in reboot for name in ("ours", "power-cycle", "reboot-validate"))
    assert "h-book" in client.get("/playbooks/ours", headers=COOKIE).text


def test_a_runbook_of_the_site_cannot_bring_html_or_scripts(tmp_path: Path) -> None:
    text = "# A title\n\n<script>alert(1)</script> [x](javascript:alert(1)) [other](../gate.md) <img src=x>\n"
    (tmp_path / "evil.md").write_text(text)
    books = Runbooks(tmp_path)
    made = books.html("evil")
    assert books.title("evil") == "A title"
    assert "<script" not in made and "<img" not in made and "href" not in made


def test_playbook_pages_escape_text_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "<script>alert(1)</script>"
    one = playbook(Step(id="x", title=evil, do=Verb.notify, when=evil), title=evil)
    rules = msgspec.structs.replace(shipped(), playbooks={**shipped().playbooks, "one": one})
    monkeypatch.setattr(console_site, "shipped", lambda: rules)
    client = TestClient(Site(make_sample(8)).app)
    for path in ("/playbooks", "/playbooks/one"):
        page = client.get(path, headers=COOKIE).text
        assert evil not in page and "&lt;script&gt;alert(1)" in page, path
