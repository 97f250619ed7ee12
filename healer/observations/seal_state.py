"""Whether the audit is sealed and witnessed as it should be."""

from datetime import datetime, timedelta

from healer.ports.answers import SEAL, SealState

SEAL_LATE, WITNESS_LATE = timedelta(seconds=60), timedelta(minutes=5)


def seal_problems(state: SealState, now: datetime) -> dict[str, str]:
    """What is wrong, in sentences: under `SEAL` that nothing seals, else under the witness's name."""
    found = {}
    if state.since is not None and now - state.since > SEAL_LATE:
        found[SEAL] = f"No worker seals the audit: a record waits since {state.since:%Y-%m-%d %H:%M:%S} UTC."
    for name, at in sorted(state.witnesses.items()):
        if now - at > WITNESS_LATE:
            found[name] = f"The witness {name} has no checkpoint since {at:%Y-%m-%d %H:%M:%S} UTC."
    return found
