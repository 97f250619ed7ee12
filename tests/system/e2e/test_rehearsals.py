"""A change of a rule as a site reviews it: recorded in production, tried in a real Chromium, made proof."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import rules_broken
from tests.support.up import ROOT, Stack
from tests.support.wait import wait_until

pytestmark = [pytest.mark.browser]

XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
RULE = "- name: gpu-lost\n"


@pytest.fixture
def stack(scratch: Path) -> Iterator[Stack]:
    """A site that records, with rules of its own."""
    rules = scratch / "rules"
    shutil.copytree(ROOT / "rules", rules)
    with Stack(
        scratch,
        HEALER_SLURM_ADAPTERS="sim",
        HEALER_MODE="auto",
        HEALER_RECORDING="on",
        HEALER_RULES_DIR=str(rules),
    ) as one:
        yield one


class Site:
    """What the test asks of the API."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.headers = stack.headers("admin", "--name", "root")
        self.sender = stack.headers("signals", "--name", "nodes")

    def get(self, path: str, **query: Any) -> Any:
        answer = self.stack.http.get(f"{self.stack.url}/api/v1{path}", params=query, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any) -> Any:
        headers = self.sender if path.startswith("/signals") else self.headers
        answer = self.stack.http.post(f"{self.stack.url}/api/v1{path}", json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.json()

    def lost_gpu(self, node: str) -> dict[str, Any]:
        """Its incident, once healer has drained the node."""
        self.post("/signals/kernel-log", {"node": node, "entries": [{"line": XID_79}]})

        def drained() -> Any:
            found = self.get("/incidents", node=node)["items"]
            return found[0] if found and self.is_drained(node, found[0]["cluster"]) else None

        return wait_until(drained, 60, what=f"{node} is drained")

    def is_drained(self, node: str, cluster: str) -> bool:
        return "DRAIN" in json.dumps(self.get(f"/nodes/{cluster}/{node}"))


def signed_in(stack: Stack, browser: Browser) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(20_000)
    link = stack.run("token", "create", "--role", "admin", "--name", "mara", "--once").stdout.split()[-1]
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_have_text("Fleet")
    return page


def test_a_rule_change_is_tried_reviewed_and_made_proof(stack: Stack, browser: Browser) -> None:
    site = Site(stack)
    node = wait_until(lambda: site.get("/nodes")["items"], 30, what="Slurm's nodes are known")[0]["name"]
    incident = site.lost_gpu(node)
    site.post(f"/incidents/{incident['id']}/review", {"review": "true_fault", "reason": "the board was dead"})
    recorded = lambda: "signals/kernel-log" in json.dumps(site.get("/recordings"))  # noqa: E731
    wait_until(recorded, 90, what="the line is recorded")
    assert "signals/kernel-log" in stack.run("recordings").stdout
    doctor = json.loads(stack.run("doctor", "--json", check=False).stdout)
    (check,) = [one for one in doctor["checks"] if one["name"] == "recording"]
    assert check["ok"] and check["text"].startswith("on, ")

    page = signed_in(stack, browser)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{stack.url}/rules")
    page.get_by_role("link", name="Rehearse a change").click()
    text = page.locator("#text")
    now = text.input_value()
    assert RULE in now
    assert rules_broken(page) == []
    # What is wrong is said with its line, and nothing starts.
    text.fill(now.replace(RULE, RULE + "  colour: red\n"))
    page.fill("#why", "let people see it first")
    page.locator("#try-go").click()
    expect(page.locator("#try-problem")).to_contain_text("colour", timeout=60_000)
    said.clear()  # the browser itself says that an answer was 422
    # No other sender reports that GPU: there would be no drain.
    text.fill(now.replace(RULE, RULE + "  senses: 2\n"))
    # An answer that is lost on the way: the same press again leads to the rehearsal that the first one began.
    page.route("**/api/v1/rehearsals", lambda route: (route.fetch(timeout=90_000), route.abort()), times=1)
    page.locator("#try-go").click()
    expect(page.locator("#try-problem")).to_contain_text("No answer from healer", timeout=90_000)
    said.clear()
    page.locator("#try-go").click()
    # The whole set is proven on its cases first: seconds, on a busy machine more.
    expect(page.locator("h1")).to_have_text("Rehearsal of policies.yaml", timeout=90_000)
    expect(page.locator(".tag", has_text="done").first).to_be_visible(timeout=180_000)
    expect(page.locator("#by-rule")).to_contain_text("gpu-lost")
    lost = page.locator("h2", has_text="Actions that no longer happen").locator(
        "xpath=following-sibling::table[1]"
    )
    expect(lost).to_contain_text("drain")
    expect(lost.get_by_role("link", name=incident["id"][:8]).first).to_be_visible()
    expect(lost).to_contain_text("true fault")
    expect(page.locator("#diff")).to_contain_text("+  senses: 2")
    assert rules_broken(page) == []
    name = page.url.rpartition("/")[2]
    assert (stack.data_dir.parent / "rules" / "policies.yaml").read_text() == now, "nothing is applied"

    # A person makes it proof of the rule as edited.
    row = page.locator("#outcomes tr", has_text="gpu-lost")
    expect(row).to_contain_text("not accepted")
    page.get_by_role("button", name="Accept as proof").click()
    expect(page.locator("#act-effect")).to_contain_text("gpu-lost: 1 true faults, 0 false alarms")
    page.fill("#act-text", "reviewed with its replay")
    page.locator("#act-go").click()
    expect(row).to_contain_text("accepted by mara", timeout=20_000)
    verbs = [one["verb"] for one in site.get("/audit", subject=f"rehearsal/{name}")["items"]]
    assert sorted(verbs) == ["rehearsal.asked", "rehearsal.ended", "rule.proven_by_replay"]
    assert said == []

    # The same in a terminal and for CI: beside what was really done.
    token = site.headers["Authorization"].removeprefix("Bearer ")
    stack.environ |= {"HEALER_URL": stack.url, "HEALER_TOKEN": token}
    same = stack.run("replay", str(stack.data_dir / "recordings"), "--against", "done", "--json")
    document = json.loads(same.stdout)
    assert [one for one in document["incidents"]["lost"] if one["rule"] == "gpu-lost"] == []
    assert [one for one in document["actions"]["lost"] if one["action"] == "drain"] == []
    proof = stack.run("rules", "proof", "--from-replay", name, "--rule", "gpu-lost", "--reason", "again")
    assert "gpu-lost" in proof.stdout
