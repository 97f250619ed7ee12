"""What `healer doctor` says of the way in: certificate, key, names, plain HTTP, proxies."""

import shutil
from pathlib import Path

import pytest

from healer.bootstrap.doctor_checks import Check
from healer.bootstrap.listener_checks import check_listener
from healer.settings import Settings, load, shipped_rules
from tests.support.openssl import Authority, Pair

LASTS = ("-days", "90")


def looks(**environ: str) -> dict[str, Check]:
    return {look.name: look for look in check_listener(settings(**environ))}


def settings(**environ: str) -> Settings:
    return load({"HEALER_LISTEN": "127.0.0.1:1", **environ}, which=lambda _: None)


def by(files: Pair, **more: str) -> dict[str, Check]:
    return looks(HEALER_TLS_CERT=str(files.cert), HEALER_TLS_KEY=str(files.key), **more)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_a_good_certificate_is_well(authority: Authority) -> None:
    files = authority.sign("good", "healer.example", "DNS:*.example", *LASTS)
    files.key.chmod(0o640)
    found = by(files, HEALER_PUBLIC_URL="https://healer.example")
    assert all(look.ok for look in found.values()), found
    assert "*.example, until 20" in found["TLS"].text


def test_each_fault_of_a_certificate_is_named(authority: Authority) -> None:
    good = authority.sign("kept", "healer.example", "DNS:healer.example", *LASTS)
    soon = authority.sign("soon", "healer.example", "DNS:healer.example", "-days", "20")
    ended = authority.sign("ended", "healer.example", "DNS:healer.example", "-days", "-1")
    assert "the certificate expires at" in by(soon)["TLS"].text
    assert "the certificate expired at" in by(ended)["TLS"].text
    assert "the key does not belong to the certificate" in by(Pair(good.cert, soon.key))["TLS"].text
    good.key.chmod(0o644)
    assert f"other users can read {good.key} (mode 0644)" in by(good)["TLS"].text
    for files in (soon, ended, good):
        assert not by(files)["TLS"].ok
    good.key.chmod(0o600)
    other = by(good, HEALER_PUBLIC_URL="https://other.example")["public URL"]
    assert (other.ok, other.text) == (
        False,
        "the certificate does not name other.example, but healer.example",
    )


def test_plain_http_is_a_fault_though_it_is_allowed() -> None:
    found = looks(HEALER_LISTEN="0.0.0.0:8080", HEALER_ALLOW_PLAIN_HTTP="on")["plain HTTP"]
    assert not found.ok and "HEALER_LISTEN is 0.0.0.0:8080" in found.text
    assert "plain HTTP" not in looks()


def test_proxies_are_named_and_few(tmp_path: Path) -> None:
    public = "https://healer.example"
    assert not looks(HEALER_PUBLIC_URL=public)["proxies"].ok
    assert looks(HEALER_PUBLIC_URL=public, HEALER_PROXIES="127.0.0.1, 10.0.0.0/24")["proxies"].ok
    wide = looks(HEALER_PUBLIC_URL=public, HEALER_PROXIES="0.0.0.0/0")["proxies"]
    assert not wide.ok and wide.text.startswith("0.0.0.0/0 covers more than the proxies")


def test_a_console_url_that_contradicts_the_public_one_is_named(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    shutil.copytree(shipped_rules(), rules)
    file = rules / "notifications.yaml"
    file.write_text(file.read_text() + "\nconsole_url: https://old.example\n")
    found = check_listener(settings(HEALER_PUBLIC_URL="https://h.example", HEALER_RULES_DIR=str(rules)))
    assert [look.text for look in found if not look.ok and look.name == "public URL"] == [
        "links in messages begin with https://old.example, not with https://h.example"
    ]
