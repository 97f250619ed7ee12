"""Checks of `healer doctor` that try something and change nothing: rights in Slurm, and munge."""

import contextlib
import os
import pwd
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from healer import bootstrap
from healer.adapters.munge import DEFAULT_SOCKET, Munge
from healer.adapters.slurm.commands import ReadCommands, own_account
from healer.adapters.slurm.rest_token import user_of
from healer.bootstrap import executor
from healer.bootstrap.doctor_checks import Check, each_cluster
from healer.bootstrap.user_checks import users_here
from healer.model import Mode
from healer.ports.callers import CredentialRefused
from healer.ports.request_errors import Unavailable
from healer.ports.scheduling import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.settings import ON, ExecutorSettings
from healer.text import quoted, said_by, say

#: No node has this name. Slurm checks the rights before the name, so that it answers about them.
NO_NODE = "healer-doctor-trial"
_LOCAL = ("cli", "pyslurm")
_AUTHENTICATION = re.compile(r"^AuthType\s*=\s*auth/(\w+)", re.M)
_SOCKET = re.compile(r"^AuthInfo\s*=.*\bsocket=([^\s,]+)", re.M)
_RETURNS = re.compile(r"^ReturnToService\s*=\s*2\b", re.M)
_RESUME = re.compile(r"^ResumeTimeout\s*=\s*(\d+)", re.M)
#: Seconds in which a GPU node boots, with time to spare.
_BOOT_S = 1800


def check_slurm_rights(settings: ExecutorSettings) -> list[Check]:
    """Empty if Slurm does not answer, which another check reports, or if healer never changes it."""
    if settings.read_only == ON:
        return []
    uids = users_here(settings).get("worker", set())
    worker = min(uids) if len(uids) == 1 else None
    return each_cluster(
        settings,
        lambda cluster: [
            result
            for adapter in cluster.slurm_adapters
            if adapter != "sim"
            for result in tried_rights(adapter, cluster, worker)
        ],
    )


def tried_rights(adapter: str, settings: ExecutorSettings, worker: int | None) -> list[Check]:
    """`worker`: the user id of the worker on this machine, as whom root tries."""
    name, user = say("doctor.slurm_rights", adapter=adapter), ""
    try:
        with _acting_as(worker if adapter in _LOCAL else None):
            user = own_account() if adapter in _LOCAL else _token_user(settings)
            executor.slurm_adapter(adapter, settings).resume(NO_NODE)
    except UnknownNode:
        return [Check(name, True, say("doctor.rights_well", user=user))]
    except SchedulerRefused as error:
        if not error.no_right:
            return [Check(name, True, said_by(error))]
        repair = quoted(f"sacctmgr modify user {user} set AdminLevel=Administrator")
        if settings.mode in (Mode.off, Mode.shadow):
            text = say("doctor.rights_suffice", text=said_by(error), mode=settings.mode)
            return [Check(name, True, text, repair)]
        return [Check(name, False, said_by(error), repair)]
    except SchedulerError:
        pass
    return []


def _token_user(settings: ExecutorSettings) -> str:
    return settings.slurm_user or user_of(bootstrap.slurm_token(settings).current(datetime.now(UTC)))


@contextlib.contextmanager
def _acting_as(uid: int | None) -> Iterator[None]:
    """Munge names the user by the effective user id, a shell takes the real one. Only root can take another;
    by the saved user id it comes back."""
    if uid is None or os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    try:
        group = pwd.getpwuid(uid).pw_gid
    except KeyError:
        group = uid
    os.setgroups([group])
    os.setresgid(group, group, 0)
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(groups)


def check_reboots(settings: ExecutorSettings) -> list[Check]:
    """A note where Slurm returns a node that booted late: it drops the drain after ResumeTimeout."""
    return each_cluster(settings, _reboots_of_cluster)


def _reboots_of_cluster(settings: ExecutorSettings) -> list[Check]:
    shown = _configuration(settings)
    resume = _RESUME.search(shown)
    if resume is None or int(resume[1]) >= _BOOT_S or not _RETURNS.search(shown):
        return []
    text = say("doctor.returns_untested", seconds=resume[1])
    return [Check(say("doctor.reboots"), True, text, say("doctor.reboots_repair", seconds=_BOOT_S))]


def check_munge(settings: ExecutorSettings) -> list[Check]:
    """Nothing where Slurm authenticates otherwise and no node enrols by munge."""
    return each_cluster(settings, _munge_of_cluster)


def _munge_of_cluster(settings: ExecutorSettings) -> list[Check]:
    socket = settings.munge_socket or _socket_of_slurm(settings)
    if socket is None:
        return []
    name, munge = say("doctor.munge"), Munge(socket)
    try:
        munge.decode(munge.encode())
    except (CredentialRefused, Unavailable) as error:
        return [Check(name, False, said_by(error), say("doctor.munge_repair"))]
    return [Check(name, True, say("doctor.munge_well", socket=str(socket)))]


def _socket_of_slurm(settings: ExecutorSettings) -> Path | None:
    """The socket that slurm.conf names, or the default one. None without munge, and without an answer."""
    shown = _configuration(settings)
    authentication, socket = _AUTHENTICATION.search(shown), _SOCKET.search(shown)
    if authentication is None or authentication[1] != "munge":
        return None
    return Path(socket[1]) if socket else DEFAULT_SOCKET


def _configuration(settings: ExecutorSettings) -> str:
    """What `scontrol show config` prints; empty where it is not used or does not answer."""
    if "cli" not in settings.slurm_adapters:
        return ""
    conf = str(settings.slurm_conf) if settings.slurm_conf else None
    try:
        return ReadCommands(conf, settings.slurm_bin_dir, 5.0).run("scontrol", "show", "config").text
    except SchedulerUnavailable:
        return ""
