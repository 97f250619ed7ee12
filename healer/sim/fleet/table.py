"""Score cards as text: one in full, several side by side."""

from collections.abc import Sequence

from healer.sim.fleet.score import Card, Times
from healer.sim.fleet.work import Spent

_TOP = 10


def card_text(card: Card) -> str:
    """What `healer simulate` prints of healer's own card."""
    lines = [
        f"{card.scenario}, seed {card.seed}: {card.nodes} nodes, {card.days:g} days, {card.mender}",
        "",
        f"effective training time   {card.effective:.4f}",
        *_spent(card),
        "",
        f"faults                    {card.faults} ({card.stopped_job} stopped the job, "
        f"{card.skipped} on nodes that were out)",
        f"found after               {_times(card.detect)}",
        f"node taken out after      {_times(card.decide)}",
        f"job works again after     {_times(card.restart)}",
        f"drains                    {card.drains}, of these wrong {card.wrong_drains} "
        f"({card.wrong_per_1000_node_days:.3f} per 1000 node-days)",
        f"missed                    {card.missed}",
        f"undiagnosed; stuck runs   {card.undiagnosed}; {card.stuck}",
        f"returned, failed again    {card.returned}, {card.relapsed_day} within a day, "
        f"{card.relapsed_week} within a week{_why(card.relapsed_by)}",
        f"nodes out of service      {card.node_hours_out:,.0f} node-hours",
    ]
    lines += ["", "people", *(f"  {name:24}{count}" for name, count in card.people.items())]
    lines += ["", "GPU-hours of the job that were lost, by cause"]
    causes = list(card.lost_gpu_hours.items())[:_TOP]
    lines += [f"  {name:24}{hours:>14,.1f}" for name, hours in causes]
    if card.incidents:
        lines += ["", "incidents", *(f"  {name:40}{count}" for name, count in card.incidents.items())]
    if card.fed:
        told = ", ".join(f"{value:,g} {name}" for name, value in card.fed.items())
        lines += ["", f"simulated: {told}"]
    return "\n".join(lines)


def _why(counted: dict[str, int]) -> str:
    told = ", ".join(f"{count} {because}" for because, count in counted.items())
    return f" ({told})" if told else ""


def _spent(card: Card) -> list[str]:
    return [f"  {kind:24}{card.spent[kind]:.4f}" for kind in map(str, Spent) if kind != Spent.kept]


def _times(times: Times) -> str:
    if times.median_s is None or times.p95_s is None:
        return "never"
    return f"{times.median_s:,.1f} s, 95 % within {times.p95_s:,.1f} s ({times.count})"


def compared(cards: Sequence[Card]) -> str:
    """One row each."""
    head = (
        "",
        "effective",
        "found, median",
        "works again, median",
        "drains",
        "wrong",
        "missed",
        "by people",
        "out, node-h",
    )
    rows = [head] + [
        (
            card.mender,
            f"{card.effective:.4f}",
            _short(card.detect),
            _short(card.restart),
            str(card.drains),
            str(card.wrong_drains),
            str(card.missed),
            str(sum(card.people.values())),
            f"{card.node_hours_out:,.0f}",
        )
        for card in cards
    ]
    widths = [max(len(row[index]) for row in rows) for index in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in
                  enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    )  # fmt: skip


def _short(times: Times) -> str:
    if times.median_s is None:
        return "-"
    return f"{times.median_s:.0f} s" if times.median_s < 600 else f"{times.median_s / 60:.0f} min"
