"""The pages on which a change of the rules is tried over what was recorded."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from healer.console.pages import Pages, guarded, link, missing
from healer.console.views import rehearsal
from healer.model.rehearsal import UNDER_WAY
from healer.ports.console_queries import RehearsalReads
from healer.rulebook.rule_diff import unified

#: Changes that the list shows.
SHOWN = 20
DAYS = ("1", "3", "7", "14", "31")


def _minute(moment: str) -> str:
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M} UTC"


def rehearsal_routes(routes: APIRouter, pages: Pages, reads: RehearsalReads) -> None:
    @routes.get("/rehearsals")
    def try_page(request: Request, file: str = "", like: str = "") -> Response:
        def show() -> Response:
            context = pages.context(request, "rules")
            cluster = context["cluster"]
            names = reads.files()
            tried = reads.one(like) if like else None
            if tried is not None and tried.cluster == cluster:
                chosen, text = tried.file, tried.text
            else:
                chosen = file if file in names else "policies.yaml"
                text = reads.text(chosen) or ""
            found = reads.newest(cluster, SHOWN)
            context |= {
                "files": names,
                "file": chosen,
                "text": text,
                "days": DAYS,
                "recordings": reads.recordings(cluster),
                "tried": found,
                "under_way": next((one for one in found if one.state in UNDER_WAY), None),
                "tones": rehearsal.TONES,
                "link": link,
            }
            return pages.show("rehearsals.html", context)

        return guarded(show)

    @routes.get("/rehearsals/{name}")
    def one_page(request: Request, name: str) -> Response:
        def show() -> Response:
            session = pages.session(request)
            tried = reads.one(name)
            if tried is None or tried.cluster not in pages.clusters(session):
                raise missing("No such change", f"No change {name} was tried.")
            context: dict[str, Any] = pages.context(request, "rules", tried.cluster)
            outcomes = reads.outcomes(tried)
            result = tried.result or {}
            context |= {
                "tried": tried,
                "tone": rehearsal.TONES[tried.state],
                "under_way": tried.state in UNDER_WAY,
                "result": result,
                "span": {name: _minute(result["span"][name]) for name in ("since", "until")}
                if result
                else {},
                "sections": (
                    rehearsal.differences(result, reads.real(rehearsal.incidents_in(result)))
                    if result
                    else {}
                ),
                "outcomes": outcomes,
                "buttons": rehearsal.buttons(tried, outcomes, session.role),
                "diff": unified(tried.file, tried.before, tried.text),
                "link": link,
            }
            if result:
                real = reads.real(rehearsal.incidents_in(result))
                context["sections"] = rehearsal.differences(result, real)
                context["span"] = {name: _minute(result["span"][name]) for name in ("since", "until")}
            return pages.show("rehearsal.html", context)

        return guarded(show)
