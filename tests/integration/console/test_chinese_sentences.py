"""What the console's Python says to people is known in Chinese: each sentence of each of its modules.

A sentence that is new, or said otherwise, has no Chinese until `web/words/zh` has an entry for it.
"""

import pytest
from healer.console.language import Catalogue, load

from healer.console.render import CONTENT_SECURITY_POLICY, web_dir
from healer.model import Guard
from tests.support.sentences import TERMS, Reader, Sentence, english_in, modules, sentences

pytestmark = pytest.mark.heavy

CATALOGUE: Catalogue = load(web_dir() / "words" / "zh")

MODULES = modules(
    "console",
    "rulebook/cases/casebook.py",
    "processes/scheduler.py",
    "rulebook/proven.py",
    "engine/runlog.py",
)

#: What the API answers to a press that cannot be done.
PROBLEMS = modules(
    "api/problems.py",
    "api/acting_routes.py",
    "api/rehearsal_routes.py",
    "api/access.py",
    "api/request_fields.py",
    "api/rule_views.py",
    "api/edge.py",
    "api/collection_routes.py",
    "api/db_health.py",
    "engine/command.py",
    "engine/starts.py",
    "adapters/postgres/rehearsals.py",
    "engine/controls.py",
    "bootstrap/rehearse.py",
)

#: What no page shows as words, and why.
SILENT = {
    "console/pages.py": {"private, no-cache": "a header"},
    "console/render.py": {
        'inline; filename="{}"': "a header",
        "public, max-age=31536000, immutable": "a header",
        CONTENT_SECURITY_POLICY: "a header",
        '<time datetime="{}" title="{}" data-ago>{}</time>': "an element",
        "text/html; charset=utf-8": "a header",
    },
    "console/language.py": {
        "English": "a language's own name",
        "{}: {}: no text": "for who writes the catalogue",
        "{}: {}: {} stands on the right alone": "for who writes the catalogue",
        "{}: {}: would fit every text": "for who writes the catalogue",
        "{}: {} has another text in another file": "for who writes the catalogue",
    },
    "console/rule_pages.py": {"{} UTC": "a moment"},
    "console/views/timeline_view.py": {word: "a key" for word in ("text", "why", "reason", "title", "note")},
    "console/views/buttons.py": {"Gpu": "what stands for GPU before it is written so"},
    "console/views/reports_view.py": {"{} to {}": "two moments, with UTC each"},
    "console/views/node_view.py": {"GPU {}": "a name", "NVLink {}": "a name"},
    "console/views/queue_view.py": {"{} of {}": "ids of jobs and names"},
    "console/views/incident_view.py": {"{} GPU {}": "names of parts"},
    "console/views/health_view.py": {"job {}/": "what names of tokens begin with"},
    "console/words.py": {"%Y-%m-%d %H:%M:%S UTC": "a format"},
    "processes/scheduler.py": {
        "it took longer than {}": "in the log alone",
        "Slurm is the cluster {}, not {}: mend HEALER_CLUSTER": "to who sets healer up",
    },
    "api/acting_routes.py": {
        "Location": "a header",
        "POST {}": "a request",
        "the incident as it is now": "in the document of the API",
        "stored, but the detector has not taken it yet": "in the document of the API",
    },
    "api/rehearsal_routes.py": {
        "Location": "a header",
        'attachment; filename="{}"': "a header",
        "text/plain; charset=utf-8": "a header",
    },
    "api/collection_routes.py": {
        'attachment; filename="{}"': "a header",
        "its files, oldest first": "in the document of the API",
        "not one that this list gave": "to a program that pages through devices",
        "nothing was heard of a device {} of the cluster {} for {} minutes": "to programs alone",
    },
    "api/edge.py": {
        "default-src 'none'; frame-ancestors 'none'": "a header",
        "Connections that were ended because they brought nothing, or were too many.": "in /metrics",
        "this is no request of HTTP/1.1, or a part of it is malformed or too long": "to no request of a page",
        "the headers came too slowly": "to no request of a page",
        "too many connections": "to no request of a page",
        "Bounded": "the name of a class",
    },
    "api/problems.py": {'Bearer realm="healer"': "a header"},
}

