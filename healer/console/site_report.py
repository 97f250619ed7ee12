"""The report on a site's own past as one HTML file that needs nothing else."""

from markupsafe import Markup

from healer.console.render import Renderer, web_dir
from healer.console.views.site_report_view import chapters, evidence, lede
from healer.model.site_past import PastReport
from healer.text import Said, language, say

_STYLES = ("console.css", "site-report.css")


def html(report: PastReport, reader: str) -> bytes:
    """`reader`: a language of the console."""
    before = language.current.set(reader)
    try:
        css = "".join((web_dir() / "static" / name).read_text("utf-8") for name in _STYLES)
        page = Renderer().page(
            "site_report.html",
            cluster=report.cluster,
            css=Markup(css),  # noqa: S704 - our own file
            lede=lede(report),
            chapters=chapters(report),
            evidence=evidence(report),
            more=_more,
            texts={
                "title": say("past.title"),
                "contents": say("past.contents"),
                "evidence": say("past.evidence"),
                "nothing": say("past.nothing"),
                "data": say("past.data_table"),
            },
        )
        return bytes(page.body)
    finally:
        language.current.reset(before)


def _more(count: int) -> Said:
    return say("past.more", count=count)
