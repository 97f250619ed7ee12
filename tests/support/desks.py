"""Stand-ins for a site's webhook, Jira Cloud, Jira Data Center, GitHub and ServiceNow: HTTP on 127.0.0.1.

Each checks what its real one checks (method, path, proof, media types, shape, bounds), keeps tickets as that
one does and answers in its words. What healer should never send is noted in `complaints`.
"""

import base64
import hmac
import json
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.http_stand_in import Quiet, running

USER, TOKEN = "healer@site.example", "token-not-to-be-told"
BASIC = "Basic " + base64.b64encode(f"{USER}:{TOKEN}".encode()).decode()
BEARER = f"Bearer {TOKEN}"

Answer = tuple[int, dict[str, str], Any]


class Asked:
    def __init__(self, method: str, target: str, headers: dict[str, str], raw: bytes) -> None:
        parts = urlsplit(target)
        self.method, self.path, self.headers = method, unquote(parts.path), headers
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.raw = raw
        self.body: Any = json.loads(raw) if raw else None


class Desk:
    """`answers`: what is said next instead of the usual, (status, headers, body); bytes go as they are.
    `"silent"` says nothing, `"reset"` breaks the line, `"taken"` does it and then breaks the line. `fails` is
    the same, but for the next request of that method and of a path that ends so."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: deque[Answer | str] = deque()
        self.fails: dict[tuple[str, str], Answer | str] = {}
        self.complaints: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.closing = threading.Event()
        self.lock = threading.Lock()

    def serve(self, one: Asked) -> Answer:
        raise NotImplementedError

    def texts(self) -> list[str]:
        """The content of each ticket, notes included."""
        raise NotImplementedError

    def open_tickets(self) -> int:
        raise NotImplementedError

    def edit(self, *, closed: bool) -> None:
        """A person closes or opens the first ticket."""
        raise NotImplementedError

    def next_answer(self, one: Asked) -> Answer | str | None:
        for (method, end), answer in list(self.fails.items()):
            if one.method == method and one.path.endswith(end):
                del self.fails[method, end]
                return answer
        return self.answers.popleft() if self.answers else None

    def wants_json(self, one: Asked) -> bool:
        if one.body is not None and not one.headers.get("content-type", "").startswith("application/json"):
            self.complaints.append(f"{one.method} {one.path}: content-type {one.headers.get('content-type')}")
        return "json" in one.headers.get("accept", "")


# --- a site's own webhook ----------------------------------------------------------------------------------


class SiteHook(Desk):
    """A receiver that does as docs/notifications.md says."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.tickets: dict[str, dict[str, Any]] = {}

    def serve(self, one: Asked) -> Answer:
        number, stamp = one.headers["webhook-id"], one.headers["webhook-timestamp"]
        made = hmac.digest(TOKEN.encode(), f"{number}.{stamp}.".encode() + one.raw, "sha256")
        if one.headers.get("webhook-signature") != "v1," + base64.b64encode(made).decode():
            return 401, {}, None
        if (one.method, one.path) != ("POST", "/tickets"):
            return 404, {}, None
        if one.headers["content-type"] != "application/cloudevents+json":
            return 415, {}, None
        if one.body["type"] != "healer.ticket.v1" or one.body["id"] != number:
            return 400, {}, None
        data = one.body["data"]
        name = f"REPAIR-{len(self.tickets) + 1}"
        ticket = self.tickets.setdefault(data["key"], {"name": name, "open": True, "told": []})
        if number not in self.seen:
            self.seen.add(number)
            ticket["told"].append([data["title"], data["text"]])
            if data["stage"] in ("closed", "reopened"):
                ticket["open"] = data["stage"] == "reopened"
        return 201, {}, {"reference": ticket["name"]}

    def texts(self) -> list[str]:
        return [json.dumps(one["told"]) for one in self.tickets.values()]

    def open_tickets(self) -> int:
        return sum(one["open"] for one in self.tickets.values())

    def edit(self, *, closed: bool) -> None:
        next(iter(self.tickets.values()))["open"] = not closed


# --- Jira --------------------------------------------------------------------------------------------------

_TODO = {"name": "To Do", "statusCategory": {"key": "new"}}
_DOING = {"name": "In Progress", "statusCategory": {"key": "indeterminate"}}
_DONE = {"name": "Done", "statusCategory": {"key": "done"}}
_WONT = {"name": "Won't Do", "statusCategory": {"key": "done"}}


