"""Moments in sentences."""

from datetime import datetime

from healer.text.said import Said, say


def at(moment: datetime) -> Said:
    """`03:00 on 20 Nov UTC`."""
    month = say(f"words.month_{moment.month}")
    return say("words.moment", time=f"{moment:%H:%M}", day=moment.day, month=month)
