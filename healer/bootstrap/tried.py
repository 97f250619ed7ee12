"""What the pages of tried changes read: the API's own services, so that there is one truth."""

from collections.abc import Sequence

from healer.adapters.postgres.rehearsals import PostgresRehearsals
from healer.api.services import Services
from healer.model.recordings import Recordings
from healer.model.rehearsal import Outcomes, Rehearsal


class Tried:
    """`healer.ports.console_queries.RehearsalReads`."""

    def __init__(self, services: Services, book: PostgresRehearsals) -> None:
        self._services, self._book = services, book

    def one(self, name: str) -> Rehearsal | None:
        return self._book.one(name)

    def outcomes(self, rehearsal: Rehearsal) -> list[Outcomes]:
        return self._book.outcomes(rehearsal)

    def real(self, names: Sequence[str]) -> dict[str, bool | None]:
        return self._book.real(names)

    def recordings(self, cluster: str) -> Recordings:
        return self._services.recordings(cluster)

    def files(self) -> list[str]:
        return self._services.rule_files.names()

    def text(self, file: str) -> str | None:
        return self._services.rule_files.text(file)

    def newest(self, cluster: str, limit: int) -> list[Rehearsal]:
        return self._book.newest([cluster], limit)