class Jira(Desk):
    """`indexed` False: the search does not show new issues, as real ones for some seconds."""

    def __init__(self, *, cloud: bool) -> None:
        super().__init__()
        self.cloud, self.api = cloud, "/rest/api/3" if cloud else "/rest/api/2"
        self.issues: dict[str, dict[str, Any]] = {}
        self.indexed = True
        self.resolution_required = False
        self.only_ways: list[dict[str, Any]] | None = None
        self.lacks: set[str] = set()

    def serve(self, one: Asked) -> Answer:
        if one.headers.get("authorization") != (BASIC if self.cloud else BEARER):
            return 401, {}, {"errorMessages": ["You do not have the permission"], "errors": {}}
        if not self.wants_json(one) or not one.path.startswith(self.api):
            return 404, {}, "<html>"
        path = one.path.removeprefix(self.api)
        if (one.method, path) == ("POST", "/issue"):
            return self._create(one.body["fields"])
        if (one.method, path) == ("POST", "/search/jql" if self.cloud else "/search"):
            return self._search(one.body)
        if (one.method, path) == ("GET", "/mypermissions"):
            names = one.query["permissions"].split(",")
            given = {name: {"havePermission": name not in self.lacks} for name in names}
            return 200, {}, {"permissions": given}
        if (one.method, path) == ("GET", "/issue/createmeta/OPS/issuetypes"):
            types = [{"id": "1", "name": "Task"}, {"id": "2", "name": "Bug"}]
            return 200, {}, {"issueTypes" if self.cloud else "values": types}
        return self._issue(one, path)

    def _bad(self, **errors: str) -> Answer:
        return 400, {}, {"errorMessages": [], "errors": errors}

    def _create(self, fields: dict[str, Any]) -> Answer:
        if fields.get("project") != {"key": "OPS"}:
            return self._bad(project="valid project is required")
        if fields.get("issuetype") not in ({"name": "Task"}, {"name": "Bug"}):
            return self._bad(issuetype="Specify a valid issue type")
        summary = fields.get("summary") or ""
        if not 0 < len(summary) <= 255 or "\n" in summary:
            return self._bad(summary="Summary must be less than 255 characters.")
        if set(fields) != {"project", "issuetype", "summary", "description", "labels"}:
            return self._bad(
                **{sorted(fields)[0]: "Field cannot be set. It is not on the appropriate screen"}
            )
        if any(" " in label for label in fields["labels"]):
            return self._bad(labels="The label contains spaces which is invalid.")
        if (bad := self._bad_text(fields["description"])) is not None:
            return self._bad(description=bad)
        key = f"OPS-{len(self.issues) + 1}"
        self.issues[key] = {"fields": fields, "status": _TODO, "comments": [], "resolution": None}
        return 201, {}, {"id": str(10000 + len(self.issues)), "key": key, "self": f"{self.url}/x"}

    def _bad_text(self, text: Any) -> str | None:
        if not self.cloud:
            return (
                None if isinstance(text, str) and len(text) <= 32767 else "Operation value must be a string"
            )
        if not isinstance(text, dict) or (text.get("type"), text.get("version")) != ("doc", 1):
            return "Operation value must be an Atlassian Document"
        for part in text["content"]:
            if part["type"] != "paragraph" or not all(one["text"] for one in part["content"]):
                return "INVALID_INPUT"
        return None if len(json.dumps(text, ensure_ascii=False)) < 200_000 else "CONTENT_LIMIT_EXCEEDED"

    def _search(self, asked: dict[str, Any]) -> Answer:
        found = re.fullmatch(r'labels = "([\w-]+)" ORDER BY created ASC', asked["jql"])
        if found is None:
            return 400, {}, {"errorMessages": ["Error in the JQL Query"], "errors": {}}
        known = [key for key, one in self.issues.items() if found[1] in one["fields"]["labels"]]
        shown = known[: asked["maxResults"]] if self.indexed else []
        return 200, {}, {"issues": [self._shown(key) for key in shown], "isLast": True}

    def _shown(self, key: str) -> dict[str, Any]:
        return {"id": "10001", "key": key, "fields": {"status": self.issues[key]["status"]}}

    def _issue(self, one: Asked, path: str) -> Answer:
        key, _, what = path.removeprefix("/issue/").partition("/")
        issue = self.issues.get(key)
        if issue is None:
            words = "Issue does not exist or you do not have permission to see it."
            return 404, {}, {"errorMessages": [words], "errors": {}}
        if (one.method, what) == ("GET", ""):
            return 200, {}, self._shown(key)
        if (one.method, what) == ("GET", "comment"):
            return 200, {}, {"comments": list(reversed(issue["comments"])), "total": len(issue["comments"])}
        if (one.method, what) == ("POST", "comment"):
            if (bad := self._bad_text(one.body["body"])) is not None:
                return self._bad(comment=bad)
            issue["comments"].append({"id": str(len(issue["comments"])), "body": one.body["body"]})
            return 201, {}, {"id": "1"}
        if what == "transitions":
            return self._transitions(one, issue)
        return 405, {}, None

    def _transitions(self, one: Asked, issue: dict[str, Any]) -> Answer:
        ways = [
            {"id": "11", "name": "Start", "to": _DOING},
            {"id": "21", "name": "Reject", "to": _WONT},
            {"id": "31", "name": "Finish", "to": _DONE},
        ]
        ways = ways if self.only_ways is None else self.only_ways
        if one.method == "GET":
            allowed = [{"name": "Won't Do"}, {"name": "Fixed"}]
            fields = {"resolution": {"required": self.resolution_required, "allowedValues": allowed}}
            return 200, {}, {"transitions": [{**way, "fields": fields} for way in ways]}
        way = next((way for way in ways if way["id"] == one.body["transition"]["id"]), None)
        if way is None:
            return (
                400,
                {},
                {"errorMessages": ["It seems that you have tried to perform a workflow operation"]},
            )
        resolution = (one.body.get("fields") or {}).get("resolution", {}).get("name")
        if self.resolution_required and resolution is None:
            return self._bad(resolution="Resolution is required.")
        if not self.resolution_required and resolution is not None:
            return self._bad(resolution="Field 'resolution' cannot be set.")
        issue |= {"status": way["to"], "resolution": resolution}
        return 204, {}, None

    def texts(self) -> list[str]:
        return [
            json.dumps([one["fields"]["summary"], one["fields"]["description"], one["comments"]])
            for one in self.issues.values()
        ]

    def open_tickets(self) -> int:
        return sum(one["status"]["statusCategory"]["key"] != "done" for one in self.issues.values())

    def edit(self, *, closed: bool) -> None:
        self.issues["OPS-1"]["status"] = _DONE if closed else _DOING


