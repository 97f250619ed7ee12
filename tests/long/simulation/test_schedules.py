"""Law 7 by chance: whatever dies or stops when, nothing is done twice, unasked, unseen or over a cap.

`python benchmarks/deaths.py` plays thousands of them; `--seed N` prints the story of one.
"""

import pytest

from tests.support.schedules.play import play
from tests.support.schedules.processes import Chances

#: One test each, so that a failure names its seed.
SEEDS = range(5000, 5015)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_schedule_of_deaths_breaks_no_invariant(seed: int) -> None:
    played = play(seed)
    assert played.breaches == [], "\n".join(played.story)
    assert played.points > 1000
    assert played.effects > 0 or played.runs == played.proposed > 0


def test_the_chances_are_what_kills() -> None:
    """Nothing dies without them, and the story still comes to its end."""
    none = Chances(kill=0, kill_effect=0, stop=0, stop_effect=0, slow=0)
    played = play(1, none)
    assert (played.kills, played.stops, played.breaches) == (0, 0, [])
    assert played.effects > 0
