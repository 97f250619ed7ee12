"""The files of the rules, for people who try a change: names, texts, and whether a change is right."""

import re
import tempfile
from pathlib import Path

from healer.bootstrap.rehearse import overlaid, ruled
from healer.rulebook.ruleset import RulesInvalid
from healer.settings import Settings, rules_folder

#: A file of rules, or one of its folders'; scripts are the site's programs and are not tried.
_NAME = re.compile(r"(?:(?:playbooks|detection)/)?[a-z0-9][a-z0-9_.-]{0,80}\.yaml")


class RuleFiles:
    """`healer.ports.queries.RuleFiles`."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._folder = settings, rules_folder(settings)

    def names(self) -> list[str]:
        found = (path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*.yaml"))
        return sorted(name for name in found if _NAME.fullmatch(name))

    def text(self, name: str) -> str | None:
        """None where there is none of that name. ValueError for a name that cannot be one."""
        if not _NAME.fullmatch(name):
            raise ValueError("a file of rules/, like policies.yaml or detection/slow.yaml")
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            return None

    def problems(self, name: str, text: str) -> list[str]:
        """What would be wrong with the whole set if the file said this, as at load: `FILE:LINE: what`."""
        with tempfile.TemporaryDirectory(prefix="healer-rules-") as made:
            try:
                overlaid(self._folder, Path(made, "rules"), name, text)
                ruled(Path(made, "rules"), self._settings, prove=True)
            except RulesInvalid as error:
                return [str(one) for one in error.problems]
        return []
