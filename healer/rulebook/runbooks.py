"""The pages of `docs/runbooks` that rules and playbooks name."""

from functools import cache
from pathlib import Path

from healer import data_folder

#: Old names of runbooks, and the page that holds each today: bookmarks and a site's own rules keep working.
MOVED = {
    "fabric-manager": "restart-service",
    "hot-spare-swap": "swap",
    "power-cycle": "reboot",
    "resume": "validate",
    "return-to-service": "validate",
    "slurm-drain": "foreign-drain",
}


def runbooks_dir() -> Path:
    """The Markdown pages that playbooks and rules link to."""
    return data_folder("docs/runbooks")


@cache
def runbook_names() -> tuple[str, ...]:
    """Those of today first; empty where healer was installed without its pages."""
    names = sorted(path.stem for path in runbooks_dir().glob("*.md"))
    return (*names, *MOVED) if names else ()
