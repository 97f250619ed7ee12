"""Wrong credentials are counted by address: none pays for another, nor a person for a stranger."""

import pytest

from healer.api import credential_budget as budget_module
from healer.api.credential_budget import (
    BURST,
    COUNTED_S,
    LONG_S,
    PAUSE_S,
    PER_S,
    SEEN_S,
    CredentialBudget,
    OverBudget,
    counted_address,
)

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Site:
    """A budget at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.budget = CredentialBudget(lambda: self.now)
        self._made = 0

    def fresh(self) -> bytes:
        self._made += 1
        return b"%032d" % self._made

    def wrong(self, address: str, digest: bytes | None = None) -> None:
        with self.budget.hold_now(address, digest or self.fresh()) as hold:
            hold.wrong()

    def right(self, address: str, digest: bytes, *, person: bool = True) -> None:
        with self.budget.hold_now(address, digest) as hold:
            hold.person = person

    def spend(self, address: str) -> None:
        for _ in range(int(BURST)):
            self.wrong(address)


@pytest.fixture
def site() -> Site:
    return Site()


def test_an_address_that_spent_its_budget_waits_and_others_do_not(site: Site) -> None:
    site.spend(HERE)
    with pytest.raises(OverBudget) as refused:
        site.wrong(HERE)
    wait_s = int(refused.value.headers["Retry-After"])
    assert refused.value.status == 429 and HERE in refused.value.detail
    site.right(THERE, site.fresh())
    site.now += wait_s
    site.wrong(HERE)
    with pytest.raises(OverBudget):
        site.wrong(HERE)


def test_right_credentials_cost_nothing(site: Site) -> None:
    for _ in range(int(BURST) * 3):
        site.right(HERE, site.fresh())


def test_recently_accepted_credential_passes_despite_the_address_budget(site: Site) -> None:
    mara, node = site.fresh(), site.fresh()
    site.right(THERE, mara)
    site.right(HERE, node, person=False)
    site.spend(HERE)
    site.right(HERE, mara)
    site.right(HERE, node, person=False)
    assert [site.budget.hold_now(HERE, seen).was_person for seen in (mara, node)] == [True, False]
    assert site.budget.hold_now(THERE, site.fresh()).was_person is None
    site.now += SEEN_S
    site.spend(HERE)
    with pytest.raises(OverBudget):
        site.right(HERE, mara)


def test_a_credential_that_ended_passes_no_more(site: Site) -> None:
    ended = site.fresh()
    site.right(HERE, ended)
    site.wrong(HERE, ended)
    for _ in range(int(BURST) - 1):
        site.wrong(HERE)
    with pytest.raises(OverBudget):
        site.wrong(HERE, ended)


def test_the_same_wrong_credential_counts_once_in_a_while(site: Site) -> None:
    ended = site.fresh()
    for _ in range(int(BURST) * 3):
        site.wrong(HERE, ended)
    for _ in range(int(BURST) - 1):
        site.wrong(HERE)
    with pytest.raises(OverBudget):
        site.wrong(HERE, ended)
    site.now += max(COUNTED_S, BURST / PER_S)
    site.wrong(HERE, ended)
    for _ in range(int(BURST) - 1):
        site.wrong(HERE)
    with pytest.raises(OverBudget):
        site.wrong(HERE)


def test_look_ups_under_way_hold_what_they_may_cost(site: Site) -> None:
    holds = [site.budget.hold(HERE, site.fresh()) for _ in range(int(BURST))]
    assert None not in holds
    assert site.budget.hold(HERE, site.fresh()) is None, "all of it is held"
    with pytest.raises(OverBudget):
        site.budget.hold_now(HERE, site.fresh())
    for hold in holds:
        assert hold is not None
        with hold:
            pass  # the database did not answer: neither right nor wrong
    site.wrong(HERE)


def test_the_tables_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "ADDRESSES", 3)
    monkeypatch.setattr(budget_module, "CREDENTIALS", 3)
    for number in range(50):
        site.wrong(f"192.0.2.{number}")
        site.right(f"192.0.2.{number}", site.fresh())
    tables = (site.budget._accounts, site.budget._accepted, site.budget._counted)
    assert [len(table) for table in tables] == [3, 3, 3]


def test_an_address_that_is_refused_for_long_is_reported(site: Site) -> None:
    site.spend(HERE)
    site.spend(THERE)
    for _ in range(int(LONG_S)):
        with pytest.raises(OverBudget):
            for _ in range(2):
                site.wrong(HERE)
        site.now += 1
    (flood,) = site.budget.floods()
    assert (flood.address, flood.refused) == (HERE, LONG_S) and flood.lasts_s >= LONG_S
    site.now += PAUSE_S
    assert site.budget.floods() == []


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_addresses_of_one_ipv6_network_count_as_one(address: str, counted: str) -> None:
    assert counted_address(address) == counted
