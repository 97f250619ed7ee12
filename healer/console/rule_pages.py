"""The pages of rules, playbooks, runbooks, and of rehearsals of rule changes over recordings."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from healer.api.granted import role_at
from healer.console.pages import Here, PageRoute, Pages, Trying, missing
from healer.console.views import playbooks_view, rules_view
from healer.console.views.runs_view import run_row
from healer.model import Mode
from healer.model.run import ACTIVE_REHEARSALS, Rehearsal
from healer.ports.queries import RunQuery
from healer.rulebook.source import unified_diff

#: The most frequent names that arrive and that no rule can use.
UNKNOWN_SHOWN = 200
#: The newest runs of all playbooks, for the list's statistics; and those of one playbook.
RUNS_SEEN, RUNS_SHOWN = 500, 20
#: Changes that the list shows.
REHEARSALS_SHOWN = 20
DAYS = ("1", "3", "7", "14", "31")

routes = APIRouter(route_class=PageRoute)
#: Only where changes are tried.
rehearsal_routes = APIRouter(route_class=PageRoute)


@routes.get("/rules")
def rules_page(
    request: Request, pages: Here, q: str = "", mode: str = "", kind: str = "", state: str = ""
) -> Response:
    context = pages.context(request, "rules")
    found = rules_view.rule_rows(pages.rule_book(context["cluster"]))
    unknown = pages.sources.unknown(context["cluster"], UNKNOWN_SHOWN)
    context |= {
        "rules": rules_view.fitting(found, text=q, mode=mode, kind=kind, state=state),
        "count": len(found),
        "unknown": unknown,
        "unknown_full": len(unknown) == UNKNOWN_SHOWN,
        "view": "unknown" if request.query_params.get("show") == "unknown" else "rules",
        "tries": pages.sources.trying is not None,
        "q": q,
        "mode": mode,
        "kind": kind,
        "state": state,
        "modes": [word.value for word in Mode],
    }
    return pages.show("rules.html", context)


@routes.get("/playbooks")
def playbooks_page(request: Request, pages: Here, q: str = "") -> Response:
    context = pages.context(request, "playbooks")
    book = pages.rule_book(context["cluster"])
    newest = pages.queries.runs.page(RunQuery(clusters=[context["cluster"]]), limit=RUNS_SEEN).items
    found = playbooks_view.entries(
        book.rules.playbooks.values(), rules_view.rule_rows(book), newest, context["now"]
    )
    context |= {
        "playbooks": playbooks_view.fitting(found, q),
        "count": len(found),
        "seen": len(newest),
        "q": q,
    }
    return pages.show("playbooks.html", context)


@routes.get("/playbooks/{name}")
def playbook_page(request: Request, pages: Here, name: str) -> Response:
    context = pages.context(request, "playbooks")
    cluster, now = context["cluster"], context["now"]
    book = pages.rule_book(cluster)
    playbook = book.rules.playbooks.get(name)
    if playbook is None:
        raise missing("playbook", name=name)
    rows = rules_view.rule_rows(book)
    ran = pages.queries.runs.page(RunQuery(clusters=[cluster], playbook=name), limit=RUNS_SHOWN).items
    runbook = playbook.runbook
    context |= {
        "playbook": playbooks_view.entry(playbook, rows, ran, now),
        "steps": playbooks_view.step_lines(playbook),
        "inputs": playbooks_view.input_lines(playbook.inputs),
        "rules": [row for row in rows if row.rule.playbook == name],
        "runs": [run_row(run, now) for run in ran],
        "runbook": pages.runbooks.html(runbook, context["keep"]) if runbook in pages.runbooks else None,
    }
    return pages.show("playbook.html", context)


@routes.get("/runbooks/{name}")
def runbook_page(request: Request, pages: Here, name: str) -> Response:
    context = pages.context(request, "playbooks")
    if name not in pages.runbooks:
        raise missing("runbook", name=name)
    today, playbooks = pages.runbooks.today, pages.rules.playbooks.values()
    context |= {
        "title": pages.runbooks.title(name),
        "text": pages.runbooks.html(name, context["keep"]),
        "playbooks": sorted(
            playbook.name for playbook in playbooks if today(playbook.runbook) == today(name)
        ),
    }
    return pages.show("runbook.html", context)


# --- changes that are tried ---


@rehearsal_routes.get("/rehearsals")
def rehearsals_page(request: Request, pages: Here, file: str = "", like: str = "") -> Response:
    context, trying = pages.context(request, "rules"), _trying(pages)
    cluster, names = context["cluster"], trying.files.names()
    like_this = trying.rehearsals.find(like) if like else None
    if like_this is not None and like_this.cluster == cluster:
        chosen, text = like_this.file, like_this.text
    else:
        chosen = file if file in names else "policies.yaml"
        text = trying.files.text(chosen) or ""
    found = trying.rehearsals.newest([cluster], REHEARSALS_SHOWN)
    context |= {
        "files": names,
        "file": chosen,
        "text": text,
        "days": DAYS,
        "recordings": trying.recordings(cluster),
        "tried": found,
        "under_way": next((tried for tried in found if tried.state in ACTIVE_REHEARSALS), None),
        "tones": rules_view.REHEARSAL_TONES,
    }
    return pages.show("rehearsals.html", context)


@rehearsal_routes.get("/rehearsals/{name}")
def rehearsal_page(request: Request, pages: Here, name: str) -> Response:
    session, book = pages.session(request), _trying(pages).rehearsals
    rehearsal = book.find(name)
    if rehearsal is None or rehearsal.cluster not in pages.clusters(session):
        raise missing("change", name=name)
    context = pages.context(request, "rules", rehearsal.cluster)
    outcomes = book.outcomes(rehearsal)
    context |= {
        "tried": rehearsal,
        "tone": rules_view.REHEARSAL_TONES[rehearsal.state],
        "under_way": rehearsal.state in ACTIVE_REHEARSALS,
        "outcomes": outcomes,
        "buttons": rules_view.rehearsal_buttons(rehearsal, outcomes, role_at(session, rehearsal.cluster)),
        "diff": unified_diff(rehearsal.file, rehearsal.before, rehearsal.text),
    }
    return pages.show("rehearsal.html", context | _result(_trying(pages), rehearsal))


def _trying(pages: Pages) -> Trying:
    trying = pages.sources.trying
    assert trying is not None  # otherwise these routes do not exist
    return trying


def _result(trying: Trying, rehearsal: Rehearsal) -> dict[str, Any]:
    """Its result; empty parts until there is one."""
    result = rehearsal.result
    if not result:
        return {"result": {}, "span": {}, "sections": {}}
    real = trying.rehearsals.real(rules_view.incidents_in(result))
    span = {name: _minute(result["span"][name]) for name in ("since", "until")}
    return {"result": result, "span": span, "sections": rules_view.differences(result, real)}


def _minute(moment: str) -> str:
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M} UTC"
