"""A site whose worker may ask nodes by SSH, and a relay that nothing vouches for."""

import getpass
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from healer.embedded.embedded_slurm import RealSlurm
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
            ssh.let_worker_read()
            yield site, ssh


@contextmanager
def relay_of(site: Site, name: str = "rack 3 relay") -> Iterator[httpx.Client]:
    """A client with a token that vouches for nothing."""
    headers = {"Authorization": f"Bearer {site.token('signals', name, vouches='')}"}
    with httpx.Client(base_url=f"{site.stack.url}/api/v1", headers=headers, timeout=20) as client:
        yield client
