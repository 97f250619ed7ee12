"""Who asked, by which name and scheme: what proxies say counts only from those that were named."""

import time
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from healer.api.cookies import drop_cookie, read_cookie, set_cookie
from healer.api.problems import Problem
from healer.api.site_address import Reached, SiteNames, client_address, is_own_origin, site_address

PROXIES = (ip_network("10.0.0.0/24"), ip_network("fd00::/64"))
PUBLIC = "https://healer.example"


def scope(
    site: SiteNames, *headers: tuple[str, str], client: str = "10.0.0.5", **more: Any
) -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    app = SimpleNamespace(state=SimpleNamespace(site=site))
    base = {"type": "http", "scheme": "http", "client": (client, 4711), "server": ("10.9.9.9", 8080)}
    return {**base, "headers": raw, "app": app, **more}


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ((("X-Forwarded-For", "192.0.2.7"),), "192.0.2.7"),
        # The client's forged part precedes what the proxies appended.
        ((("X-Forwarded-For", "127.0.0.1, 192.0.2.7, 10.0.0.9"),), "192.0.2.7"),
        ((("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-For", "192.0.2.7")), "192.0.2.7"),
        ((("X-Forwarded-For", "192.0.2.7:51000"),), "192.0.2.7"),
        ((("X-Forwarded-For", "[2001:db8::1]:51000"),), "2001:db8::1"),
        ((("X-Forwarded-For", "unknown"),), "10.0.0.5"),
        ((("X-Forwarded-For", "192.0.2.1, nonsense"),), "10.0.0.5"),
        ((("Forwarded", 'for=192.0.2.1, for="[2001:db8::1]:99";proto=https'),), "2001:db8::1"),
        ((("Forwarded", 'for="a,b", for=_hidden'),), "10.0.0.5"),
        # The client's part does not swallow what the proxy appended.
        ((("Forwarded", 'for="9.9.9.9:'), ("Forwarded", "for=192.0.2.7")), "192.0.2.7"),
        # The proxy writes one of the two; the other is the client's.
        ((("X-Forwarded-For", "192.0.2.7"), ("Forwarded", "for=127.0.0.1")), "10.0.0.5"),
        ((("X-Forwarded-For", "192.0.2.7"), ("Forwarded", "for=192.0.2.7")), "192.0.2.7"),
        ((), "10.0.0.5"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_named_proxy(
    headers: tuple[tuple[str, str], ...], client: str
) -> None:
    assert client_address(scope(SiteNames(PUBLIC, PROXIES), *headers)) == client


@pytest.mark.parametrize("header", ["X-Forwarded-For: 192.0.2.7", "Forwarded: for=192.0.2.7;proto=https"])
def test_forwarded_headers_from_an_untrusted_client_are_ignored(header: str) -> None:
    name, _, value = header.partition(": ")
    spoofed = (name, value), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "other"), ("Host", "h:1")
    for site in (SiteNames(None, PROXIES), SiteNames()):
        found = site_address(scope(site, *spoofed, client="198.51.100.1"))
        assert found == Reached("http", "h:1", "198.51.100.1")


def test_a_named_proxy_says_scheme_and_host() -> None:
    site = SiteNames(PUBLIC, PROXIES)
    usual = ("Host", "127.0.0.1:8080"), ("X-Forwarded-For", "192.0.2.7"), ("X-Forwarded-Proto", "HTTPS")
    found = site_address(scope(site, *usual, ("X-Forwarded-Host", "healer.example")))
    assert found == Reached("https", "healer.example", "192.0.2.7")
    standard = (
        "Forwarded",
        'for=1.1.1.1;host=evil, for=192.0.2.7;proto=https;host="healer.example"',
    )
    assert site_address(scope(site, ("Host", "127.0.0.1"), standard)) == found


def test_a_public_name_by_https_is_https_where_the_proxy_does_not_say_so() -> None:
    assert site_address(scope(SiteNames(PUBLIC), ("Host", "Healer.Example:443"))).scheme == "https"
    assert site_address(scope(SiteNames(PUBLIC), ("Host", "127.0.0.1:8080"))).scheme == "http"


