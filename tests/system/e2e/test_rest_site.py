"""A site of Slurm 24.11 that is asked by slurmrestd first and by the commands for what that cannot do.

One `healer up` for four stories in their order; a second one, with rights that are too low, for the last.
"""

import html
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import trixie
from tests.support.signing_in import press_sign_in
from tests.support.site import CLUSTER, XID_79, Site, keep_logs
from tests.support.slurm import sbatch
from tests.support.stack import scratch_folder
from tests.support.trixie import PLAIN_USER, TrixieSlurm
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

#: A job that saves on a signal, notes each, and goes on: between its drain and its requeue lie some seconds,
#: more than the five after which slurmctld has written the drain down.
GRACE_S = 10
RIGHT = (
    "Changing a node requires AdminLevel=Administrator in accounting, SlurmUser or root; "
    "Operator is not enough."
)
WIDE = {"HEALER_BREAKER_SHARE": "1.0", "HEALER_GUARD_MIN_SERVICE_SHARE": "0.5"}
NOTES_SIGNALS = "trap 'echo saved >>{noted}' USR1; while :; do sleep 0.2; done"


class RestSite(Site):
    """`folder` holds the token and what was asked of Slurm's commands."""

    def __init__(self, cluster: TrixieSlurm, folder: Path, *, user: str = "root", **environ: Any) -> None:
        self.folder, self.rest = folder, cluster
        self.token_file, self.asked = folder / "slurm-token", folder / "asked"
        self.asked.touch()
        self.asked.chmod(0o666)  # each part notes what it asks
        self._browser: httpx.Client | None = None
        self.renew(user=user)
        super().__init__(
            cluster,
            folder,
            HEALER_SLURM_REST_URL=cluster.rest_url,
            HEALER_SLURM_TOKEN_FILE=str(self.token_file),
            HEALER_SLURM_BIN_DIR=str(self._commands()),
            **environ,
        )

    def renew(self, **how: Any) -> None:
        """Another token in the file, as a cron job would put it there."""
        new = self.token_file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(f"SLURM_JWT={self.rest.token(**how)}\n")
        shutil.chown(new, group="healer")
        new.chmod(0o640)
        new.rename(self.token_file)

    def _commands(self) -> Path:
        """The cluster's commands, each noting how it was called."""
        folder = self.folder / "bin"
        folder.mkdir()
        for command in self.rest.bin_dir.iterdir():
            noted = folder / command.name
            noted.write_text(f'#!/bin/sh\necho "{command.name} $*" >>{self.asked}\nexec {command} "$@"\n')
            noted.chmod(0o755)
        return folder

    def commands(self, *words: str) -> list[str]:
        """Calls of Slurm's commands so far that hold all of these words."""
        called = self.asked.read_text().splitlines() if self.asked.exists() else []
        return [one for one in called if set(words) <= set(one.split())]

    def slurm_check(self) -> dict[str, Any]:
        return self.stack.http.get(f"{self.stack.url}/readyz").json()["checks"]["slurm"]

    def troubles(self) -> dict[str, str]:
        return {one["what"]: one["text"] for one in self.slurm_check().get("troubles", ())}

    def passed_over(self) -> str:
        """Which adapter is, and why."""
        text = wait_until(lambda: self.troubles().get("passed_over"), 40, what="it is said", every_s=0.2)
        assert text is not None
        return text

    def __exit__(self, *about: Any) -> None:
        if self._browser is not None:
            self._browser.close()
        super().__exit__(*about)

    def page(self, path: str = "/") -> str:
        """What a person reads there."""
        if self._browser is None:
            self._browser = httpx.Client(base_url=self.stack.url, follow_redirects=True, timeout=20)
            press_sign_in(self._browser, self.stack.token("viewer", "--once"))
        answer = self._browser.get(path)
        assert answer.status_code == 200, answer.text
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())

    def incident_page(self, node: str) -> str:
        return self.page(f"/incidents/{self.incident(node)['id']}")

    def two_nodes(self, *options: str, **about: Any) -> tuple[str, str]:
        """A job of two nodes that runs; (job, its first node)."""
        job = sbatch(self.slurm, "--nodes=2", "--requeue", *options, gpus=8, **about)
        self.jobs.append(job)
        wait_until(lambda: self.job(job).state == "RUNNING", 20, what=f"job {job} runs", every_s=0.1)
        return job, self.job(job).nodes[0]

    def kept(self, file: str, text: str) -> None:
        """slurmctld has written this down: it knows it again after a kill."""
        state = self.rest.directory / "state" / file
        wait_until(lambda: text.encode() in state.read_bytes(), 20, what=f"{text} stands in {file}")

    def runs_elsewhere(self, job: str, node: str) -> None:
        """Restarted once, and its run is complete."""
        wait_until(lambda: self._again(job), 60, what=f"job {job} runs again", every_s=0.1)
        assert node not in self.job(job).nodes
        self.run_in(node, "waiting", timeout_s=60)
        assert (self.job(job).restarts, self.drains(node)) == (1, 1)

    def _again(self, job: str) -> bool:
        shown = self.job(job)
        return (shown.state, shown.restarts) == ("RUNNING", 1)

    def doctor(self) -> dict[str, dict[str, Any]]:
        """What `healer doctor` says of Slurm, by name."""
        done = self.stack.run("doctor", "--json", check=False)
        checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        return {name: check for name, check in checks.items() if name.startswith("slurm")}


