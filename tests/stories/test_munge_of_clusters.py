"""Of several clusters only one whose own munge is named lets its nodes enrol."""

from pathlib import Path

import pytest

from healer.adapters.munge import Munge
from healer.bootstrap.web import credentials
from healer.ports.callers import CredentialRefused
from healer.settings import load

POD1 = """
[clusters.pod1]
SLURM_CONF = "/etc/pod1/slurm.conf"
HEALER_MUNGE_SOCKET = "/run/munge/pod1.socket"
"""
POD2 = """
[clusters.pod2]
SLURM_CONF = "/etc/pod2/slurm.conf"
"""


def test_a_cluster_of_several_without_a_munge_of_its_own_takes_no_credential(tmp_path: Path) -> None:
    """The usual socket may be pod1's: its root would get tokens for nodes of pod2."""
    file = tmp_path / "healer.toml"
    file.write_text(POD1 + POD2)
    of = credentials(load({"HEALER_CONFIG": str(file)}, which=lambda _: "/usr/bin/x"))
    assert isinstance(of("pod1"), Munge)
    for cluster in ("pod2", "pod3"):
        with pytest.raises(CredentialRefused, match=f"for the cluster {cluster}: .* HEALER_MUNGE_SOCKET"):
            of(cluster).decode("MUNGE:AwQDAAA=:")


def test_one_cluster_alone_has_the_usual_munge(tmp_path: Path) -> None:
    file = tmp_path / "healer.toml"
    file.write_text(POD2)
    alone = load({"HEALER_CONFIG": str(file)}, which=lambda _: "/usr/bin/x")
    for settings in (alone, load({"HEALER_CLUSTER": "pod2"}, which=lambda _: "/usr/bin/x")):
        assert isinstance(credentials(settings)("pod2"), Munge)
