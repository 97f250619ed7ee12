"""`healer node-package`: one shell script that installs hook, follower and healer-node on a node."""

import base64
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import typer

from healer.commands import print_line, reading
from healer.commands.hook_install import programs
from healer.commands.safe_url import check_senders
from healer.text import say

HOOKS = Path(__file__).parents[1] / "hooks"
LIB = "/usr/local/lib/healer"
CONF = "/etc/healer"
_FILES, _KEPT = "    : @FILES@\n", "    : @KEPT@\n"
#: The last line of a signed script begins with it: all before that line is signed.
SIGNATURE = "# signature: "
REQUESTS_KEY, PACKAGE_KEY = "requests.key", "package.key"
_URL = re.compile(r"https?://[^\s/?#\"']+(/[^\s?#\"']*)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def node_keys(folder: Path = typer.Argument(help="Folder for the keys; created if missing.")) -> None:
    """Create two keys: requests.key signs the worker's requests to nodes, package.key what nodes install."""
    from healer.bootstrap.node_keys import make_key

    with reading(folder, writes=True):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (REQUESTS_KEY, PACKAGE_KEY):
            if (folder / name).exists():
                print_line(say("commands.key_kept", file=str(folder / name)))
            else:
                mark = str(make_key(folder / name))
                print_line(say("commands.key_made", file=str(folder / name), mark=mark))


def node_package(
    url: str = typer.Option(..., help="Where nodes reach healer, like https://healer.example."),
    cluster: str = typer.Option("", help="Its cluster, if healer serves several."),
    ca_file: Path | None = typer.Option(
        None, help="Certificate (PEM) that signed healer's, if it is your own."
    ),
    slurm_conf: Path | None = typer.Option(
        None,
        help="The cluster's slurm.conf, for the site's own hooks. Default: /etc/slurm/slurm.conf.",
    ),
    keys: Path | None = typer.Option(
        None,
        help="Folder of `healer node-keys`: requests.pub goes to the nodes, package.key signs the script.",
    ),
    output: Path | None = typer.Option(None, help="Output file instead of standard output."),
) -> None:
    """Print one script that installs healer's hook and follower on a node: sh SCRIPT install."""
    if not _URL.fullmatch(url):
        raise typer.BadParameter(say("commands.no_address", given=url), param_hint="--url")
    check_senders(url)
    if cluster and not _NAME.fullmatch(cluster):
        raise typer.BadParameter(say("commands.no_cluster_name", given=cluster), param_hint="--cluster")
    with reading(ca_file or ""):
        certificate = None if ca_file is None else ca_file.read_text("ascii")
        site_conf, public = _site_conf(slurm_conf), _public_keys(keys)
        script = package(url, cluster, certificate, site_conf, keys=public)
        signature = b""
        if keys is not None:
            script, signature = signed(script, keys / PACKAGE_KEY)
    if output is None:
        sys.stdout.write(script)
        return
    with reading(output, writes=True):
        output.write_text(script)
        output.chmod(0o755)
        if signature:
            output.with_name(f"{output.name}.sig").write_bytes(signature)


def signed(script: str, key_file: Path) -> tuple[str, bytes]:
    """The script with a signature of it as its last line, for a node that has had one of this key before; and
    the signature of all of that, for a file of its own. Raises NodeError for a key that cannot be used."""
    from healer.bootstrap.node_keys import read_key, sign

    key = read_key(key_file)
    script += f"{SIGNATURE}{base64.b64encode(sign(key, script.encode())).decode()}\n"
    return script, sign(key, script.encode())


def _public_keys(folder: Path | None) -> dict[str, str]:
    """The keys for the nodes by their names there; prints a note without any."""
    if folder is None:
        print_line(say("commands.package_no_keys"), err=True)
        return {}
    files = [(folder / name).with_suffix(".pub") for name in (REQUESTS_KEY, PACKAGE_KEY)]
    return {path.name: path.read_text("ascii") for path in files}


def _site_conf(given: Path | None) -> Path | None:
    """The slurm.conf with the site's own hooks; prints a note if there is none."""
    path = given or Path(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf"))
    if given is not None or path.exists():
        return path
    print_line(say("commands.package_no_conf", path=str(path)), err=True)
    return None


def package(
    url: str,
    cluster: str = "",
    certificate: str | None = None,
    slurm_conf: Path | None = None,
    *,
    keys: Mapping[str, str] | None = None,
) -> str:
    """The script, with all files in it as text, so that it can be read before it runs as root. `keys`: public
    keys by the names of their files on the node."""
    files = [
        (0o755, f"{LIB}/healer-hook", (HOOKS / "healer-hook").read_text(), False),
        (0o755, f"{LIB}/healer-follow", (HOOKS / "healer-follow").read_text(), False),
        (0o755, f"{LIB}/healer-node", (HOOKS / "healer-node").read_text(), False),
        (
            0o644,
            "/etc/systemd/system/healer-follow.service",
            (HOOKS / "healer-follow.service").read_text(),
            False,
        ),
        (0o644, f"{CONF}/hook.conf", hook_conf(url, cluster, f"{CONF}/ca.pem" if certificate else ""), True),
    ]
    if certificate:
        files.append((0o644, f"{CONF}/ca.pem", certificate, True))
    files += [(0o644, f"{CONF}/{name}", text, False) for name, text in (keys or {}).items()]
    called = programs(slurm_conf, Path(LIB), Path(f"{CONF}/hook.conf"))
    files[1:1] = [(0o755, str(path), data.decode(), False) for path, data in called.items()]
    parts = [_put_command(mode, path, text, keep=keep) for mode, path, text, keep in files]
    kept = [f"    kept {shlex.quote(str(path))}\n" for path in called]
    script = (HOOKS / "node-package.sh").read_text()
    return script.replace(_FILES, "".join(parts)).replace(_KEPT, "".join(kept))


def hook_conf(url: str, cluster: str = "", ca_file: str = "") -> str:
    """The settings of hook and follower on a node. docs/nodes.md lists all keys."""
    values = {"HEALER_URL": url, "HEALER_CLUSTER": cluster, "HEALER_CA_FILE": ca_file}
    lines = [f"{key}={value}\n" for key, value in values.items() if value]
    return "# Read by healer-hook and healer-follow: KEY=VALUE lines.\n" + "".join(lines)


def _put_command(mode: int, path: str, text: str, *, keep: bool) -> str:
    end = "END_OF_FILE"
    while end in text:
        end += "_"
    text = text if text.endswith("\n") else text + "\n"
    return f"    put {mode:o} {shlex.quote(path)}{' keep' if keep else ''} <<'{end}'\n{text}{end}\n"
