"""The pages of playbooks and of the runbooks that go with them."""

from fastapi import APIRouter, Request, Response

from healer.console.pages import Pages, guarded, link, missing
from healer.console.views import playbooks, rules, runs
from healer.ports.console_queries import RunQuery

#: The newest runs, of all playbooks, by which the list tells how they ended; and those of one playbook.
RUNS_SEEN, RUNS_SHOWN = 500, 20


def playbook_routes(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/playbooks")
    def playbooks_page(request: Request, q: str = "") -> Response:
        def show() -> Response:
            context = pages.context(request, "playbooks")
            book = pages.reads.rule_book(context["cluster"])
            newest = pages.reads.runs(RunQuery(cluster=context["cluster"]), limit=RUNS_SEEN).items
            found = playbooks.entries(
                book.rules.playbooks.values(), rules.rule_rows(book), newest, context["now"]
            )
            wanted = q.lower().split()
            context |= {
                "playbooks": [
                    one for one in found if all(word in f"{one.name} {one.title}".lower() for word in wanted)
                ],
                "count": len(found),
                "seen": len(newest),
                "q": q,
                "link": link,
            }
            return pages.show("playbooks.html", context)

        return guarded(show)

    @routes.get("/playbooks/{name}")
    def playbook_page(request: Request, name: str) -> Response:
        def show() -> Response:
            context = pages.context(request, "playbooks")
            cluster, now = context["cluster"], context["now"]
            book = pages.reads.rule_book(cluster)
            one = book.rules.playbooks.get(name)
            if one is None:
                raise missing("No such playbook", f"There is no playbook {name}.")
            known = rules.rule_rows(book)
            ran = pages.reads.runs(RunQuery(cluster=cluster, playbook=name), limit=RUNS_SHOWN).items
            context |= {
                "playbook": playbooks.entry(one, known, ran, now),
                "steps": playbooks.step_lines(one),
                "inputs": playbooks.input_lines(one.inputs),
                "rules": [rule for rule in known if rule.playbook == name],
                "runs": [runs.run_row(run, now) for run in ran],
                "runbook": pages.runbooks.html(one.runbook) if one.runbook in pages.runbooks else None,
                "link": link,
            }
            return pages.show("playbook.html", context)

        return guarded(show)

    @routes.get("/runbooks/{name}")
    def runbook_page(request: Request, name: str) -> Response:
        def show() -> Response:
            context = pages.context(request, "playbooks")
            if name not in pages.runbooks:
                raise missing("No such runbook", f"There is no runbook {name}.")
            context |= {
                "title": pages.runbooks.title(name),
                "text": pages.runbooks.html(name),
                "playbooks": sorted(
                    one.name for one in pages.reads.rules().playbooks.values() if one.runbook == name
                ),
                "link": link,
            }
            return pages.show("runbook.html", context)

        return guarded(show)
