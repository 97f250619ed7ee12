"""Debian's slapd as the directory of a test: a process of its own on loopback, with files of its own."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import free_port
from tests.support.wait import wait_until

BASE = "dc=example,dc=org"
MANAGER, SECRET = f"cn=admin,{BASE}", "a secret of slapd"
PERSON, PASSWORD = "eve", "a password of eve"
GROUPS = [f"cn={name},ou=groups,{BASE}" for name in ("hpc-gpu-ops", "staff")]


class Directory(NamedTuple):
    url: str


@contextmanager
def slapd(folder: Path) -> Iterator[Directory]:
    program = shutil.which("slapd") or "/usr/sbin/slapd"
    root = Path(program).parent.parent
    (folder / "db").mkdir()
    configured, entries = folder / "slapd.conf", folder / "entries.ldif"
    configured.write_text(_CONFIGURATION.format(root=root, folder=folder))
    entries.write_text(_entries())
    subprocess.run([program, "-Tadd", "-f", configured, "-l", entries], check=True, capture_output=True)
    url = f"ldap://127.0.0.1:{free_port()}"
    with (folder / "said").open("wb") as said:
        # Nothing goes to the machine's system log.
        options = ["-d", "0", "-s", "0", "-f", configured, "-h", url]
        process = subprocess.Popen([program, *options], stdout=said, stderr=said)
    try:
        wait_until(lambda: (folder / "pid").exists() or process.poll() is not None, 10, what="slapd runs")
        assert process.poll() is None, (folder / "said").read_text()
        yield Directory(url)
    finally:
        process.terminate()
        process.wait(10)


def _entries() -> str:
    """As the overlay `memberof` keeps them: each person names the groups that have them."""
    people = f"uid={PERSON},ou=people,{BASE}"
    text = [f"dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\no: example\ndc: example\n"]
    for name in ("people", "groups"):
        text.append(f"dn: ou={name},{BASE}\nobjectClass: organizationalUnit\nou: {name}\n")
    member = "".join(f"memberOf: {group}\n" for group in GROUPS)
    text.append(
        f"dn: {people}\nobjectClass: inetOrgPerson\nuid: {PERSON}\ncn: Eve\nsn: Example\n"
        f"mail: eve@example.org\nemployeeType: openid\nuserPassword: {PASSWORD}\n{member}"
    )
    text += [f"dn: {group}\nobjectClass: groupOfNames\nmember: {people}\n" for group in GROUPS]
    return "\n".join(text)


_CONFIGURATION = """\
include {root.parent}/etc/ldap/schema/core.schema
include {root.parent}/etc/ldap/schema/cosine.schema
include {root.parent}/etc/ldap/schema/inetorgperson.schema
modulepath {root}/lib/ldap
moduleload back_mdb
moduleload memberof
pidfile {folder}/pid
database mdb
directory {folder}/db
suffix "dc=example,dc=org"
rootdn "cn=admin,dc=example,dc=org"
rootpw "a secret of slapd"
overlay memberof
access to attrs=userPassword by anonymous auth by * none
access to * by * read
"""
