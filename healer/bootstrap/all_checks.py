"""All checks of `healer doctor`, in the order in which it prints them."""

from healer.bootstrap import doctor_checks as basics
from healer.bootstrap.access_checks import look_at_access, look_at_slurm_login
from healer.bootstrap.clock_checks import look_at_clocks
from healer.bootstrap.coverage_checks import look_at_coverage, look_at_unused_rules
from healer.bootstrap.doctor_checks import Look
from healer.bootstrap.file_checks import look_at_files
from healer.bootstrap.listener_checks import look_at_listener
from healer.bootstrap.storage_checks import look_at_storage
from healer.bootstrap.trial_checks import look_at_munge, look_at_reboots, look_at_slurm_rights
from healer.bootstrap.user_checks import look_at_users
from healer.settings import ExecutorSettings
from healer.text import say

_LOOKS = (
    look_at_files,
    look_at_users,
    basics.look_at_rules,
    basics.look_at_database,
    look_at_storage,
    look_at_clocks,
    basics.look_at_broker,
    basics.look_at_slurm,
    look_at_slurm_rights,
    look_at_reboots,
    look_at_munge,
    look_at_coverage,
    basics.look_at_node_actions,
    basics.look_at_bmcs,
    basics.look_at_site_commands,
    basics.look_at_guards,
    look_at_unused_rules,
    basics.look_at_tickets,
    basics.look_at_channels,
    basics.look_at_recordings,
    look_at_access,
    basics.look_at_sign_in,
    look_at_slurm_login,
    basics.look_at_api,
    look_at_listener,
)


def checks_of(settings: ExecutorSettings) -> list[Look]:
    return [check for look in _LOOKS for check in look(settings)]


def mended(check: Look) -> Look:
    """The check after its fix, if it has one; a fix that fails says why."""
    if check.fix is None:
        return check
    try:
        check.fix()
    except OSError as error:
        text = say("doctor.not_mended", text=check.text, error=error.strerror)
        return check._replace(text=text, fix=None)
    return Look(check.name, True, say("doctor.mended", text=check.text))
