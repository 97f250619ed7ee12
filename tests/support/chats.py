"""Stand-ins for chats, pagers and a mail server: real HTTP and SMTP on 127.0.0.1.

Each checks what its real one checks (path, proof, shape, bounds), keeps what it took, and answers as that one
does. What is wrong with a request is answered as the real service answers it, and noted in `complaints`.
"""

import base64
import hashlib
import hmac
import json
import re
import socket
import socketserver
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from email import message_from_bytes
from email.message import Message as Mail
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_stand_in import Quiet, running

SLACK_TOKEN = "xoxb-not-to-be-told"
WECOM_KEY = "wecom-not-to-be-told"
DING_TOKEN, DING_SECRET = "ding-not-to-be-told", "SECding"
FEISHU_HOOK, FEISHU_SECRET = "feishu-not-to-be-told", "feishusecret"
PAGER_KEY = "0123456789abcdef0123456789abcdef"
AM_TOKEN = "am-not-to-be-told"
SECRETS = (SLACK_TOKEN, WECOM_KEY, DING_TOKEN, DING_SECRET, FEISHU_HOOK, FEISHU_SECRET, PAGER_KEY, AM_TOKEN)

Answer = tuple[int, dict[str, str], Any]


class Chats:
    """`answers`: what is said next instead of the usual, (status, headers, body). `"silent"` says nothing,
    `"reset"` breaks the line, `"taken"` takes the message and then says nothing, `"drip"` takes it and
    answers byte by byte for some seconds."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: deque[Answer | str] = deque()
        self.complaints: list[str] = []
        #: What each service took: its bodies in order; Slack's messages by ts.
        self.taken: dict[str, list[Any]] = {}
        self.slack: dict[str, dict[str, Any]] = {}
        self.alerts: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.closing = threading.Event()
        #: The pager refuses everything about this.
        self.refused = ""
        self._lock = threading.Lock()

    @property
    def wecom(self) -> str:
        return f"{self.url}/cgi-bin/webhook/send?key={WECOM_KEY}"

    @property
    def ding(self) -> str:
        return f"{self.url}/robot/send?access_token={DING_TOKEN}"

    @property
    def feishu(self) -> str:
        return f"{self.url}/open-apis/bot/v2/hook/{FEISHU_HOOK}"

    def wrong(self, text: str) -> None:
        self.complaints.append(text)

    def take(self, service: str, body: Any) -> None:
        self.taken.setdefault(service, []).append(body)

    # --- the services ---

    def serve(self, method: str, target: str, headers: dict[str, str], raw: bytes) -> Answer:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        with self._lock:
            if method == "GET":
                if parts.path == "/api/conversations.history":
                    return self._slack_history(headers, query)
                if parts.path == "/api/conversations.replies":
                    return self._slack_history(headers, query, query["ts"])
                return 404, {}, {}
            if not headers.get("content-type", "").startswith("application/json"):
                self.wrong(f"{parts.path}: content-type {headers.get('content-type')}")
                return 415, {}, {}
            body = json.loads(raw)
            for path, answer in (
                ("/api/chat.postMessage", lambda: self._slack_post(headers, body)),
                ("/api/chat.update", lambda: self._slack_update(headers, body)),
                ("/cgi-bin/webhook/send", lambda: self._wecom(query, body)),
                ("/robot/send", lambda: self._ding(query, body)),
                (f"/open-apis/bot/v2/hook/{FEISHU_HOOK}", lambda: self._feishu(body, raw)),
                ("/v2/enqueue", lambda: self._pager(body)),
                ("/api/v2/alerts", lambda: self._alerts(headers, body)),
            ):
                if parts.path == path:
                    return answer()
        return 404, {}, {}

    def _slack_ok(self, headers: dict[str, str], body: dict[str, Any]) -> Answer | None:
        if headers.get("authorization") != f"Bearer {SLACK_TOKEN}":
            return 200, {}, {"ok": False, "error": "invalid_auth"}
        if body["channel"] != "C0HEALER":
            return 200, {}, {"ok": False, "error": "channel_not_found"}
        if not body.get("text"):
            return 200, {}, {"ok": False, "error": "no_text"}
        if (why := bad_blocks(body.get("blocks", []))) is not None:
            self.wrong(why)
            return 200, {}, {"ok": False, "error": "invalid_blocks"}
        return None

    def _slack_post(self, headers: dict[str, str], body: dict[str, Any]) -> Answer:
        if (bad := self._slack_ok(headers, body)) is not None:
            return bad
        if body.get("thread_ts") and body["thread_ts"] not in self.slack:
            return 200, {}, {"ok": False, "error": "thread_not_found"}
        ts = f"{int(time.time())}.{len(self.slack):06d}"
        self.slack[ts] = body
        return 200, {}, {"ok": True, "channel": "C0HEALER", "ts": ts, "message": {}}

    def _slack_update(self, headers: dict[str, str], body: dict[str, Any]) -> Answer:
        if (bad := self._slack_ok(headers, body)) is not None:
            return bad
        if body.get("ts") not in self.slack:
            return 200, {}, {"ok": False, "error": "message_not_found"}
        self.slack[body["ts"]] = {**self.slack[body["ts"]], **body}
        return 200, {}, {"ok": True, "channel": "C0HEALER", "ts": body["ts"]}

    def _slack_history(self, headers: dict[str, str], query: dict[str, str], thread: str = "") -> Answer:
        """The newest first; of a thread its root and its replies, the oldest first."""
        if headers.get("authorization") != f"Bearer {SLACK_TOKEN}":
            return 200, {}, {"ok": False, "error": "invalid_auth"}
        if thread and thread not in self.slack:
            return 200, {}, {"ok": False, "error": "thread_not_found"}
        meta = query.get("include_all_metadata") == "true"
        found = [
            {"ts": ts, **({"metadata": one["metadata"]} if meta and "metadata" in one else {})}
            for ts, one in sorted(self.slack.items(), reverse=not thread)
            if (thread in (ts, one.get("thread_ts")) if thread else "thread_ts" not in one)
        ]
        return 200, {}, {"ok": True, "messages": found[: int(query["limit"])], "has_more": False}

    def _wecom(self, query: dict[str, str], body: dict[str, Any]) -> Answer:
        if query.get("key") != WECOM_KEY:
            return 200, {}, {"errcode": 93000, "errmsg": "invalid webhook url"}
        kind = body["msgtype"]
        most = {"markdown": 4096, "text": 2048}[kind]
        if len(body[kind]["content"].encode()) > most:
            return 200, {}, {"errcode": 40058, "errmsg": f"content exceed max length {most}"}
        if set(body[kind]) - {"content", "mentioned_list", "mentioned_mobile_list"}:
            self.wrong(f"wecom: {sorted(body[kind])}")
        self.take("wecom", body)
        return 200, {}, {"errcode": 0, "errmsg": "ok"}

    def _ding(self, query: dict[str, str], body: dict[str, Any]) -> Answer:
        if query.get("access_token") != DING_TOKEN:
            return 200, {}, {"errcode": 300005, "errmsg": "token is not exist"}
        stamp = query.get("timestamp", "0")
        made = hmac.new(DING_SECRET.encode(), f"{stamp}\n{DING_SECRET}".encode(), hashlib.sha256).digest()
        if abs(time.time() * 1000 - int(stamp)) > 3_600_000 or query.get("sign") != b64(made):
            return 200, {}, {"errcode": 310000, "errmsg": "sign not match"}
        kind = body["msgtype"]
        wanted = {"markdown": {"title", "text"}, "actionCard": {"title", "text", "btnOrientation", "btns"}}
        if set(body[kind]) != wanted[kind] or not all(body[kind].values()):
            return 200, {}, {"errcode": 40035, "errmsg": "invalid parameter"}
        for button in body[kind].get("btns", []):
            if set(button) != {"title", "actionURL"}:
                return 200, {}, {"errcode": 40035, "errmsg": "invalid parameter"}
        self.take("dingtalk", body)
        return 200, {}, {"errcode": 0, "errmsg": "ok"}

    def _feishu(self, body: dict[str, Any], raw: bytes) -> Answer:
        stamp = body.get("timestamp", "0")
        made = hmac.new(f"{stamp}\n{FEISHU_SECRET}".encode(), b"", hashlib.sha256).digest()
        if abs(time.time() - int(stamp)) > 3600 or body.get("sign") != b64(made):
            return 200, {}, {"code": 19021, "msg": "sign match fail or timestamp is not within one hour"}
        if len(raw) > 20 * 1024:
            return 200, {}, {"code": 11246, "msg": "too large"}
        card = body["card"]
        tags = [one["tag"] for one in card["elements"]]
        if body["msg_type"] != "interactive" or not card["header"]["title"]["content"] or not tags:
            return 200, {}, {"code": 9499, "msg": "Bad Request"}
        self.take("feishu", body)
        return 200, {}, {"code": 0, "msg": "success", "data": {}}

    def _pager(self, body: dict[str, Any]) -> Answer:
        problems = []
        if body.get("routing_key") != PAGER_KEY:
            problems.append("routing_key is invalid")
        if body.get("event_action") not in ("trigger", "acknowledge", "resolve"):
            problems.append("event_action")
        if not 0 < len(body.get("dedup_key", "")) <= 255:
            problems.append("dedup_key")
        if body.get("event_action") == "trigger":
            payload = body.get("payload", {})
            if not 0 < len(payload.get("summary", "")) <= 1024 or not payload.get("source"):
                problems.append("payload")
            if payload.get("severity") not in ("critical", "error", "warning", "info"):
                problems.append("severity")
            datetime.fromisoformat(payload["timestamp"])
        if self.refused and self.refused in body.get("dedup_key", ""):
            problems.append("refused")
        if problems:
            return (
                400,
                {},
                {"status": "invalid event", "message": "Event object is invalid", "errors": problems},
            )
        self.take("pagerduty", body)
        return 202, {}, {"status": "success", "message": "Event processed", "dedup_key": body["dedup_key"]}

    def _alerts(self, headers: dict[str, str], body: list[dict[str, Any]]) -> Answer:
        if headers.get("authorization") != f"Bearer {AM_TOKEN}":
            return 401, {}, {}
        for one in body:
            names = one["labels"]
            if "alertname" not in names or not all(re.fullmatch(r"[a-zA-Z_]\w*", name) for name in names):
                return 400, {}, "bad labels"
            starts, ends = one.get("startsAt"), one["endsAt"]
            if starts and datetime.fromisoformat(starts) > datetime.fromisoformat(ends):
                return 400, {}, "start time must be before end time"
        for one in body:
            self.alerts[json.dumps(one["labels"], sort_keys=True)] = one
            self.take("alertmanager", one)
        return 200, {}, None


def bad_blocks(blocks: list[dict[str, Any]]) -> str | None:
    """What Slack would refuse of these blocks."""
    if len(blocks) > 50:
        return "more than 50 blocks"
    for one in blocks:
        if one["type"] == "header":
            if one["text"]["type"] != "plain_text" or len(one["text"]["text"]) > 150:
                return "header"
        elif one["type"] == "section":
            if not 0 < len(one["text"]["text"]) <= 3000:
                return "section"
        elif one["type"] == "actions":
            for element in one["elements"]:
                if element["type"] not in ("button", "static_select") or not element["action_id"]:
                    return "element"
                for option in element.get("options", []):
                    if len(option["text"]["text"]) > 75 or len(option["value"]) > 150:
                        return "option"
                if len(element.get("value", "")) > 2000:
                    return "value"
        elif one["type"] != "context":
            return f"a block {one['type']}"
    return None


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@contextmanager
def serve_chats() -> Iterator[Chats]:
    chats = Chats()

    class Handler(Quiet):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            self._answer("POST", raw)

        def do_GET(self) -> None:
            self._answer("GET", b"")

        def _answer(self, method: str, raw: bytes) -> None:
            chats.asked.append((method, self.path))
            headers = {name.lower(): value for name, value in self.headers.items()}
            scripted = chats.answers.popleft() if chats.answers else None
            if scripted in (None, "taken", "drip"):
                answer = chats.serve(method, self.path, headers, raw)
            if scripted in ("silent", "taken"):
                chats.closing.wait(30)
                self.close_connection = True
                return
            if scripted == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.close_connection = True
                return
            status, more, body = scripted if isinstance(scripted, tuple) else answer
            content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
            if scripted == "drip":
                content = b" " * 60 + content
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                with suppress(BrokenPipeError, ConnectionResetError):
                    for at in range(len(content)):
                        chats.closing.wait(0.05)
                        self.wfile.write(content[at : at + 1])
                return
            self.give(status, more, content)

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler), chats.closing) as port:
        chats.url = f"http://127.0.0.1:{port}"
        yield chats


# --- SMTP --------------------------------------------------------------------------------------------------


class MailServer:
    """Takes mail after STARTTLS (or TLS at once) and a log-in. `says` maps a command, or its whole line, to
    what it answers. It answers a mail after `scan_s`, and with `drips` says that every 0.1 s and never
    greets."""

    def __init__(self) -> None:
        self.port = 0
        self.scan_s, self.drips = 0.0, b""
        self.closing = threading.Event()
        self.mails: list[tuple[list[str], Mail]] = []
        self.says: dict[str, bytes] = {}
        self.plain: list[str] = []


@contextmanager
def serve_mail(certificate: Path, *, tls_at_once: bool = False) -> Iterator[MailServer]:
    mail = MailServer()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    proof = base64.b64encode(b"\0healer\0mail-not-to-be-told").decode()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.line = self.request
            self.safe = tls_at_once
            if tls_at_once:
                self.line = context.wrap_socket(self.line, server_side=True)
            self.file = self.line.makefile("rb")
            self.logged_in, self.to = False, []  # type: ignore[var-annotated]
            try:
                while mail.drips:
                    self.line.sendall(mail.drips)
                    mail.closing.wait(0.1)
                self.say(b"220 stand-in")
                while line := self.file.readline():
                    if not self.command(line.decode("ascii", "replace").strip()):
                        return
            except OSError:
                return

        def say(self, text: bytes) -> None:
            self.line.sendall(text + b"\r\n")

        def command(self, line: str) -> bool:
            word = line.split(" ", maxsplit=1)[0].upper()
            if not self.safe and word not in ("EHLO", "HELO", "STARTTLS", "QUIT", "RSET"):
                mail.plain.append(line)
            if line in mail.says or word in mail.says:
                answer = mail.says.get(line, mail.says.get(word))
                if not answer:
                    return False
                self.say(answer)
                return True
            if word in ("EHLO", "HELO"):
                more = b"250 AUTH PLAIN" if self.safe else b"250 STARTTLS"
                self.say(b"250-stand-in\r\n" + more)
            elif word == "STARTTLS":
                self.say(b"220 go on")
                self.line = context.wrap_socket(self.line, server_side=True)
                self.file, self.safe = self.line.makefile("rb"), True
            elif word == "AUTH":
                self.logged_in = line.rsplit(" ", maxsplit=1)[-1] == proof
                self.say(b"235 welcome" if self.logged_in else b"535 5.7.8 no")
            elif word == "MAIL":
                self.to = []
                self.say(b"250 ok" if self.logged_in else b"530 log in first")
            elif word == "RCPT":
                self.to.append(line.partition("<")[2].partition(">")[0])
                self.say(b"250 ok")
            elif word == "DATA":
                self.say(b"354 go on")
                content = b""
                while (part := self.file.readline()) != b".\r\n":
                    content += part[1:] if part.startswith(b"..") else part
                mail.mails.append((self.to, message_from_bytes(content)))
                mail.closing.wait(mail.scan_s)
                self.say(b"250 taken")
            elif word == "QUIT":
                self.say(b"221 bye")
                return False
            else:
                self.say(b"250 ok")
            return True

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Server(("127.0.0.1", 0), Handler)
    mail.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield mail
    finally:
        mail.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
