"""The first loop as the engineer on call sees it: a real Chromium on a whole site with a real Slurm."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.site import XID_79, Site
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.browser]

#: Set to a folder, the pages of the story are kept there as pictures.
PICTURES = "PICTURES"


def picture(page: Page, name: str) -> None:
    folder = os.environ.get(PICTURES)
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_an_engineer_sees_the_fault_what_was_done_and_gives_the_node_back(
    site: Site, browser: Browser
) -> None:
    said: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(15_000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    link = site.stack.run("token", "create", "--role", "admin", "--name", "mara", "--once").stdout.split()[-1]
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_have_text("Fleet")
    expect(page.locator("#live")).to_have_text("live")
    picture(page, "1-fleet")

    job = site.sbatch("--nodes=2", "--requeue")
    node = site.job(job).nodes[0]
    page.goto(f"{site.stack.url}/incidents")
    expect(page.locator("#live")).to_have_text("live")
    site.kernel(node, XID_79)
    row = page.locator("tbody tr", has_text=node)
    expect(row).to_contain_text("Xid 79: GPU fell off the bus", timeout=10_000)
    row.locator("a").first.click()
    expect(page.locator("h1")).to_have_text("Xid 79: GPU fell off the bus")

    # No reload from here on: the page follows the run.
    wait_until(lambda: site.job(job).restarts == 1, 30, what=f"job {job} is restarted", every_s=0.1)
    site.run_in(node, "waiting")
    done = page.locator("section", has=page.locator("#h-done"))
    expect(done).to_contain_text(f"Affected jobs: {job}")
    expect(done).to_contain_text(f"More reports about {node} may follow")
    # Slurm's reason comes with the next poll, which may rest for 12 s.
    reason = f"healer:gpu-lost inc:{site.incident(node)['id'][:8]}"
    expect(page.locator(".facts")).to_contain_text(reason, timeout=20_000)
    expect(page.locator("section", has=page.locator("#h-hit"))).to_contain_text(f"job {job}")
    expect(page.locator(".timeline pre").first).to_contain_text("GPU has fallen off the bus")
    picture(page, "2-drained")

    page.get_by_role("button", name=f"Resume {node}").first.click()
    expect(page.locator("#act-preview")).to_contain_text("guards checked, all allow")
    page.fill("#act-text", "GPU board replaced")
    picture(page, "3-resume")
    page.locator("#act-go").click()
    expect(page.locator("#act")).to_be_hidden()
    wait_until(lambda: site.node(node).in_service, 20, what=f"{node} is back", every_s=0.1)
    expect(page.locator(".title .state")).to_have_text("resolved")
    expect(page.locator(".lede")).to_contain_text("mara")
    picture(page, "4-resolved")
    page.goto(f"{site.stack.url}/audit")
    expect(page.locator("main")).to_contain_text("mara")
    picture(page, "5-audit")
    page.goto(f"{site.stack.url}/")
    picture(page, "6-fleet")
    assert said == []
    site.audit_holds()