#: Parts, each with a finished sentence that it becomes a part of.
PARTS = {
    "api/access.py": {"this token is bound to the {} {}": "this token is bound to the node gpu0001"},
    "console/views/queue_view.py": {"{}: {} left": "Slots: 3 left; Slots an hour: 1 left"},
    "console/views/colours.py": {
        "{}, GPU {}{}": "91 °C, GPU 3, 2 unknown",
        ", GPU {}": "by heat, GPU 3, 4",
        ", {} unknown": "not held down, 2 unknown",
    },
    "console/views/fleet_view.py": {
        " by {}": "drained by ann 3 h ago",
        ", not responding": "drained by ann 3 h ago, not responding",
        ", with {}, which healer does not know": "drained by ann, with BLUE, which healer does not know",
    },
    "console/views/health_view.py": {
        "by {}": "by rest, Slurm 25.05.1, answered in 12 ms",
        "Slurm {}": "by cli, Slurm 25.05.1",
        ", {} of its disk free": "PostgreSQL 18.1, 3.4 GB, 41% of its disk free",
        ", in force since {}": "83 rules, 31 playbooks, version 0123, in force since 2026-11-20 03:12:04 UTC",
        ", in force for {}": "0123, trained 4 d ago, in force for 3 d 2 h",
        "{}, the oldest for {}": "12, the oldest for 4 min",
        "{}, trained {}{}{}{}": "0123, trained 4 d ago. No model: its history is younger than a day",
        " by {}": "0123, trained 4 d ago, in force for 3 d 2 h by ann",
    },
    "console/views/job_view.py": {
        "task {}": "4711, task 3",
        "tasks that wait together": "4711, tasks that wait together",
    },
    "console/views/incident_view.py": {
        "New jobs may come there. {}; a person can, in Slurm.": (
            "New jobs may come there. healer could not drain it; a person can, in Slurm."
        ),
        "Slurm itself took {} out{}.": "Slurm itself took gpu0012 out 3 h 20 min ago.",
    },
    "console/views/node_view.py": {
        "{} {} that are {}": "248 H100 that are busy",
        "last {}, {}": "last 61 °C, 4 min ago",
        ", per minute": "CRC errors, per minute",
    },
    "console/views/pauses_view.py": {"{} UTC, in {}": "Fri 14:20 UTC, in 4 h"},
    "console/views/playbooks_view.py": {
        "{} And {}: {}": (
            "The node is in service. And node_answers: Slurm reaches the node, and no new fault line came."
        )
    },
    "console/views/reports_view.py": {
        ", {} looks after it": "P1 gpu1 GPU 3: DBE (0190, 11-20 03:12), ann looks after it",
        "; {} of them at most, for want of a durable checkpoint": (
            "by the jobs hit, each life once; 12 of them at most, for want of a durable checkpoint"
        ),
        "; of {} nobody knows": "by the jobs hit, each life once; of 3 more jobs nobody knows",
        "more job": "by the jobs hit, each life once; of 1 more job nobody knows",
        "{} of {} that came back": (
            "1 of 12 nodes that came back had a hardware fault again within 7 days, so far"
        ),
        "{} had a hardware fault again within 7 days, so far": (
            "1 of 1 node that came back had a hardware fault again within 7 days, so far"
        ),
    },
    "console/views/rules_view.py": {
        "with the change": "with the change held by x7: x8",
        "{} held by {}: {}": "before held by x7: x8",
        "{}, {} unforeseen": "3 of 4 came, 1 unforeseen",
    },
    "console/views/runs_view.py": {
        "Can be approved until {} ({}).": "Can be approved until 2026-11-20 03:12:04 UTC (in 4 min).",
        " (shadow)": "waits for approval (shadow)",
        "{} asked": "16 guards asked: x7 holds, x8 refuses",
        "{}, all allow": "16 guards asked, all allow",
    },
    "console/views/standing_view.py": {
        ", until {}": "by ann 4 min ago, until 2026-11-20 03:12:04 UTC. Reason: new fans",
        ", until somebody ends it": "by ann 4 min ago, until somebody ends it. Reason: new fans",
        "by {} {}{}. Reason: {}": "by ann just now, until somebody ends it. Reason: new fans",
        " since {}": "Breaker open since 2026-11-20 03:12:04 UTC",
        "Breaker {}{}": "Breaker half-open",
        "healer holds every action.{}": "healer holds every action. sinfo ended with 1",
        "healer holds every action until it sees Slurm again.{}": (
            "healer holds every action until it sees Slurm again. sinfo ended with 1"
        ),
    },
    "console/views/timeline_view.py": {
        " of evidence": "rule xid-79, x7, surely unusable, 3 pieces of evidence",
        "{} on {}": "gpu-lost on gpu0012 GPU 3: not heard yet",
        "rule {}, {}, {}, {}": "rule xid-79, x7, confidence 90%, 1 piece of evidence",
        " (shadow: nothing is touched)": "gpu-reset tries again, attempt 2 (shadow: nothing is touched)",
        ", attempt {}": "gpu-reset gpu0012: gpu-reset failed, attempt 2",
        " (looked {} times)": "Looks again in 20 s. (looked 12 times)",
    },
    "console/words.py": {"in {}": "in 3 h 20 min", "{} ago": "3 h 20 min ago"},
    "api/acting_routes.py": {
        "restarts no jobs with a run": (
            "this token is bound to a node or a job: it restarts no jobs with a run"
        ),
        "names no nodes to search": "this token is bound to a node or a job: it names no nodes to search",
        "this token is bound to a node or a job: it {}": (
            "this token is bound to a node or a job: it names no nodes to search"
        ),
    },
    "api/db_health.py": {"{} within {} s": "the database does not answer within 2 s"},
}
#: Words of programs: settings, fields, a header.
_CODE = frozenset({"on", "all", "since", "Authorization", "Bearer"})
#: Data of a site in the examples.
_DATA = frozenset("ann fans new sinfo ended with errors rest cli".split())  # noqa: SIM905