@pytest.mark.parametrize(
    "host",
    ["healer.example", "HEALER.example.", "healer.example:8443", "localhost:8080", "127.0.0.1", "[::1]:8080",
     "10.9.9.9:8080", "inner.pod1.example", "gpu.site.example", ""],
)  # fmt: skip
def test_names_of_this_site_are_accepted(host: str) -> None:
    site = SiteNames(PUBLIC, names=lambda: ("Inner.pod1.example", "*.site.example"))
    for _ in range(2):  # the second time from the cache
        site.check_host(scope(site, ("Host", host)))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "healer.example.evil.example", "10.9.9.8", "site.example", "a.b.site.example",
     "healer.example@evil.example", "evil.example:8080", "xhealer.example", "[::2]"],
)  # fmt: skip
def test_a_name_of_another_site_is_refused(host: str) -> None:
    site = SiteNames(PUBLIC, PROXIES, names=lambda: ("*.site.example",))
    for named in (("Host", host), ("X-Forwarded-Host", host)):
        with pytest.raises(Problem) as refused:
            site.check_host(scope(site, ("Host", host), named))
        assert (refused.value.status, refused.value.code) == (421, "wrong_host")


def test_two_names_in_one_request_are_refused_though_each_is_known() -> None:
    """RFC 9112, 3.2: a proxy may have believed the other one."""
    site = SiteNames(PUBLIC)
    site.check_host(scope(site, ("Host", "localhost")))
    for second in ("evil.example", "localhost"):
        with pytest.raises(Problem) as refused:
            site.check_host(scope(site, ("Host", "localhost"), ("Host", second)))
        assert refused.value.status == 421


def test_a_name_that_was_accepted_of_one_address_is_not_that_of_another() -> None:
    site = SiteNames()
    site.check_host(scope(site, ("Host", "10.9.9.9")))
    with pytest.raises(Problem):
        site.check_host(scope(site, ("Host", "10.9.9.9"), server=("10.9.9.1", 8080)))


def test_the_origin_of_a_form_is_that_of_the_site() -> None:
    site = SiteNames("https://healer.example:8443")
    asked = scope(site, ("Host", "healer.example"))  # as nginx passes it on, without its port
    assert is_own_origin(asked, "https://healer.example:8443")
    assert is_own_origin(asked, "https://healer.example")
    assert not is_own_origin(asked, "https://evil.example")
    for nonsense in ("null", "http://[", "http://a]", ""):
        assert not is_own_origin(asked, nonsense)


@pytest.mark.parametrize(
    "value",
    ['for="' + '\\"' * 30_000, "a" * 60_000, 'a="\\"' * 12_000, '"' * 60_000],
    ids=["escaped", "letters", "pairs", "quotes"],
)
def test_a_long_forwarded_header_costs_little(value: str) -> None:
    """It is read while no one else is served."""
    began_s = time.process_time()
    assert site_address(scope(SiteNames(PUBLIC, PROXIES), ("Forwarded", value), ("Host", "h"))).host == "h"
    assert time.process_time() - began_s < 1


def cookies(answer: Response) -> list[str]:
    return [value.decode() for name, value in answer.raw_headers if name == b"set-cookie"]


def test_by_https_a_cookie_is_for_this_very_host_and_no_other_is_read() -> None:
    both = ("Cookie", "healer_session=planted; __Host-healer_session=ours"), ("Host", "h")
    secure, plain = (Request(scope(SiteNames(), *both, scheme=scheme)) for scheme in ("https", "http"))
    assert read_cookie(secure, "healer_session") == "ours"
    assert read_cookie(plain, "healer_session") == "planted"
    answer = Response()
    set_cookie(secure, answer, "healer_session", "x", lasts_s=60)
    drop_cookie(secure, answer, "healer_session")
    for made in cookies(answer):
        assert made.startswith("__Host-healer_session=")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=lax"} <= set(made.split("; "))
        assert "Domain" not in made
    answer = Response()
    set_cookie(plain, answer, "healer_session", "x", lasts_s=None)
    assert cookies(answer) == ["healer_session=x; HttpOnly; Path=/; SameSite=lax"]