@contextmanager
def opened(**about: Any) -> Iterator[RestSite]:
    with scratch_folder() as folder:
        site = RestSite(trixie.started(), folder, **about)
        try:
            with site:
                yield site
        except BaseException:
            keep_logs(site)
            raise


def test_slurmrestd_first_and_the_commands_for_what_it_cannot_do() -> None:
    with opened(HEALER_SLURM_ADAPTERS="rest,cli", **WIDE) as site:
        wait_until(lambda: site.get("/nodes", limit=1)["items"], 20, what="the first picture")
        assert site.troubles() == {}
        a_drain_by_slurmrestd_and_a_requeue_by_command(site)
        a_controller_that_is_away_between_drain_and_requeue(site)
        slurmrestd_is_killed_and_comes_back(site)
        a_token_ends_and_is_renewed(site)
        site.audit_holds()


def a_drain_by_slurmrestd_and_a_requeue_by_command(site: RestSite) -> None:
    """slurmrestd of 24.11 has no requeue."""
    job, node = site.two_nodes()
    site.kernel(node, XID_79)
    site.runs_elsewhere(job, node)
    assert site.commands("update", f"NodeName={node}") == []
    assert len(site.commands("requeue", "Incomplete", job)) == 1
    incident = site.incident(node)
    assert (incident["jobs_hit"], incident["state"]) == ([job], "mitigating")
    read = site.incident_page(node)
    assert f"Drained: healer:gpu-lost inc:{incident['id'][:8]}" in read
    assert f"Job {job} was requeued (restart 1)" in read
    assert ". Its owner was notified in Slurm." in read
    runs_on = f"2 nodes ({', '.join(site.job(job).nodes)})"
    wait_until(lambda: runs_on in site.incident_page(node), 10, what="where it runs now", every_s=0.2)
    assert site.troubles() == {}


