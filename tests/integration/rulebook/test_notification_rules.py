"""`rules/notifications.yaml`: what is wrong is named by line, no secret is taken, and routes are fitted."""

import shutil
from pathlib import Path

import pytest

from healer.bootstrap.messaging import ChannelBook, check_channels
from healer.model import (
    About,
    Channel,
    ChannelKind,
    Manner,
    Notifications,
    Route,
    Routing,
    Severity,
    routes_to,
)
from healer.ports.outbound import DeliveryFailed
from healer.rulebook.ruleset import RulesInvalid, load
from healer.settings import SettingsError
from healer.settings import load as load_settings
from tests.support.loop import SHIPPED, shipped

pytestmark = pytest.mark.heavy

PEOPLE = "people: [{slack: ann, name: ann, role: operator}, {slack: U0A1, name: bob, role: admin}]"
WHOLE = """\
channels:
  - {name: night, kind: pagerduty}
  - {name: ops, kind: slack, channel: C0HEALER, secret: /etc/healer/slack}
  - {name: feed, kind: alertmanager, url: "http://am.example:9093"}
  - {name: post, kind: email, server: "mail.example:587", sender: healer@example.org, to: [ops@example.org]}
routes:
  - {to: [night, ops], how: page, severities: [P0]}
  - {to: [ops, feed], how: channel, severities: [P1]}
  - {to: [post], how: digest, severities: [P2, P3]}
console_url: https://healer.example
alive: {channel: feed}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "rules"))


def taken(folder: Path, text: str) -> Notifications:
    (folder / "notifications.yaml").write_text(text)
    return load(folder, prove=False).notifications


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(RulesInvalid) as caught:
        taken(folder, text)
    return [str(one) for one in caught.value.problems]


@pytest.mark.parametrize(
    "names",
    [
        "rules: [gpu-lost, wave, 'memory-*', pdu-power, gpu-clock-low]",
        "faults: [xid-79, 'xid-*', 'slurm-drain:*', 'foreign-drain:nhc', 'alert:*', 'shared:*']",
        "faults: ['repeats:*', 'wave:gpu-lost', gpu-clock-low, 'node-test:dcgm', 'hook:probe', hang]",
    ],
)
def test_a_route_names_rules_and_faults_of_every_kind(folder: Path, names: str) -> None:
    assert taken(folder, WHOLE.replace("to: [ops, feed]", f"to: [ops, feed], {names}")).routes


def test_shipped_rules_name_no_channel_and_the_file_is_optional(folder: Path) -> None:
    assert shipped().notifications == Notifications()
    (folder / "notifications.yaml").unlink()
    assert load(folder, prove=False).notifications == Notifications()


def test_a_sites_own_file(folder: Path) -> None:
    found = taken(folder, WHOLE.replace("kind: pagerduty", "kind: pagerduty, language: zh"))
    assert [one.language for one in found.channels] == ["zh", "en", "en", "en"]
    assert [one.name for one in found.channels] == ["night", "ops", "feed", "post"]
    assert found.alive is not None
    assert (found.alive.channel, found.alive.every_s, found.digest_h) == ("feed", 60, 1)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("channel: C0HEALER, ", "", "notifications.yaml:3: the channel ops (slack) needs channel"),
        ("kind: slack", "kind: slak", "channels.kind: 'slak' is not an allowed value (did you mean slack?)"),
        ("/etc/healer/slack", "xoxb-17", "3: secret: must be HEALER_SLACK_TOKEN or the path"),
        ("/etc/healer/slack", "HEALER_SLACK_TOKN", "(did you mean HEALER_SLACK_TOKEN?)"),
        ("kind: pagerduty", "kind: pagerduty, mobiles: ['1']", "2: pagerduty has no field mobiles"),
        ("kind: pagerduty", "kind: wecom, url: 'https://chat/key=1'", "never the secret itself"),
        ("kind: slack", "kind: slack, language: cn", "language: 'cn' is not an allowed value (one of en, zh"),
        ("name: post", "name: ops", "the name ops is already in use"),
        ("routes:", f"{PEOPLE}\nroutes:", "slack: 'ann' is not a member ID such as U012ABCDEF"),
        ("routes:", f"{PEOPLE.replace('ann', 'U0A1', 1)}\nroutes:", "slack: U0A1 is listed twice"),
        ("routes:", f"{PEOPLE.replace('operator', 'boss')}\nroutes:", "role: 'boss' is not an allowed value"),
        ("to: [night, ops]", "to: [nigth, ops]", "7: there is no channel nigth (did you mean night?)"),
        ("to: [post]", "to: [night]", "9: night is of kind pagerduty, which has no digest"),
        ("to: [ops, feed]", "to: [ops, feed], rules: ['gpu-[']", "8: rules: 'gpu-[' is not a name or a glob"),
        ("to: [ops, feed]", "to: [ops, feed], rules: [gpu-lots]", "8: rules: there is no rule gpu-lots (did"),
        ("to: [ops, feed]", "to: [ops, feed], rules: ['gpux-*']", "8: rules: there is no rule gpux-*"),
        ("to: [ops, feed]", "to: [ops, feed], faults: [xjd-79]", "8: faults: unknown fault xjd-79"),
        ("mail.example:587", "mail.example", "server: must be a host and a port, like mail.example:587"),
        ("healer@example.org", "healer", "sender: 'healer' is not an e-mail address"),
        ("to: [ops@example.org]", "to: ['ops@']", "to: 'ops@' is not an e-mail address"),
        ("to: [ops@example.org]", "to: ['Ops <ops@x']", "to: 'Ops <ops@x' is not an e-mail address"),
        ("{channel: feed}", "{channel: ops}", "alive: ops is not a channel of kind alertmanager"),
        ("{channel: feed}", "{channel: feed, every_s: 1}", "every_s: must be between 15 and 600"),
        ("to: [post]", "to: [ops]", "5: no route uses the channel post"),
        ("https://healer.example", "healer.example", "console_url: must be an http or https address"),
        ("alive:", "digest_h: 0\nalive:", "digest_h: must be above 0 and at most 168"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_line_and_with_a_hint(folder: Path, old: str, new: str, words: str) -> None:
    found = problems(folder, WHOLE.replace(old, new))
    assert any(words in one for one in found), found
    assert not any("xoxb-17" in one or "key=1" in one for one in found)


def test_a_message_goes_to_each_channel_once_in_its_most_urgent_manner() -> None:
    routes = (
        Route(to=("ops",), how=Manner.digest),
        Route(to=("night", "ops"), how=Manner.page, severities=(Severity.P0,)),
        Route(to=("ib",), how=Manner.channel, rules=("ib-*",), clusters=("pod?",)),
        Route(to=("x79",), how=Manner.channel, faults=("xid-79",)),
    )

    def where(severity: Severity, rule: str = "", fault: str = "") -> dict[str, Manner]:
        about = About(rule=rule, fault=fault)
        return {one.channel: one.how for one in routes_to(routes, severity, "pod1", about)}

    assert where(Severity.P0, rule="gpu-fatal") == {"ops": Manner.page, "night": Manner.page}
    assert where(Severity.P2, rule="ib-port-down") == {"ops": Manner.digest, "ib": Manner.channel}
    assert where(Severity.P3, fault="xid-79") == {"ops": Manner.digest, "x79": Manner.channel}
    everybody = routes_to(routes, Severity.P0, "pod1", About(everybody=True))
    assert {routing.channel for routing in everybody} == {"ops", "night", "ib", "x79"}
    assert {routing.how for routing in everybody} == {Manner.page}
    assert routes_to(routes[2:3], Severity.P2, "other", About(rule="ib-port-down")) == []
    assert routes_to(routes[:1], Severity.P3, "pod1", About()) == [Routing("ops", Manner.digest)]


# --- secrets -----------------------------------------------------------------------------------------------


def test_a_channel_without_its_secret_stops_the_start_with_one_sentence(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "slack"
    found = taken(folder, WHOLE.replace("/etc/healer/slack", str(file)))
    with pytest.raises(SettingsError, match=r"^HEALER_PAGERDUTY_KEY must be set: the channel night in "):
        check_channels(load_settings({}), found)
    settings = load_settings({"HEALER_PAGERDUTY_KEY": "k"})
    with pytest.raises(SettingsError, match=r"the channel ops in .* cannot be read: No such file"):
        check_channels(settings, found)
    file.write_text("\n")
    with pytest.raises(SettingsError, match="is empty"):
        check_channels(settings, found)
    file.write_text("“xoxb-1”\n")
    with pytest.raises(SettingsError, match=r"the channel ops in .* must be ASCII"):
        check_channels(settings, found)
    file.write_text("xoxb-1\n")
    check_channels(settings, found)


def test_a_new_secret_in_a_file_is_taken_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "slack"
    (channel,) = taken_of(file)
    book = ChannelBook(load_settings({}))
    with pytest.raises(DeliveryFailed, match="cannot be read"):
        book.of(channel)
    file.write_text("one")
    first = book.of(channel)
    assert book.of(channel) is first
    file.write_text("two")
    assert book.of(channel) is not first


def taken_of(file: Path) -> tuple[Channel, ...]:
    return Notifications(
        channels=(Channel(name="ops", kind=ChannelKind.slack, channel="C1", secret=str(file)),)
    ).channels
