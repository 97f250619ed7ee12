"""Events of the log are constants in English: one text to search for, in every locale (0093)."""

import ast
from collections.abc import Iterator

from tests.support.sayings import PACKAGE
from tests.unit.text.test_plain_english import odd

_LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LONGEST = 60
#: The sentence that the caller also reports, and two lines of the standard library's logger.
_OTHERS = frozenset(
    {"adapters/spool.py: what", "api/edge.py: '%s %s failed'", "api/problems.py: '%s %s failed'"}
)


def _events() -> Iterator[tuple[str, ast.expr]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[event, *_]):
                    if level in _LEVELS:
                        yield str(path.relative_to(PACKAGE)), event


def test_events_are_short_constants_in_plain_english() -> None:
    events = [(path, event) for path, event in _events() if f"{path}: {ast.unparse(event)}" not in _OTHERS]
    assert len(events) > 60
    texts = [event.value for _, event in events if isinstance(event, ast.Constant)]
    assert [
        f"{path}: {ast.unparse(event)}" for path, event in events if not isinstance(event, ast.Constant)
    ] == []
    assert [text for text in texts if len(text) > LONGEST or text.endswith(".")] == []
    assert odd(texts) == []
