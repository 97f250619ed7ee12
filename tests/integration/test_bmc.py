"""What every `ports.Bmc` must do: the simulated one, and Redfish over HTTPS. Then what is Redfish's own."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from healer.adapters.bmc.redfish import Redfish
from healer.adapters.system_clock import SystemClock
from healer.bootstrap import doctor_checks
from healer.model import ResetKind
from healer.ports.node_exec import Bmc, BmcError, BmcUnavailable
from healer.settings import ExecutorSettings, load_executor
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler, SimServer
from tests.support.redfish import PASSWORD, USER, Bmcs, redfish
from tests.support.sim_bmc import CYCLE_S, SimBmc
from tests.support.tls import Certificates, certificates

NODE = "gpu0007"


class World(Protocol):
    """What drives the BMCs."""

    resets: list[Any]

    def plant(self, node: str, fault: str, /) -> None: ...
    def mend(self, node: str, fault: str, /) -> None: ...


class Advancing(Protocol):
    def advance(self, seconds: float, /) -> object: ...


class Bench:
    def __init__(self, bmc: Bmc, world: World, clock: Advancing) -> None:
        self.bmc, self.world, self.clock = bmc, world, clock

    def reset(self, kind: ResetKind) -> str | None:
        return self.bmc.reset(NODE, self.bmc.power(NODE).target, kind)

    def kinds(self) -> list[str]:
        return [str(kind) for _, kind in self.world.resets]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def bmcs(signed: Certificates) -> Iterator[Bmcs]:
    with redfish(signed.authority, signed.server) as found:
        yield found
        assert found.complaints == []


@pytest.fixture(params=["sim", "redfish"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "sim":
        clock = SimClock(datetime(2026, 11, 20, 3, tzinfo=UTC))
        world = SimBmc(clock)
        yield Bench(world, world, clock)
        return
    found = request.getfixturevalue("bmcs")
    client = Redfish(found.settings(), effect_s=0.5)
    yield Bench(client, found, found)
    client.close()


def test_node_is_on_and_lists_its_reset_types(bench: Bench) -> None:
    power = bench.bmc.power(NODE)
    assert power.state == "On"
    assert {"PowerCycle", "ForceOff", "On"} <= set(power.kinds)


def test_a_power_cycle_is_off_and_then_on_again(bench: Bench) -> None:
    assert bench.reset(ResetKind.power_cycle) is None
    assert bench.bmc.power(NODE).state == "Off"
    bench.clock.advance(CYCLE_S)
    assert bench.bmc.power(NODE).state == "On"
    assert bench.kinds() == ["PowerCycle"]


def test_node_forced_off_stays_off_until_switched_on(bench: Bench) -> None:
    bench.reset(ResetKind.force_off)
    bench.clock.advance(60)
    assert bench.bmc.power(NODE).state == "Off"
    bench.reset(ResetKind.on)
    assert bench.bmc.power(NODE).state == "On"


def test_one_without_power_cycle_says_so_and_takes_none(bench: Bench) -> None:
    bench.world.plant(NODE, "no-cycle")
    assert "PowerCycle" not in bench.bmc.power(NODE).kinds
    with pytest.raises(BmcError) as caught:
        bench.reset(ResetKind.power_cycle)
    assert not isinstance(caught.value, BmcUnavailable)
    assert bench.kinds() == []


def test_busy_target_has_done_nothing(bench: Bench) -> None:
    bench.world.plant(NODE, "busy")
    with pytest.raises(BmcUnavailable) as caught:
        bench.reset(ResetKind.power_cycle)
    assert not caught.value.sent
    assert bench.kinds() == [] and bench.bmc.power(NODE).state == "On"


def test_a_reset_without_an_answer_may_have_come(bench: Bench) -> None:
    bench.world.plant(NODE, "hangs")
    with pytest.raises(BmcUnavailable) as caught:
        bench.reset(ResetKind.power_cycle)
    assert caught.value.sent
    assert bench.kinds() == ["PowerCycle"]


def test_wrong_account_is_reported_and_is_not_a_timeout(bench: Bench) -> None:
    bench.world.plant(NODE, "refuses")
    with pytest.raises(BmcError) as caught:
        bench.bmc.power(NODE)
    assert not isinstance(caught.value, BmcUnavailable) and NODE in str(caught.value)


def test_late_reset_failure_reports_its_cause(bench: Bench) -> None:
    bench.world.plant(NODE, "task-fails")
    task = bench.reset(ResetKind.power_cycle)
    assert task is not None
    assert "power supply said no" in (bench.bmc.task_failed(NODE, task) or "")
    bench.world.mend(NODE, "task-fails")
    assert bench.bmc.task_failed(NODE, task) is None


# --- Redfish's own ---


@pytest.fixture
def client(bmcs: Bmcs) -> Iterator[Redfish]:
    found = Redfish(bmcs.settings(), look_s=3, effect_s=3)
    yield found
    found.close()


def refused(client: Redfish, node: str = NODE) -> str:
    """The words of a look that a person has to mend; they never hold the password."""
    with pytest.raises(BmcError) as caught:
        client.power(node)
    assert not isinstance(caught.value, BmcUnavailable)
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def test_reset_types_may_be_listed_in_an_action_info(bmcs: Bmcs, client: Redfish) -> None:
    bmcs.plant(NODE, "info")
    assert "PowerCycle" in client.power(NODE).kinds


def test_a_state_of_the_vendors_is_kept_as_it_is(bmcs: Bmcs, client: Redfish) -> None:
    bmcs.plant(NODE, "oem-state")
    assert client.power(NODE).state == "Standby"


def test_ambiguous_system_of_a_bmc_is_refused(bmcs: Bmcs, client: Redfish) -> None:
    bmcs.plant(NODE, "two-systems")
    assert "437XR1138R2, HGX_Baseboard_0" in refused(client)
    named = Redfish(bmcs.settings(system="437XR1138R2"))
    assert named.power(NODE).system == "437XR1138R2"
    named.close()
    wrong = Redfish(bmcs.settings(system="DGX"))
    assert "has no system DGX" in refused(wrong)
    wrong.close()


def test_nothing_is_sent_to_a_host_that_a_bmc_names(bmcs: Bmcs, client: Redfish) -> None:
    bmcs.plant(NODE, "elsewhere")
    assert "not a Redfish address" in refused(client)
    assert bmcs.resets == []


def test_an_account_that_is_refused_says_what_to_set(bmcs: Bmcs, client: Redfish) -> None:
    bmcs.plant(NODE, "refuses")
    error = refused(client)
    assert "401: Wrong account. Log in." in error and "HEALER_BMC_USER" in error


def test_endpoint_without_redfish_is_reported(bmcs: Bmcs, client: Redfish) -> None:
    bmcs.plant(NODE, "no-redfish")
    assert "answered 404" in refused(client)


def test_a_certificate_of_an_unknown_issuer_is_not_believed(bmcs: Bmcs) -> None:
    for settings, believed in ((bmcs.settings(ca_file=None), False), (bmcs.settings(check_tls=False), True)):
        client = Redfish(settings)
        if believed:
            assert client.power(NODE).state == "On"
        else:
            assert "is not trusted" in refused(client) and bmcs.asked == []
        client.close()


def test_a_file_of_authorities_that_is_none_stops_the_start(bmcs: Bmcs, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="HEALER_BMC_CA_FILE"):
        Redfish(bmcs.settings(ca_file=tmp_path / "none.pem"))


def test_bmc_that_asks_for_a_retry_delay_gets_it(bmcs: Bmcs, client: Redfish) -> None:
    target = client.power(NODE).target
    bmcs.plant(NODE, "later")
    with pytest.raises(BmcUnavailable) as caught:
        client.reset(NODE, target, ResetKind.power_cycle)
    assert (caught.value.sent, caught.value.after_s) == (False, 7.0)


@pytest.mark.parametrize("fault", ["broken", "drops"])
def test_a_reset_that_ends_in_trouble_may_have_come(bmcs: Bmcs, client: Redfish, fault: str) -> None:
    target = client.power(NODE).target
    bmcs.plant(NODE, fault)
    with pytest.raises(BmcUnavailable) as caught:
        client.reset(NODE, target, ResetKind.power_cycle)
    assert caught.value.sent and len([one for one in bmcs.asked if one[0] == "POST"]) == 1


def test_unsupported_reset_type_is_reported_in_the_bmcs_words(bmcs: Bmcs, client: Redfish) -> None:
    target = client.power(NODE).target
    bmcs.plant(NODE, "no-cycle")
    with pytest.raises(BmcError, match=r"answered 400: ResetType cannot be PowerCycle\."):
        client.reset(NODE, target, ResetKind.power_cycle)


def test_an_answer_without_an_end_is_left(bmcs: Bmcs) -> None:
    client = Redfish(bmcs.settings(), look_s=0.3)
    bmcs.plant(NODE, "endless")
    with pytest.raises(BmcUnavailable):
        client.power(NODE)
    client.close()


def test_unreachable_bmc_means_nothing_was_sent(bmcs: Bmcs) -> None:
    client = Redfish(bmcs.settings(url="https://127.0.0.1:1/{node}"))
    with pytest.raises(BmcUnavailable) as caught:
        client.power(NODE)
    assert not caught.value.sent and "127.0.0.1" not in str(caught.value)
    client.close()


def test_a_name_that_is_none_makes_no_address(client: Redfish) -> None:
    assert "not a node name" in refused(client, "gpu1/../x")


def test_no_redirect_is_followed_with_the_password(signed: Certificates) -> None:
    with redfish(signed.authority, signed.server) as bmcs:
        client = Redfish(bmcs.settings())
        bmcs.serve = lambda *_: (302, {"location": "https://127.0.0.1:1/x"}, None)  # type: ignore[method-assign]
        assert "HEALER_BMC_URL" in refused(client)
        client.close()


def test_no_proxy_of_the_environment_gets_it(bmcs: Bmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    client = Redfish(bmcs.settings())
    assert client.power(NODE).state == "On"
    assert isinstance(client._client.auth, httpx.BasicAuth)
    client.close()


# --- healer doctor


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[str]:
    """A simulated Slurm; its first node."""
    server = SimServer(SimScheduler("pod1", SystemClock(), 2), tmp_path / "slurm.sock")
    server.start()
    yield "gpu0001"
    server.stop()


def configured(bmcs: Bmcs, tmp_path: Path, **more: str) -> ExecutorSettings:
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    given = {
        "HEALER_DATA_DIR": str(tmp_path),
        "HEALER_SLURM_ADAPTERS": "sim",
        "HEALER_SIM_SOCKET": str(tmp_path / "slurm.sock"),
        "HEALER_BMC_URL": bmcs.settings().url,
        "HEALER_BMC_USER": USER,
        "HEALER_BMC_PASSWORD_FILE": str(password),
        "HEALER_BMC_CA_FILE": str(bmcs.authority),
    }
    return load_executor({name: value for name, value in (given | more).items() if value})


def test_doctor_reads_the_power_of_one_node(bmcs: Bmcs, slurm: str, tmp_path: Path) -> None:
    (check,) = doctor_checks.check_bmcs(configured(bmcs, tmp_path))
    assert (check.ok, check.repair) == (True, "")
    assert check.text == f"{slurm} answers by Redfish: system 437XR1138R2, power On"
    assert {method for method, _ in bmcs.asked} == {"GET"}


def test_doctor_says_what_to_mend(bmcs: Bmcs, slurm: str, tmp_path: Path) -> None:
    (check,) = doctor_checks.check_bmcs(configured(bmcs, tmp_path, HEALER_BMC_CA_FILE=""))
    assert not check.ok and "is not trusted" in check.text and "reboot.md" in check.repair
    (check,) = doctor_checks.check_bmcs(configured(bmcs, tmp_path, HEALER_BMC_CA_FILE=str(tmp_path / "none")))
    assert not check.ok and "HEALER_BMC_CA_FILE" in check.text
    bmcs.plant(slurm, "two-systems")
    (check,) = doctor_checks.check_bmcs(configured(bmcs, tmp_path))
    assert not check.ok and "HEALER_BMC_SYSTEM" in check.text
    assert doctor_checks.check_bmcs(configured(bmcs, tmp_path, HEALER_BMC_URL="")) == []