# --- GitHub ------------------------------------------------------------------------------------------------


class GitHub(Desk):
    def __init__(self) -> None:
        super().__init__()
        self.issues: list[dict[str, Any]] = []
        self.comments: dict[int, list[dict[str, Any]]] = {}
        self.about: dict[str, Any] = {"has_issues": True, "archived": False}
        self.searched: list[str] = []
        self.incomplete = False
        #: Paths of the repository, also by its number; and addresses of what was moved, by old path.
        self.repositories = ["/repos/site/repairs", "/repositories/4711"]
        self.moved: dict[str, str] = {}

    def serve(self, one: Asked) -> Answer:
        if one.headers.get("authorization") != BEARER:
            return 401, {}, {"message": "Bad credentials"}
        if one.headers.get("x-github-api-version") != "2022-11-28" or not one.headers.get("user-agent"):
            self.complaints.append("no version of the API, or no user agent")
        if one.headers.get("accept") != "application/vnd.github+json":
            self.complaints.append(f"accept {one.headers.get('accept')}")
        self.wants_json(one)
        if (one.method, one.path) == ("GET", "/search/issues"):
            return self._search(one.query["q"])
        if (moved := self.moved.get(one.path)) is not None:
            return 301, {"location": moved}, {"message": "Moved Permanently", "url": moved}
        here = next((repo for repo in self.repositories if one.path.startswith(repo)), None)
        if here is None:
            return 404, {}, {"message": "Not Found"}
        path = one.path.removeprefix(here)
        match one.method, path:
            case "GET", "":
                return 200, {}, self.about
            case "GET", "/issues":
                return self._list(one.query)
            case "POST", "/issues":
                return self._create(one.body)
        return self._issue(one, path)

    def _list(self, query: dict[str, str]) -> Answer:
        if (query["state"], query["sort"], query["direction"]) != ("all", "created", "desc"):
            self.complaints.append(f"a list by {query}")
        since = query.get("since", "")
        assert not since or datetime.fromisoformat(since)
        found = [one for one in reversed(self.issues) if one["updated_at"] >= since]
        size, page = int(query["per_page"]), int(query["page"])
        return 200, {}, found[size * (page - 1) : size * page]

    def _search(self, q: str) -> Answer:
        self.searched.append(q)
        found = re.fullmatch(r'"([\w-]+)" in:body is:issue repo:site/repairs', q)
        if found is None:
            return 422, {}, {"message": "Validation Failed", "errors": [{"field": "q", "code": "invalid"}]}
        items = [one for one in self.issues if found[1] in (one["body"] or "")]
        items = [] if self.incomplete else items
        return 200, {}, {"total_count": 0, "incomplete_results": self.incomplete, "items": items}

    def _create(self, body: dict[str, Any]) -> Answer:
        title, text = body.get("title"), body.get("body") or ""
        if not title or len(title) > 256:
            error = {"resource": "Issue", "field": "title", "code": "missing_field"}
            return 422, {}, {"message": "Validation Failed", "errors": [error]}
        if len(text) > 65536:
            return 422, {}, {"message": "Validation Failed", "errors": [{"message": "body is too long"}]}
        issue = self.add(title, text)
        issue["labels"] = [{"name": label} for label in body["labels"]]
        return 201, {"location": f"{self.url}/repos/site/repairs/issues/{issue['number']}"}, issue

    def add(self, title: str, body: str | None, at: datetime | None = None, **more: Any) -> dict[str, Any]:
        stamp = f"{at or datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        issue: dict[str, Any] = {
            "number": len(self.issues) + 1, "title": title, "body": body, "state": "open", "labels": [],
            "created_at": stamp, "updated_at": stamp, **more,
        }  # fmt: skip
        self.issues.append(issue)
        return issue

    def _issue(self, one: Asked, path: str) -> Answer:
        found = re.fullmatch(r"/issues/(\d+)(/comments)?", path)
        if found is None or int(found[1]) > len(self.issues):
            return 404, {}, {"message": "Not Found"}
        issue = self.issues[int(found[1]) - 1]
        notes = self.comments.setdefault(int(found[1]), [])
        match one.method, bool(found[2]):
            case "GET", False:
                return 200, {}, issue
            case "PATCH", False:
                if set(one.body) - {"state", "state_reason"} or one.body["state"] not in ("open", "closed"):
                    return 422, {}, {"message": "Validation Failed"}
                issue |= one.body
                return 200, {}, issue
            case "GET", True:
                size, page = int(one.query["per_page"]), int(one.query["page"])
                return 200, {}, notes[size * (page - 1) : size * page]
            case "POST", True:
                if not 0 < len(one.body["body"]) <= 65536:
                    return 422, {}, {"message": "Validation Failed"}
                notes.append({"id": len(notes), "body": one.body["body"]})
                return 201, {}, notes[-1]
        return 405, {}, None

    def texts(self) -> list[str]:
        return [
            json.dumps([one["title"], one["body"], self.comments.get(one["number"], [])])
            for one in self.issues
        ]

    def open_tickets(self) -> int:
        return sum(one["state"] == "open" for one in self.issues)

    def edit(self, *, closed: bool) -> None:
        self.issues[0]["state"] = "closed" if closed else "open"


