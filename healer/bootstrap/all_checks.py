"""All checks of `healer doctor`, in the order in which it prints them."""

from healer.bootstrap import doctor_checks as basics
from healer.bootstrap.access_checks import check_access, check_slurm_login
from healer.bootstrap.clock_checks import check_clocks
from healer.bootstrap.coverage_checks import check_coverage, check_unused_rules
from healer.bootstrap.doctor_checks import Check
from healer.bootstrap.file_checks import check_files
from healer.bootstrap.listener_checks import check_listener
from healer.bootstrap.storage_checks import check_storage
from healer.bootstrap.trial_checks import check_munge, check_reboots, check_slurm_rights
from healer.bootstrap.user_checks import check_users
from healer.settings import ExecutorSettings
from healer.text import say

_CHECKS = (
    check_files,
    check_users,
    basics.check_rules,
    basics.check_database,
    check_storage,
    check_clocks,
    basics.check_broker,
    basics.check_slurm,
    check_slurm_rights,
    check_reboots,
    check_munge,
    check_coverage,
    basics.check_node_actions,
    basics.check_bmcs,
    basics.check_site_commands,
    basics.check_guards,
    check_unused_rules,
    basics.check_tickets,
    basics.check_notification_channels,
    basics.check_recordings,
    check_access,
    basics.check_sign_in,
    check_slurm_login,
    basics.check_api,
    check_listener,
)


def checks_of(settings: ExecutorSettings) -> list[Check]:
    return [found for check in _CHECKS for found in check(settings)]


def mended(check: Check) -> Check:
    """The check after its fix, if it has one; a fix that fails says why."""
    if check.fix is None:
        return check
    try:
        check.fix()
    except OSError as error:
        text = say("doctor.not_mended", text=check.text, error=error.strerror)
        return check._replace(text=text, fix=None)
    return Check(check.name, True, say("doctor.mended", text=check.text))
