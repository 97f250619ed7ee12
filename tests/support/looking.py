"""A site whose worker may ask nodes by SSH, and a relay that nothing vouches for."""

import getpass
import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from healer.embedded.embedded_slurm import RealSlurm
from healer.embedded.user import WORKER
from tests.support.node_ssh import SshSite, ssh_site
from tests.support.site import Site, site_on

#: GPU 0 of `StandIns`.
GPU = "0000:10:00"


@contextmanager
def asking(
    cluster: RealSlurm, folder: Path, nodes: Sequence[str], **environ: str
) -> Iterator[tuple[Site, SshSite]]:
    """The site, and its nodes behind an sshd each."""
    with ssh_site(folder / "ssh") as ssh:
        for node in nodes:
            ssh.node(node)
        settings = {
            "HEALER_SSH_KEY_FILE": str(ssh.key),
            "HEALER_SSH_SIGNING_KEY_FILE": str(ssh.signing_key),
            "HEALER_SSH_KNOWN_HOSTS": str(ssh.known_hosts),
            "HEALER_SSH_CONFIG": str(ssh.config),
            "HEALER_SSH_USER": getpass.getuser(),
        }
        with site_on(cluster, **settings, **environ) as site:
            _let_the_worker_read(ssh)
            yield site, ssh


def _let_the_worker_read(ssh: SshSite) -> None:
    """Started by root, the worker has a user of its own, which the site has made by now."""
    if os.geteuid() != 0:
        return
    worker = pwd.getpwnam(WORKER)
    for path in (ssh.key, ssh.signing_key, ssh.known_hosts, ssh.config):
        os.chown(path, worker.pw_uid, worker.pw_gid)
    for folder in (ssh.folder, *ssh.folder.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)


@contextmanager
def relay_of(site: Site, name: str = "rack 3 relay") -> Iterator[httpx.Client]:
    """A client with a token that vouches for nothing."""
    headers = {"Authorization": f"Bearer {site.token('signals', name, vouches='')}"}
    with httpx.Client(base_url=f"{site.stack.url}/api/v1", headers=headers, timeout=20) as client:
        yield client
