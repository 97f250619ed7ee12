"""Audit records as rows: the words first, the rest behind one press."""

import json

import msgspec

from healer.model import AuditRecord

#: The keys that say in words what happened, best first.
_WORDS = ("text", "why", "reason", "title", "note")


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """`words` is the record's own sentence; `rest` the other values, as JSON where they are no text.

    `link` is the page about the subject (empty where there is none), `name` how the subject is shown.
    """

    record: AuditRecord
    words: str
    rest: tuple[tuple[str, str], ...]
    link: str
    name: str


def audit_row(record: AuditRecord, cluster: str) -> AuditRow:
    data = {key: value for key, value in record.data.items() if value is not None}
    first = next((key for key in _WORDS if isinstance(data.get(key), str) and data[key]), None)
    words = str(data.pop(first)) if first else ""
    rest = tuple(
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in data.items()
        # A value that the row says already is only noise here; the export has every byte.
        if str(value) not in words and not record.subject.endswith(f"/{value}")
    )
    kind, _, name = record.subject.partition("/")
    pages = {"incident": "/incidents/", "run": "/runs/", "node": f"/nodes/{cluster}/"}
    last = name.rsplit("/", 1)[-1]
    return AuditRow(
        record=record,
        words=words,
        rest=rest,
        link=pages[kind] + last if kind in pages and last else "",
        name=f"{kind}/{name[:8]}" if kind in ("incident", "run") else record.subject,
    )
