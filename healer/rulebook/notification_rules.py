"""Loads and checks `rules/notifications.yaml`: channels, routes, the dead man's switch. Format:
docs/notifications.md."""

import re
from collections.abc import Sequence

from healer.model import Channel, ChannelKind, Manner, Notifications, Route
from healer.model.vocabulary import did_you_mean
from healer.rulebook.rule_checks import check_globs, check_name
from healer.rulebook.source import Source, Where
from healer.settings import SECRET_OF, URL_OF

#: Longest time that a digest gathers, and that the dead man's switch may stay silent.
_DIGEST_MAX_H = 24 * 7
_ALIVE_MIN_S, _ALIVE_MAX_S = 15, 600
_TLS = ("starttls", "tls", "none")
#: Fields besides name and kind: the required ones of a kind, then the optional ones.
_FIELDS: dict[ChannelKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    ChannelKind.slack: (("channel",), ("secret", "url")),
    ChannelKind.wecom: ((), ("url", "mobiles")),
    ChannelKind.dingtalk: ((), ("url", "secret", "mobiles")),
    ChannelKind.feishu: ((), ("url", "secret")),
    ChannelKind.pagerduty: ((), ("secret", "url")),
    ChannelKind.alertmanager: (("url",), ("secret",)),
    ChannelKind.email: (("server", "sender", "to"), ("tls", "user", "secret")),
}
#: They wake somebody or keep a state: a list of what was is nothing to them.
_NO_DIGEST = (ChannelKind.pagerduty, ChannelKind.alertmanager)


def read_notifications(source: Source) -> Notifications:
    """Without the file, or with an empty one, there are no channels. What is wrong goes to its problems."""
    if source.data is None:
        return Notifications()
    found = source.convert((), source.data, Notifications)
    if found is None:
        return Notifications()
    names: set[str] = set()
    for index, channel in enumerate(found.channels):
        _check_channel(source.at("channels", index), channel, names)
        names.add(channel.name)
    for index, route in enumerate(found.routes):
        _check_route(source.at("routes", index), route, found)
    _check_people(source, found)
    _check_alive(source, found)
    _check_reached(source, found)
    if not 0 < found.digest_h <= _DIGEST_MAX_H:
        source.at().wrong("digest_h", f"has to be above 0, and at most {_DIGEST_MAX_H} (7 days)")
    if found.console_url and not _is_web(found.console_url):
        source.at().wrong("console_url", "has to be an http or https address")
    return found


def _check_channel(at: Where, channel: Channel, names: set[str]) -> None:
    check_name(at, channel.name, names, "channel")
    needed, allowed = _FIELDS[channel.kind]
    written = at.source.data["channels"][at.path[1]]
    for field in needed:
        if not getattr(channel, field):
            at.problem(f"the channel {channel.name} ({channel.kind}) needs {field}")
    for field in written:
        if field not in ("name", "kind", *needed, *allowed):
            fields = ", ".join((*needed, *allowed))
            at.at(field).problem(f"{channel.kind} has no {field}", f"it has {fields}")
    if channel.secret:
        _check_secret(at.at("secret"), channel.secret, SECRET_OF.get(channel.kind, ()))
    if channel.kind in URL_OF and channel.url:
        _check_secret(at.at("url"), channel.url, URL_OF[channel.kind])
    elif channel.url and not _is_web(channel.url):
        at.wrong("url", "has to be an http or https address")
    if channel.kind is ChannelKind.email:
        _check_mail(at, channel)


def _check_secret(at: Where, text: str, settings: Sequence[str]) -> None:
    """A name or a path: a secret itself is never part of the rules, nor of messages about them."""
    if text in settings or text.startswith("/"):
        return
    hint = (
        did_you_mean(text, settings)
        if text.startswith("HEALER_")
        else "put it into a setting or a file, and out of this one"
    )
    words = " or ".join((*settings, "the path of a file"))
    at.problem(f"{at.path[-1]}: has to be {words}, never the secret itself", hint)


def _check_mail(at: Where, channel: Channel) -> None:
    host, _, port = channel.server.rpartition(":")
    if channel.server and not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        at.wrong("server", "has to be a host and a port, like mail.example:587")
    if channel.tls not in _TLS:
        at.wrong("tls", f"{channel.tls!r} is not one of its words", ", ".join(_TLS))
    for field, addresses in (("sender", (channel.sender,)), ("to", channel.to)):
        for address in addresses:
            if address and ("@" not in address or any(letter in address for letter in "\r\n,")):
                at.at(field).problem(f"{field}: {address!r} is no address of e-mail")


def _check_route(at: Where, route: Route, found: Notifications) -> None:
    names = [channel.name for channel in found.channels]
    if not route.to:
        at.wrong("to", "the list is empty")
    for number, name in enumerate(route.to):
        channel = found.channel(name)
        if channel is None:
            hint = did_you_mean(name, names) or "channels stand under `channels`"
            at.at("to", number).problem(f"there is no channel {name}", hint)
        elif route.how is Manner.digest and channel.kind in _NO_DIGEST:
            at.at("how").problem(f"{name} is {channel.kind}, which takes no digest", "how: page or channel")
    for field in ("clusters", "rules", "faults"):
        check_globs(at, field, getattr(route, field))


def _check_people(source: Source, found: Notifications) -> None:
    seen: set[str] = set()
    for index, person in enumerate(found.people):
        at = source.at("people", index)
        if not re.fullmatch(r"[UW][A-Z0-9]{2,30}", person.slack):
            hint = "Profile, More, Copy member ID"
            at.wrong("slack", f"{person.slack!r} is no member id like U012ABCDEF", hint)
        if person.slack in seen:
            at.wrong("slack", f"{person.slack} stands here twice")
        if not person.name.strip() or not person.name.isprintable():
            at.wrong("name", "has to be the name that healer knows the person by")
        seen.add(person.slack)


def _check_alive(source: Source, found: Notifications) -> None:
    if found.alive is None:
        return
    channel = found.channel(found.alive.channel)
    if channel is None or channel.kind is not ChannelKind.alertmanager:
        text = f"alive: {found.alive.channel} is no channel of kind alertmanager"
        source.at("alive", "channel").problem(text, "only an Alertmanager misses what does not come")
    if not _ALIVE_MIN_S <= found.alive.every_s <= _ALIVE_MAX_S:
        source.at("alive").wrong("every_s", f"has to be from {_ALIVE_MIN_S} to {_ALIVE_MAX_S}")


def _check_reached(source: Source, found: Notifications) -> None:
    """A channel without a route is a mistake: someone waits for its messages."""
    reached = {name for route in found.routes for name in route.to}
    if found.alive is not None:
        reached.add(found.alive.channel)
    for index, channel in enumerate(found.channels):
        if channel.name not in reached:
            text = f"no route leads to the channel {channel.name}"
            source.at("channels", index, "name").problem(text, "add it to a route's `to`")


def _is_web(text: str) -> bool:
    scheme, _, rest = text.partition("://")
    return scheme in ("http", "https") and bool(rest) and "@" not in rest
