"""The pages of what healer watches: nodes, jobs, and the rules it watches them by."""

from fastapi import APIRouter, Request, Response

from healer.console.pages import PAGE_ROWS, Pages, Stop, asking_by_incident, guarded
from healer.console.reads import IncidentQuery, RunQuery, Standing
from healer.console.views import incident, runs
from healer.console.views.buttons import node_buttons


def machine_routes(routes: APIRouter, pages: Pages) -> None:
    _node_routes(routes, pages)


def _node_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/nodes/{cluster}/{node}")
    def node_page(request: Request, cluster: str, node: str) -> Response:
        def show() -> Response:
            context = pages.context(request, "node", cluster)
            row = next((row for row in context["rows"] if row.name == node), None)
            if row is None:
                raise Stop(pages.problem(404, "No such node", f"Slurm shows no node {node} in {cluster}."))
            stands: Standing = context["standing"]
            query = IncidentQuery(cluster=cluster, node=node)
            past = pages.reads.incidents(query, limit=PAGE_ROWS)
            asking = asking_by_incident(stands)
            ran = pages.reads.runs(RunQuery(cluster=cluster, node=node), limit=PAGE_ROWS)
            now = context["now"]
            context |= {
                "row": row,
                "slurm": stands.snapshot.nodes[node] if stands.snapshot else None,
                "jobs": stands.snapshot.jobs_on(node) if stands.snapshot else [],
                "incidents": [incident.incident_row(one, asking, now) for one in past.items],
                "runs": [runs.run_row(run, now) for run in ran.items],
                "buttons": node_buttons(row, cluster, context["session"].role),
                "veto": next((veto for veto in stands.vetoes if veto.node == node), None),
                "slot": next((slot for slot in stands.slots if slot.node == node), None),
            }
            return pages.show("node.html", context)

        return guarded(show)