def a_controller_that_is_away_between_drain_and_requeue(site: RestSite) -> None:
    noted = site.folder / "saved"
    saves = f"--comment=healer:signal=USR1@{GRACE_S}"
    job, node = site.two_nodes(saves, script=NOTES_SIGNALS.format(noted=noted))
    # slurmctld writes down what it knows after some seconds. Killed before that it has forgotten that the job
    # ever ran: it would start it again without any requeue, as restart 0.
    ran_on = re.search(r"^ +NodeList=(\S+)", site.slurm.run("scontrol", "show", "job", job), re.MULTILINE)
    assert ran_on is not None
    # The start of a job that its backfill chose is written down with the next change of any job.
    site.slurm.run("scontrol", "update", f"JobId={job}", "AdminComment=runs")
    site.kept("job_state", ran_on[1])
    site.kernel(node, XID_79)
    run = site.run_in(node, "running")["id"]

    def says(words: str) -> bool:
        return words in site.steps(run).get(f"requeue:{job}", {}).get("text", "")

    wait_until(lambda: says("Sent USR1"), 20, what="the job is asked to save", every_s=0.05)
    site.kept("node_state", f"inc:{site.incident(node)['id'][:8]}")
    site.rest.kill_controller()
    try:
        wait_until(lambda: "away" in site.troubles(), 40, what="seen to be away", every_s=0.2)
        assert "Slurm cannot be read" in site.page()
        wait_until(lambda: says("Slurm did not answer"), 40, what="the requeue was tried", every_s=0.2)
    finally:
        site.rest.start_controller()
    site.runs_elsewhere(job, node)
    assert site.runs(node)[0]["id"] == run
    assert noted.read_text() == "saved\n"


def slurmrestd_is_killed_and_comes_back(site: RestSite) -> None:
    job, node = site.two_nodes()
    site.rest.kill_rest()
    try:
        site.kernel(node, XID_79)
        site.runs_elsewhere(job, node)
        assert len(site.commands("update", f"NodeName={node}", "State=DRAIN")) == 1
        said = site.passed_over()
        assert said.startswith(f"Slurm is reached through cli: rest: slurmrestd at {site.rest.rest_url} ")
        assert "Connection refused" in said
        assert said in site.incident_page(node)
    finally:
        site.rest.start_rest()
    wait_until(lambda: site.troubles() == {}, 40, what="slurmrestd is asked again", every_s=0.2)


def a_token_ends_and_is_renewed(site: RestSite) -> None:
    site.renew(lifespan_s=2)
    said = site.passed_over()
    assert said.startswith(
        "Slurm is reached through cli: rest: Slurm rejected the token for slurmrestd (it expired "
    )
    assert said in site.page()
    checks = site.doctor()
    assert {name for name, check in checks.items() if not check["ok"]} == {"slurm rest token", "slurm rest"}
    assert "for root, expired" in checks["slurm rest token"]["text"]
    site.renew()
    wait_until(lambda: site.troubles() == {}, 40, what="the new token is taken", every_s=0.2)


def test_rights_that_are_too_low_leave_all_as_it_is_and_ask_a_person() -> None:
    with opened(HEALER_SLURM_ADAPTERS="rest", user=PLAIN_USER) as site:
        wait_until(lambda: site.get("/nodes", limit=1)["items"], 20, what="the first picture")
        job, node = site.two_nodes()
        before = site.shown(node)
        site.kernel(node, XID_79)
        run = site.run_in(node, "stuck")
        assert "Slurm did not drain" in run["question"]
        assert (
            f"Invalid user id (2010): the account of the token lacks the permission. {RIGHT}"
            in run["question"]
        )
        # Nothing was done to any job; it is not retried.
        assert site.steps(run["id"])["drain"]["attempt"] == 1
        assert [name for name, step in site.steps(run["id"]).items() if step["state"] != "pending"] == [
            "drain"
        ]
        assert site.shown(node) == before
        assert (site.job(job).state, site.job(job).restarts) == ("RUNNING", 0)

        def known() -> bool:
            incident = site.incident(node)
            return incident["known_bad_in_service"] and incident["jobs_hit"] == [job]

        wait_until(known, 10, what="faulty, in service, with the job that it holds", every_s=0.1)
        assert site.incident(node)["severity"] == "P0"
        shown = site.get(f"/nodes/{CLUSTER}/{node}")
        assert (shown["known_bad_in_service"], shown["may_run_jobs"]) == (True, True)
        read = site.incident_page(node)
        assert RIGHT in read
        assert f"{node} is faulty and still in service." in read
        assert "healer could not drain it; a person can drain it in Slurm." in read
        check = site.doctor()["slurm rest rights"]
        assert RIGHT in check["text"] and not check["ok"]
        site.audit_holds()
