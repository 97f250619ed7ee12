"""What commands share: a client of the API, options, and ways to print."""

import json
import os
import re
import secrets
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from healer.commands import Failed, Misused, local, say_json
from healer.commands.kept_logins import kept_login
from healer.model.shown import one_line, shown
from healer.text import Said, in_language, quoted, say
from healer.text.language import current

if TYPE_CHECKING:
    import httpx


DEFAULT_URL = "http://127.0.0.1:8080"
PREFIX = "/api/v1"


class ClientError(Failed):
    """One sentence for people; `problem` is the body of an RFC 9457 answer, empty when there was none."""

    def __init__(self, text: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.problem = dict(problem or {})


class Client:
    """Speaks to HEALER_URL with HEALER_TOKEN, or the token in the file HEALER_TOKEN_FILE, else as who has
    used `healer login` there. `anonymous`: with none of them."""

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, timeout_s: float = 30, anonymous: bool = False
    ) -> None:
        variables = os.environ if environ is None else environ
        self.url = url_of(variables)
        token = "" if anonymous else _token(variables, self.url)
        import httpx  # heavy, and only some commands ask the API

        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout_s,
            headers={"Accept-Language": current.get()}
            | ({"Authorization": f"Bearer {token}"} if token else {}),
            follow_redirects=False,
            verify=_trust(variables),
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        return self._ask("GET", path, params=given(query))

    def post(self, path: str, body: Any, *, once: bool = False, **query: Any) -> Any:
        """`once`: with a key, by which a repeat of the same request acts no second time."""
        headers = {"Idempotency-Key": secrets.token_hex(16)} if once else {}
        return self._ask("POST", path, json=body, params=given(query), headers=headers)

    def send(self, path: str, content: bytes, kind: str, *, packed: str | None = None, **query: Any) -> Any:
        """A body that is not JSON. `packed` is its Content-Encoding."""
        headers = {"Content-Type": kind} | ({"Content-Encoding": packed} if packed else {})
        return self._ask("POST", path, content=content, params=given(query), headers=headers)

    def download(self, path: str) -> bytes:
        """A file, unchanged."""
        answer = self._answer("GET", path)
        return answer.content if answer.is_success else self._read(answer)

    def delete(self, path: str, body: Any) -> Any:
        return self._ask("DELETE", path, json=body)

    def items(self, path: str, most: int, **query: Any) -> Iterator[dict[str, Any]]:
        """The items of a list, page by page, `most` at most."""
        cursor: str | None = None
        left = most
        while left > 0:
            page = self.get(path, limit=min(left, 500), cursor=cursor, **query)
            if not isinstance(page, dict):
                raise ClientError(say("commands.api_other", url=self.url, status=200))
            yield from page["items"]
            left -= len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        return self._read(self._answer(method, path, **more))

    def _answer(self, method: str, path: str, **more: Any) -> "httpx.Response":
        import httpx

        try:
            return self._http.request(method, PREFIX + path, **more)
        except httpx.HTTPError as error:
            if (untrusted := _untrusted(error)) is not None:
                why = quoted(untrusted.verify_message)
                raise ClientError(say("commands.api_untrusted", url=self.url, why=why)) from error
            raise ClientError(say("commands.api_away", url=self.url, why=str(error))) from error

    def _named(self, found: dict[str, Any]) -> "_Named":
        named = _Named(found)
        named.url = self.url
        return named

    def _read(self, answer: "httpx.Response") -> Any:
        """The JSON of the answer; raises ClientError if it is a problem."""
        other = say("commands.api_other", url=self.url, status=answer.status_code)
        try:
            body = answer.json(object_hook=self._named) if answer.content else None
        except (ValueError, RecursionError):  # no JSON, or no text at all
            raise ClientError(other) from None
        if answer.is_success:
            if not isinstance(body, dict | list | None):
                raise ClientError(other)
            return body
        problem = body if isinstance(body, dict) else {}
        detail = problem.get("detail") or answer.reason_phrase
        text = say("commands.api_problem", detail=one_line(str(detail)), status=answer.status_code)
        raise ClientError(text, problem)


class _Named(dict[str, Any]):
    """An object of an answer. What a command reads and the answer lacks is one sentence, in every command."""

    url = ""

    def __missing__(self, name: str) -> Any:
        raise ClientError(say("commands.api_lacks", url=self.url, name=quoted(repr(name))))


