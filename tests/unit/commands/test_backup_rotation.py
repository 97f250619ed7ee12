"""`healer backup --keep`: what stays of a folder."""

from pathlib import Path

import pytest

from healer.commands.backup import rotate

MADE = "healer-20261127T030000Z.tar"


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (1, [MADE]),
        (2, [MADE, "healer-20990102T000000Z.tar"]),
        (9, [MADE, "healer-20990101T000000Z.tar", "healer-20990102T000000Z.tar"]),
    ],
)
def test_the_backup_just_made_stays_though_a_clock_was_ahead(
    tmp_path: Path, keep: int, left: list[str]
) -> None:
    for name in (MADE, "healer-20990101T000000Z.tar", "healer-20990102T000000Z.tar"):
        (tmp_path / name).write_text("backup")
    deleted = rotate(tmp_path / MADE, keep)
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    assert len(deleted) == 3 - len(left)