READER, READER_OF_EXAMPLES = Reader(CATALOGUE, _CODE), Reader(CATALOGUE, _DATA)


def _all() -> list[Sentence]:
    return [one for path in (*MODULES, *PROBLEMS) for one in sentences(path)]


def test_every_sentence_of_the_console_has_chinese() -> None:
    unknown = []
    for one in _all():
        kept = one.text in SILENT.get(one.module, {}) or one.text in PARTS.get(one.module, {})
        if kept or one.text in TERMS:
            continue
        if not READER.understands_some(one.text):
            unknown.append(f"{one.module}:{one.line}: {one.text!r}")
    assert not unknown, "no entry of web/words/zh fits:\n" + "\n".join(unknown)


def test_each_guard_has_its_words() -> None:
    for guard in Guard:
        for said in ("holds", "refuses"):
            assert not english_in(CATALOGUE.translate(f"{guard.value} {said}, {guard.value} {said}"))


def test_what_is_left_out_is_still_there() -> None:
    known = {(one.module, one.text) for one in _all()}
    named = {(module, text) for table in (SILENT, PARTS) for module, texts in table.items() for text in texts}
    assert named <= known, named - known


@pytest.mark.parametrize("whole", [whole for texts in PARTS.values() for whole in texts.values()])
def test_a_part_is_known_in_a_finished_sentence(whole: str) -> None:
    assert READER_OF_EXAMPLES.understands(whole), CATALOGUE.translate(whole)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("just now", "刚刚"),
        ("3 h 20 min ago", "3 小时 20 分钟前"),
        ("in 12 min", "12 分钟后"),
        ("Fri 20 Nov 2026", "2026 年 11 月 20 日 周五"),
        ("gpu1, gpu2, gpu3 and 61 more", "gpu1, gpu2, gpu3 等，另有 61 个"),
        ("Return gpu0012 to service", "让 gpu0012 恢复服务"),
        ("drained by ann 3 h ago, not responding", "3 小时前由 ann 排空，无响应"),
        ("Can be approved until 2026-11-20 03:12:04 UTC (in 4 min).",
         "可在 2026-11-20 03:12:04 UTC 之前批准（4 分钟后）。"),
        ("16 guards asked: slots holds, floor refuses, rack holds",
         "询问 16 个守卫：名额 暂缓，服务下限 拒绝，机架 暂缓"),
        ("gpu1 drained by hand", "gpu1 drained by hand"),
        ("12 late, 4 database_away, 1 shed", "12 条迟到，4 条数据库不可用，1 条过载丢弃"),
        ("3 waits for approval, 12 stuck, 2 in shadow", "3 个待审批，12 个卡住，2 个影子"),
        ("2 down: gpu1, gpu2 and 3 more", "2 个不可达：gpu1, gpu2 等，另有 3 个"),
        ("Paused: node gpu1 by ann 4 min ago, until somebody ends it. Reason: new fans",
         "已暂停：节点 gpu1，4 分钟前由 ann 设置，直到有人结束。原因：new fans"),
        ("12 sent in 7 days, the last 4 min ago, 2 to be sent, 1 failed. 503 of the relay",
         "7 天内已发送 12 条，最近一条：4 分钟前，2 条待发送，1 条失败。503 of the relay"),
        ("10 min, 3 attempts, asks a person after 1 d", "10 分钟，3 次尝试，1 天后询问人员"),
    ],
)  # fmt: skip
def test_finished_sentences_read_well(english: str, chinese: str) -> None:
    assert CATALOGUE.translate(english) == chinese