def _untrusted(error: BaseException | None) -> "ssl.SSLCertVerificationError | None":
    """Why the server's certificate was refused, where that is what a failed request comes from."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def given(query: Mapping[str, Any]) -> dict[str, Any]:
    """The query without missing values."""
    return {name: value for name, value in query.items() if value not in (None, "", [], (), {})}


def _trust(environ: Mapping[str, str]) -> "ssl.SSLContext | bool":
    """The authority in the file HEALER_CA_FILE, else the system's."""
    path = environ.get("HEALER_CA_FILE")
    if not path:
        return True
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise Misused(_unreadable("HEALER_CA_FILE", path, error)) from error


def url_of(environ: Mapping[str, str]) -> str:
    """HEALER_URL, or where `healer up` listens by default. Raises Misused for what is no web address."""
    url = (environ.get("HEALER_URL") or DEFAULT_URL).rstrip("/")
    if not re.match(r"https?://[^/]", url, re.IGNORECASE):
        raise Misused(
            say("commands.of_field", field="HEALER_URL", text=say("commands.no_address", given=url))
        )
    return url


def _token(environ: Mapping[str, str], url: str) -> str:
    token = environ.get("HEALER_TOKEN", "").strip()
    path = environ.get("HEALER_TOKEN_FILE")
    if not token and path:
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Misused(_unreadable("HEALER_TOKEN_FILE", path, error)) from error
    if not token and (kept := kept_login(environ, url)) is not None:
        token = kept.token
    if not token:
        raise ClientError(say("commands.no_token"))
    if not token.isascii() or not token.isprintable():
        raise ClientError(say("commands.bad_token"))
    return token


def _unreadable(setting: str, path: str, error: Exception) -> Said:
    why = getattr(error, "strerror", None) or str(error)
    return say("commands.setting_unreadable", setting=setting, path=path, why=why)


#: Declared once, so that it reads the same everywhere.
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
REASON = typer.Option(..., "--reason", help="Reason, recorded in the audit.")
#: Answers a command's own questions. Whether a second person must agree is the server's question.
YES = typer.Option(False, "--yes", help="Do not ask for confirmation.")
CLUSTER = typer.Option(None, "--cluster", help="The cluster, if there is more than one.")
RulesFolder = Annotated[Path | None, typer.Option("--rules", help="The folder. Default: HEALER_RULES_DIR.")]


def print_json(value: Any) -> None:
    say_json(json.dumps(value, ensure_ascii=False))


#: The key of an item's value, or a function of the item.
Column = str | Callable[[dict[str, Any]], Any]


def second_of(name: str) -> Column:
    """The item's time of this name to the second, or nothing; the heading says that it is in UTC."""
    return lambda item: (item[name] or "")[:19]


def named_columns(names: Sequence[str]) -> dict[str, Column]:
    """Columns headed as they are named in JSON; the times are named `…_at`."""
    found: dict[str, Column] = {}
    for name in names:
        is_time = name.endswith("_at")
        found[f"{name} (UTC)" if is_time else name] = second_of(name) if is_time else name
    return found


def add_group(
    app: typer.Typer, name: str, help_text: str, commands: Mapping[str, Callable[..., None]]
) -> None:
    """Adds the commands below `healer NAME`."""
    group = typer.Typer(no_args_is_help=True, help=help_text, rich_markup_mode=None)
    for command, function in commands.items():
        group.command(command)(function)
    app.add_typer(group, name=name)


#: Maximum width of a name in the first column: a longer one is broken at the end of the line.
NAME_MAX = 40


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A plain table, as wide as the terminal; nothing is cut."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    language = current.get()
    titles = [in_language(column, language) for column in columns]
    table = Table(box=None, pad_edge=False, header_style="bold")
    cells = [[shown(_words(cell)) for cell in row] for row in rows]
    # Text to type into another command is never cut or broken: the first column contains it.
    names = max((cell_len(row[0]) for row in cells), default=0)
    for number, title in enumerate(titles):
        is_name = number == 0 and names <= NAME_MAX
        table.add_column(title, overflow="fold", no_wrap=is_name, min_width=names if is_name else None)
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000
    console.print(table)


def print_list(
    items: Sequence[dict[str, Any]], columns: Mapping[str, Column], as_json: bool, *, clusters: bool = False
) -> None:
    """Prints items as JSON, or as a table with their values under each heading.

    `clusters`: the cluster comes first where the items are of more than one.
    """
    if as_json:
        print_json(items)
        return
    if clusters and len({item["cluster"] for item in items}) > 1:
        columns = {"CLUSTER": "cluster", **columns}
    values = columns.values()
    rows = [[value(item) if callable(value) else item[value] for value in values] for item in items]
    print_table(list(columns), rows)


def _words(cell: Any) -> str:
    match cell:
        case None:
            return ""
        case True | False:
            return local(say("commands.yes" if cell else "commands.no"))
        case list() | tuple():
            return " ".join(str(part) for part in cell)
    return local(cell) if isinstance(cell, str) else str(cell)
