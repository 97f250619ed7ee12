"""What healer itself fetches: exporters, answers of a Prometheus-compatible server; and how it went."""

from datetime import datetime

import msgspec


class ScrapeJob(msgspec.Struct, frozen=True, kw_only=True):
    """Exporters of one kind, all fetched in the same way (`rules/scrape.yaml`).

    `targets` are `host:port`, also as hostlists; `file_sd` are paths or globs of files in Prometheus' form.
    `node` says whose the samples are: `host`, the host of the target; `series`, the labels of each series;
    `device`, the device that the target's label `device` names, or else its host; any other word is the name
    of a target's label. `cluster`: only that cluster's scraper fetches them.
    """

    name: str
    targets: tuple[str, ...] = ()
    file_sd: tuple[str, ...] = ()
    interval_s: float = 15
    timeout_s: float = 10
    scheme: str = "http"
    path: str = "/metrics"
    tls_ca_file: str | None = None
    bearer_token_file: str | None = None
    labels: dict[str, str] = {}
    node: str = "host"
    cluster: str = ""


class ScrapeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A question in PromQL whose answer is a signal of the catalogue; its labels say of which part."""

    signal: str
    query: str
    interval_s: float = 30
    cluster: str = ""


class ScrapeRules(msgspec.Struct, frozen=True, kw_only=True):
    """All of `rules/scrape.yaml`; hostlists are expanded."""

    jobs: tuple[ScrapeJob, ...] = ()
    queries: tuple[ScrapeQuery, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.jobs or self.queries)


class TargetState(msgspec.Struct, frozen=True, kw_only=True):
    """How the last fetch of one target went. `up` is None before the first one has ended.

    A target that does not answer says nothing of its node: what it told grows old and is then unknown.
    `samples` were stored of the last fetch, `unrecognised` have no place; `error` says in one sentence why
    nothing came.
    """

    cluster: str
    job: str
    target: str
    node: str = ""
    up: bool | None = None
    scraped_at: datetime | None = None
    took_s: float = 0.0
    bytes: int = 0
    samples: int = 0
    unrecognised: int = 0
    failures: int = 0
    error: str = ""


class ScrapeState(msgspec.Struct, frozen=True, kw_only=True):
    """What one cluster's scraper told last: its targets, and what it did since it started."""

    cluster: str
    at: datetime
    targets: tuple[TargetState, ...] = ()
    #: Targets beyond those in `targets`.
    more: int = 0
    scrapes: int = 0
    failed: int = 0
    samples: int = 0
    #: Why a file of targets or the Prometheus-compatible server gives nothing; empty while all is well.
    troubles: tuple[str, ...] = ()
