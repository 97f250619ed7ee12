"""Scrapes exporters over HTTP/1.1 with httpx: bounded in bytes, time and connections.

Connections are not kept alive: there would be one for each of a thousand targets, and httpx searches them
linearly. Bodies stay compressed: the writer's thread decompresses them, bounded too.
"""

import asyncio
import ssl
from pathlib import Path

import httpx

from healer import __version__
from healer.model import LossReason, ScrapeJob
from healer.ports.measurements import Fetched, FetchFailed, Target
from healer.text import Said, say

#: The largest body of a target as sent; node_exporter on a large machine has 2 MB.
BODY_MAX = 8 * 2**20
#: The limit of all bodies that are being read.
BODIES_MAX = 64 * 2**20
CONNECTIONS_MAX = 400
CONNECT_S = 3.0
#: Like Prometheus, without protobuf.
_ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
_HEADERS = {"accept": _ACCEPT, "accept-encoding": "gzip", "user-agent": f"healer/{__version__}"}


class HttpFetch:
    """`healer.ports.measurements.Fetch`. Create it inside the event loop that uses it."""

    def __init__(self, *, body_max: int = BODY_MAX, bodies_max: int = BODIES_MAX) -> None:
        self._body_max, self._bodies_max = body_max, bodies_max
        self._reading = 0
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)
        #: By CA file (None: the system's), with the modification time of the file.
        self._clients: dict[str | None, tuple[float, httpx.AsyncClient]] = {}
        #: Bearer tokens by file, with its modification time.
        self._tokens: dict[str, tuple[float, str]] = {}

    async def __call__(self, target: Target) -> Fetched:
        """The body of one scrape. Raises FetchFailed with one sentence, without address and token."""
        job = target.job
        try:
            async with asyncio.timeout(job.timeout_s), self._places:
                return await self._get(target)
        except TimeoutError:
            raise FetchFailed(
                say("adapters.no_whole_answer", seconds=job.timeout_s), LossReason.stalled
            ) from None
        except httpx.HTTPError as error:
            raise FetchFailed(_why(error)) from None
        except (httpx.InvalidURL, UnicodeError):
            raise FetchFailed(say("adapters.not_a_url")) from None
        except OSError as error:
            raise FetchFailed(
                say("adapters.file_of_job", job=job.name, error=error.strerror or str(error))
            ) from None

    async def close(self) -> None:
        for _, client in self._clients.values():
            await client.aclose()

    async def _get(self, target: Target) -> Fetched:
        client = await self._client(target.job)
        async with client.stream("GET", target.url, headers=self._headers(target.job)) as response:
            if response.status_code != 200:
                raise FetchFailed(
                    say(
                        "adapters.it_answers",
                        status=f"{response.status_code} {response.reason_phrase}".rstrip(),
                    )
                )
            packing = response.headers.get("content-encoding", "identity").strip().lower() or "identity"
            return Fetched(await self._body(response), packing)

    async def _body(self, response: httpx.Response) -> bytes:
        """At most `body_max` bytes; all bodies together are limited too."""
        length = response.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > self._body_max:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in response.aiter_raw():
                size += len(chunk)
                self._reading += len(chunk)
                if size > self._body_max:
                    raise self._too_large()
                if self._reading > self._bodies_max:
                    raise FetchFailed(say("adapters.targets_too_much"), LossReason.shed)
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            self._reading -= size

    def _too_large(self) -> FetchFailed:
        return FetchFailed(say("signals.answer_too_large", most=self._body_max), LossReason.too_large)

    def _headers(self, job: ScrapeJob) -> dict[str, str]:
        if job.bearer_token_file is None:
            return _HEADERS
        path = Path(job.bearer_token_file)
        at = path.stat().st_mtime
        cached = self._tokens.get(job.bearer_token_file)
        if cached is None or cached[0] != at:
            cached = self._tokens[job.bearer_token_file] = (at, path.read_text().strip())
        return _HEADERS | {"authorization": f"Bearer {cached[1]}"}

    async def _client(self, job: ScrapeJob) -> httpx.AsyncClient:
        ca_file = job.tls_ca_file
        at = Path(ca_file).stat().st_mtime if ca_file else 0.0
        cached = self._clients.get(ca_file)
        if cached is None or cached[0] != at:
            context = ssl.create_default_context(cafile=ca_file)
            client = httpx.AsyncClient(
                verify=context,
                follow_redirects=False,
                trust_env=False,
                limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=0),
                timeout=httpx.Timeout(None, connect=CONNECT_S),
            )
            if cached is not None:
                await cached[1].aclose()
            cached = self._clients[ca_file] = (at, client)
        return cached[1]


def _why(error: httpx.HTTPError) -> Said:
    if isinstance(error, httpx.ConnectTimeout):
        return say("adapters.no_connection", seconds=CONNECT_S)
    text = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError):
        return say("adapters.cannot_connect", error=text[:200])
    return say("adapters.answer_cut", error=text[:200])
