"""A lost GPU on a real Slurm, and its one ticket at GitHub: opened though the answer was lost, closed with
the proof."""

import json

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.desks import TOKEN, GitHub, serve_desk
from tests.support.site import XID_79, site_on
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm


def test_an_incidents_ticket_is_opened_once_and_closed_with_the_proof(real_slurm: RealSlurm) -> None:
    with serve_desk(GitHub()) as github:
        assert isinstance(github, GitHub)
        with site_on(
            real_slurm,
            HEALER_TICKETS="github",
            HEALER_TICKETS_URL=github.url,
            HEALER_TICKETS_PROJECT="site/repairs",
            HEALER_TICKETS_TOKEN=TOKEN,
        ) as site:
            github.fails["POST", "/issues"] = "taken"  # it is made, and the answer is lost
            job = site.sbatch("--nodes=2", "--requeue")
            node = site.job(job).nodes[0]
            site.kernel(node, XID_79)
            site.run_in(node, "waiting")
            wait_until(lambda: github.issues, 10, what="the issue is there")
            assert site.resume(node, "GPU 3 replaced").status_code == 202
            wait_until(lambda: not github.open_tickets(), 60, what="the ticket is closed", every_s=0.2)
            incident = site.incident(node)
            wait_until(
                lambda: not site.sql("SELECT 1 FROM messages WHERE kind = 'ticket' AND state = 'due'"),
                20,
                what="every delivery is noted",
            )
            tickets = site.sql("SELECT DISTINCT state, reference FROM messages WHERE kind = 'ticket'")
            assert tickets == [("sent", "site/repairs#1")]
            site.audit_holds()
        (issue,) = github.issues
        assert f"Ticket key: healer-{incident['id']}" in issue["body"]
        assert "fell off the bus" in issue["body"] and node in issue["title"]
        proof = json.dumps(github.comments[1])
        for words in (
            "returned to service by",
            "GPU 3 replaced",
            " drain: ",
            f" requeue:{job}: ",
            " resume: ",
        ):
            assert words in proof, words
        assert github.complaints == []
