"""All checks of `healer doctor`, in the order in which it prints them."""

from healer.bootstrap.access_checks import look_at_access, look_at_slurm_login
from healer.bootstrap.coverage_checks import look_at_coverage, look_at_unused_rules
from healer.bootstrap.doctor_checks import LOOKS, Look
from healer.bootstrap.file_checks import look_at_files
from healer.bootstrap.listener_checks import look_at_listener
from healer.bootstrap.storage_checks import look_at_storage
from healer.settings import ExecutorSettings

_MORE = (
    look_at_storage,
    look_at_coverage,
    look_at_unused_rules,
    look_at_access,
    look_at_slurm_login,
    look_at_listener,
)


def checks_of(settings: ExecutorSettings) -> list[Look]:
    return [check for look in (look_at_files, *LOOKS, *_MORE) for check in look(settings)]


def mended(check: Look) -> Look:
    """The check after its fix, if it has one; a fix that fails says why."""
    if check.fix is None:
        return check
    try:
        check.fix()
    except OSError as error:
        return check._replace(text=f"{check.text}; not mended: {error.strerror}", fix=None)
    return Look(check.name, True, f"mended: {check.text}")
