"""What is wrong with a command line is said in the language of the terminal: nothing of Typer's own English.

An update of Typer that words its errors differently turns these red.
"""

import pytest
from typer.exceptions import TyperException

from healer.commands.cli import build
from healer.commands.help_pages import usage_problem
from healer.text import language

CASES = {
    "runs --limit x": (
        "Error: Invalid value for '--limit': 'x' is not a whole number",
        "错误：'--limit' 的值无效：'x' 不是整数",
    ),
    "replay --days x": ("Error: No such option: --days", "错误：没有此选项：--days"),
    "rules try a --as b --reason c --days x": (
        "Error: Invalid value for '--days': 'x' is not a number",
        "错误：'--days' 的值无效：'x' 不是数字",
    ),
    "token create --role boss": (
        "Error: Invalid value for '--role': boss is not one of viewer, responder, operator, admin, auditor, "
        "signals",
        "错误：'--role' 的值无效：boss 不在可选值 viewer，responder，operator，admin，auditor，signals 之中",
    ),
    "token create": (
        "Error: Missing option '--role'. Choose one of viewer, responder, operator, admin, auditor, signals.",
        "错误：缺少选项 '--role'。可选值为 viewer，responder，operator，admin，auditor，signals。",
    ),
    "rules propose": ("Error: Missing option '--from'.", "错误：缺少选项 '--from'。"),
    "approve": ("Error: Missing argument 'RUN'.", "错误：缺少参数 'RUN'。"),
    "runs --limit": ("Error: Option --limit needs a value.", "错误：选项 --limit 需要一个值。"),
    "doctor --json=3": ("Error: Option --json takes no value.", "错误：选项 --json 不接受值。"),
    "xyzzy": ("Error: There is no command xyzzy.", "错误：没有命令 xyzzy。"),
    "nodez": (
        "Error: There is no command nodez. Did you mean nodes?",
        "错误：没有命令 nodez。是否应为 nodes？",
    ),
    "nodes --verdic healthy": (
        "Error: No such option: --verdic. Did you mean --verdict, --search?",
        "错误：没有此选项：--verdic。是否应为 --verdict，--search？",
    ),
    "nodes one two": ("Error: Too many arguments: one two", "错误：多余的参数：one two"),
}


def problem(arguments: str) -> str:
    with pytest.raises(TyperException) as caught:
        build()(arguments.split(), standalone_mode=False)
    return list(usage_problem(caught.value))[-1]


@pytest.mark.parametrize(("arguments", "wanted"), CASES.items(), ids=CASES.keys())
def test_a_problem_of_use(arguments: str, wanted: tuple[str, str]) -> None:
    english, chinese = wanted
    assert problem(arguments) == english
    chosen = language.current.set("zh")
    try:
        assert problem(arguments) == chinese
    finally:
        language.current.reset(chosen)
