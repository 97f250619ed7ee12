"""A change of a rule file as people review it."""

import difflib


def unified(file: str, before: str | None, text: str) -> str:
    """A unified diff with the names as git writes them, for `git apply`. `before` None: the file is new."""
    lines = difflib.unified_diff(
        (before or "").splitlines(keepends=True),
        text.splitlines(keepends=True),
        f"a/rules/{file}" if before is not None else "/dev/null",
        f"b/rules/{file}",
    )
    return "".join(one if one.endswith("\n") else one + "\n\\ No newline at end of file\n" for one in lines)
