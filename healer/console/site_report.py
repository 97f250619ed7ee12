"""The report on a site's own past as one HTML file that needs nothing else."""

from base64 import b64encode
from hashlib import sha256

import msgspec
from markupsafe import Markup

from healer.console.render import Renderer, web_dir
from healer.console.views.site_report_view import chapters, evidence, lede
from healer.model.site_past import PastReport
from healer.text import language, say

_STYLES = ("console.css", "site-report.css")


def html(report: PastReport, reader: str) -> bytes:
    """`reader`: a language of the console."""
    before = language.current.set(reader)
    try:
        css = "".join((web_dir() / "static" / name).read_text("utf-8") for name in _STYLES)
        script = (web_dir() / "static" / "site-report.js").read_text("utf-8")
        page = Renderer().page(
            "site_report.html",
            cluster=report.cluster,
            css=Markup(css),  # noqa: S704 - our own file
            lede=lede(report),
            chapters=chapters(report),
            evidence=evidence(report),
            more=lambda count: say("past.more", count=count),
            script=Markup(script),  # noqa: S704 - our own file
            script_digest=b64encode(sha256(script.encode()).digest()).decode(),
            # Only JSON numbers and words: it contains nothing from users.
            lives=Markup(msgspec.json.encode(report.saved.lives).decode()),  # noqa: S704
            texts={
                "title": say("past.title"),
                "adjust": say("past.adjust"),
                "contents": say("past.contents"),
                "evidence": say("past.evidence"),
                "nothing": say("past.nothing"),
                "data": say("past.data_table"),
            },
        )
        return bytes(page.body)
    finally:
        language.current.reset(before)
