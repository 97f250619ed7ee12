"""Writes the sample site's pages, or the REST interface, as files; `tests.support.golden` compares them."""

import json
import re
import sys
from pathlib import Path

import sqlalchemy as sa
from fastapi.testclient import TestClient

from healer.text.language import COOKIE
from tests.support.api import Api
from tests.support.console_pages import BROWSER, NO_PAGES, pages
from tests.support.console_site import Site, make_sample

LANGUAGES = ("en", "zh")
#: Sites that show other pages than the usual one.
EMPTY = ["/", "/incidents", "/runs", "/audit", "/approvals", "/health", "/signals", "/reports?period=7d"]


def main(what: str, folder: Path) -> None:
    if what == "openapi":
        never_asked = sa.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
        text = json.dumps(Api(never_asked, nodes=0).app.openapi(), indent=1, sort_keys=True)
        (folder / "openapi.json").write_text(f"{text}\n", "utf-8")
        return
    site = Site(make_sample())
    addresses = [address for kind in pages(site).values() for address in kind]
    for language in LANGUAGES:
        _write(folder / "pages" / language, site, [*addresses, *NO_PAGES], language)
    _write(folder / "pages/empty", Site(make_sample(empty=True)), EMPTY, "en")


def _write(folder: Path, site: Site, addresses: list[str], language: str) -> None:
    folder.mkdir(parents=True)
    with TestClient(site.app, headers=BROWSER) as client:
        client.cookies.update({"healer_session": "cookie-good", COOKIE: language})
        for address in addresses:
            name = re.sub(r"\W+", "-", address).strip("-") or "fleet"
            (folder / f"{name}.html").write_bytes(client.get(address).content)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
