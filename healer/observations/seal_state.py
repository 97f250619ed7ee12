"""Whether the audit is sealed and witnessed as it should be."""

from datetime import datetime, timedelta

from healer.ports.answers import SEAL, SealState
from healer.text import Said, say

SEAL_LATE, WITNESS_LATE = timedelta(seconds=60), timedelta(minutes=5)


def seal_problems(state: SealState, now: datetime) -> dict[str, Said]:
    """Problems as sentences: under `SEAL` if nothing seals the audit, otherwise under the witness's name."""
    found = {}
    if state.since is not None and now - state.since > SEAL_LATE:
        found[SEAL] = say("observations.not_sealed", since=f"{state.since:%Y-%m-%d %H:%M:%S}")
    for name, at in sorted(state.witnesses.items()):
        if now - at > WITNESS_LATE:
            found[name] = say("observations.not_witnessed", witness=name, since=f"{at:%Y-%m-%d %H:%M:%S}")
    return found
