"""Draws the rooms of `healer/` and what they import: docs/architecture.svg, made from the code alone.

    python -m tests.support.architecture          writes it again

A room is a package of `healer/`; its words are the first sentence of its docstring. It is drawn above all
rooms that it imports. An arrow that follows from two others is left out.
"""

import ast
import textwrap
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path

import grimp

HEALER = Path(__file__).parents[2] / "healer"
DRAWING = HEALER.parent / "docs" / "architecture.svg"

WIDTH, BOX_W, BOX_H, GAP, FLOOR_H = 1010, 180, 86, 18, 126
STYLE = """
    .room { fill: #f5f8fb; stroke: #35617f; stroke-width: 1.2 }
    .name { font: bold 15px sans-serif; fill: #14324a }
    .words { font: 11px sans-serif; fill: #33424d }
    .way { stroke: #8aa3b5; stroke-width: 1.1; fill: none }
"""


def imports() -> dict[str, set[str]]:
    """Room -> the rooms that its modules import. Type-checking imports do not count."""
    graph = grimp.build_graph("healer", exclude_type_checking_imports=True)
    rooms: dict[str, set[str]] = {path.parent.name: set() for path in HEALER.glob("*/__init__.py")}
    for module in graph.modules:
        room = _room(module)
        if room in rooms:
            taken = {_room(one) for one in graph.find_modules_directly_imported_by(module)}
            rooms[room] |= taken & set(rooms) - {room}
    return rooms


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def floors(rooms: dict[str, set[str]]) -> list[list[str]]:
    """The lowest first. Raises CycleError where rooms import each other in a circle."""
    height: dict[str, int] = {}
    for room in TopologicalSorter(rooms).static_order():
        height[room] = 1 + max((height[one] for one in rooms[room]), default=-1)
    return [sorted(room for room in rooms if height[room] == at) for at in range(max(height.values()) + 1)]


def ways(rooms: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that follow from no others."""
    below: dict[str, set[str]] = {}
    for room in TopologicalSorter(rooms).static_order():
        below[room] = rooms[room].union(*(below[one] for one in rooms[room]))
    return [
        (room, one)
        for room, taken in sorted(rooms.items())
        for one in sorted(taken)
        if not any(one in below[other] for other in taken)
    ]


def words(room: str) -> str:
    """The first sentence of the room's docstring; empty where it has none."""
    text = ast.get_docstring(ast.parse((HEALER / room / "__init__.py").read_text())) or ""
    return " ".join(text.replace("`", "").split()).split(". ")[0].rstrip(".")


def places(stack: list[list[str]], arrows: list[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """The middle of each room's upper edge. On a floor, rooms lie near what they import."""
    found: dict[str, tuple[float, float]] = {}
    for at, floor in enumerate(stack):
        y = (len(stack) - 1 - at) * FLOOR_H + 20

        def wanted(room: str) -> float:
            below = [found[one][0] for name, one in arrows if name == room]
            return sum(below) / len(below) if below else WIDTH / 2

        ordered = sorted(floor, key=lambda room: (wanted(room), room))
        span = len(ordered) * BOX_W + (len(ordered) - 1) * GAP
        middle = sum(map(wanted, ordered)) / len(ordered)
        left = min(max(middle - span / 2, 10), WIDTH - span - 10)
        for index, room in enumerate(ordered):
            found[room] = (left + index * (BOX_W + GAP) + BOX_W / 2, y)
    return found


def draw() -> str:
    rooms = imports()
    stack, arrows = floors(rooms), ways(rooms)
    at = places(stack, arrows)
    height = len(stack) * FLOOR_H + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The rooms of healer; an arrow goes from a room to one that it imports</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#8aa3b5"/></marker></defs>',
    ]
    for room, one in arrows:
        (x, y), (to_x, to_y) = at[room], at[one]
        y += BOX_H
        bend = (to_y - y) / 2
        path = f"M{x:.0f},{y:.0f} C{x:.0f},{y + bend:.0f} {to_x:.0f},{to_y - bend:.0f} {to_x:.0f},{to_y:.0f}"
        lines.append(f'<path class="way" marker-end="url(#tip)" d="{path}"/>')
    for room, (x, y) in sorted(at.items()):
        left = x - BOX_W / 2
        lines.append(f'<rect class="room" x="{left:.0f}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="6"/>')
        lines.append(f'<text class="name" x="{left + 10:.0f}" y="{y + 20}">{room}/</text>')
        for row, text in enumerate(textwrap.wrap(words(room), 27)):
            text_y = y + 37 + 14 * row
            lines.append(f'<text class="words" x="{left + 10:.0f}" y="{text_y}">{escape(text)}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    DRAWING.write_text(draw())
    print(f"architecture: {DRAWING.name} is written")