# --- ServiceNow --------------------------------------------------------------------------------------------


class ServiceNow(Desk):
    """`says_no_record`: a query that finds nothing is 404, as in some releases. `keeps`: fields that a rule
    of the site does not let change. `lacks`: fields that the table does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, str]] = []
        self.lacks: set[str] = set()
        self.says_no_record = False
        self.keeps: set[str] = set()
        self.roles: list[dict[str, str]] | None = [{"role.name": "itil"}]

    def serve(self, one: Asked) -> Answer:
        if one.headers.get("authorization") not in (BASIC, BEARER):
            return 401, {}, _sn("User Not Authenticated", "Required to provide Auth information")
        if not self.wants_json(one):
            return 406, {}, _sn("Not acceptable", "")
        if one.path == "/api/now/table/sys_user_has_role":
            if self.roles is None:
                return 403, {}, _sn("Operation Failed", "ACL Exception")
            if f"user.user_name={USER}^role.nameIN" not in one.query["sysparm_query"]:
                self.complaints.append(one.query["sysparm_query"])
            return 200, {}, {"result": self.roles}
        if not one.path.startswith("/api/now/table/incident"):
            return 400, {}, _sn("Invalid table", None)
        handle = one.path.removeprefix("/api/now/table/incident").removeprefix("/")
        if handle:
            return self._record(one, handle)
        if one.method == "POST":
            return self._create(one)
        return self._query(one.query) if one.method == "GET" else (405, {}, None)

    def _query(self, query: dict[str, str]) -> Answer:
        found = self.records
        for part in query.get("sysparm_query", "").split("^"):
            name, _, value = part.partition("=")
            if part and not part.startswith("ORDERBY") and name not in self.lacks:
                found = [one for one in found if one.get(name) == value]
        if not found and self.says_no_record:
            return (
                404,
                {},
                _sn("No Record found", "Record doesn't exist or ACL restricts the record retrieval"),
            )
        rows = found[: int(query["sysparm_limit"])]
        shown = [{name: one[name] for name in one.keys() - self.lacks} for one in rows]
        return 200, {}, {"result": [_picked(one, query) for one in shown]}

    def _create(self, one: Asked) -> Answer:
        body = one.body
        if not 0 < len(body["short_description"]) <= 160 or len(body["description"]) > 4000:
            return 403, {}, _sn("Operation Failed", "Operation against file 'incident' was aborted")
        if {body["urgency"], body["impact"]} - {"1", "2", "3"}:
            self.complaints.append("urgency")
        number = len(self.records) + 1
        record = {"sys_id": f"{number:032x}", "number": f"INC{number:07d}", "state": "1", "work_notes": ""}
        self.records.append({**record, **body})
        return 201, {"location": f"{self.url}/x"}, {"result": _picked(self.records[-1], one.query)}

    def _record(self, one: Asked, handle: str) -> Answer:
        record = next((record for record in self.records if record["sys_id"] == handle), None)
        if record is None:
            return (
                404,
                {},
                _sn("No Record found", "Record doesn't exist or ACL restricts the record retrieval"),
            )
        if one.method == "GET":
            as_text = one.query.get("sysparm_display_value") == "true"
            shown = record if as_text else {**record, "work_notes": ""}
            return 200, {}, {"result": _picked(shown, one.query)}
        if one.method != "PATCH":
            return 405, {}, None
        body = dict(one.body)
        if body.get("state") == "6" and not (body.get("close_code") and body.get("close_notes")):
            return 403, {}, _sn("Operation Failed", "Data Policy Exception: Resolution code is mandatory")
        if any(len(value) > 4000 for value in body.values()):
            return 403, {}, _sn("Operation Failed", "too long")
        if "work_notes" in body:
            body["work_notes"] = (
                f"2026-11-20 03:00:00 - healer (Work notes)\n{body['work_notes']}\n\n"
                + (record["work_notes"])
            )
        record |= {name: value for name, value in body.items() if name not in self.keeps}
        return 200, {}, {"result": _picked(record, one.query)}

    def texts(self) -> list[str]:
        return [json.dumps(one) for one in self.records]

    def open_tickets(self) -> int:
        return sum(one["state"] not in ("6", "7", "8") for one in self.records)

    def edit(self, *, closed: bool) -> None:
        self.records[0]["state"] = "7" if closed else "2"


def _sn(message: str, detail: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "detail": detail}, "status": "failure"}


def _picked(record: dict[str, str], query: dict[str, str]) -> dict[str, str]:
    names = query["sysparm_fields"].split(",")
    return {name: record.get(name, "") for name in names}


# --- HTTP --------------------------------------------------------------------------------------------------


@contextmanager
def serve_desk(desk: Desk) -> Iterator[Desk]:
    class Handler(Quiet):
        def _take(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            desk.asked.append((self.command, self.path))
            one = Asked(self.command, self.path, headers, raw)
            with desk.lock:
                scripted = desk.next_answer(one)
                answer = desk.serve(one) if scripted in (None, "taken") else None
            if scripted == "silent":
                desk.closing.wait(30)
                self.close_connection = True
            elif scripted in ("reset", "taken"):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
            else:
                self._say(*(scripted if isinstance(scripted, tuple) else answer or (500, {}, None)))

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _take

        def _say(self, status: int, more: dict[str, str], body: Any) -> None:
            content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
            self.give(status, more, content)

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler), desk.closing) as port:
        desk.url = f"http://127.0.0.1:{port}"
        yield desk
