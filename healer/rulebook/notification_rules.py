"""Loads and checks `rules/notifications.yaml`: channels, routes, the dead man's switch. Format:
docs/notifications.md."""

import re
from collections.abc import Sequence
from email.message import EmailMessage
from fnmatch import fnmatchcase

from healer.model import Channel, ChannelKind, Manner, Notifications, Route
from healer.model.vocabulary import did_you_mean
from healer.rulebook.rule_checks import check_globs, check_known_fault, check_name, is_glob
from healer.rulebook.source import Source, Where
from healer.settings import SECRET_OF, URL_OF
from healer.text import joined, say

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
#: They wake someone or keep a state, so a digest is of no use to them.
_NO_DIGEST = (ChannelKind.pagerduty, ChannelKind.alertmanager)


def read_notifications(
    source: Source, routable: tuple[Sequence[str], Sequence[str]] | None = None
) -> Notifications:
    """Without the file, or with an empty one, there are no channels. Problems go to the source's list.
    `routable`: the names of rules, and faults and globs of faults, that routes may name; None: any."""
    found = source.whole(Notifications)
    names: set[str] = set()
    for index, channel in enumerate(found.channels):
        _check_channel(source.at("channels", index), channel, names)
        names.add(channel.name)
    for index, route in enumerate(found.routes):
        _check_route(source.at("routes", index), route, found)
        if routable is not None:
            _check_names(source.at("routes", index), route, *routable)
    _check_people(source, found)
    _check_alive(source, found)
    _check_reached(source, found)
    if not 0 < found.digest_h <= _DIGEST_MAX_H:
        source.at().wrong("digest_h", say("rulebook.above_at_most_week", most=_DIGEST_MAX_H))
    if found.console_url and not _is_web(found.console_url):
        source.at().wrong("console_url", say("rulebook.an_http_or_https"))
    return found


def _check_channel(at: Where, channel: Channel, names: set[str]) -> None:
    check_name(at, channel.name, names)
    needed, allowed = _FIELDS[channel.kind]
    written = at.source.data["channels"][at.path[1]]
    for field in needed:
        if not getattr(channel, field):
            at.problem(say("rulebook.channel_needs", name=channel.name, kind=channel.kind, field=field))
    for field in written:
        if field not in ("name", "kind", "language", *needed, *allowed):
            fields = ", ".join((*needed, *allowed, "language"))
            at.at(field).problem(
                say("rulebook.kind_has_no", kind=channel.kind, field=field),
                say("rulebook.it_has_fields", fields=fields),
            )
    if channel.secret:
        _check_secret(at.at("secret"), channel.secret, SECRET_OF.get(channel.kind, ()))
    if channel.kind in URL_OF and channel.url:
        _check_secret(at.at("url"), channel.url, URL_OF[channel.kind])
    elif channel.url and not _is_web(channel.url):
        at.wrong("url", say("rulebook.an_http_or_https"))
    if channel.kind is ChannelKind.email:
        _check_mail(at, channel)


def _check_secret(at: Where, text: str, settings: Sequence[str]) -> None:
    """A name or a path: a secret itself is never part of the rules, nor of messages about them."""
    if text in settings or text.startswith("/"):
        return
    hint = did_you_mean(text, settings) if text.startswith("HEALER_") else say("rulebook.put_into_setting_or")
    words = joined((*settings, say("rulebook.path_of_file")), "or")
    at.problem(say("rulebook.never_secret_itself", at=at.path[-1], words=words), hint)


def _check_mail(at: Where, channel: Channel) -> None:
    host, _, port = channel.server.rpartition(":")
    if channel.server and not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        at.wrong("server", say("rulebook.host_port_like_mail"))
    if channel.tls not in _TLS:
        at.wrong("tls", say("rulebook.not_one_its_words", value=channel.tls), ", ".join(_TLS))
    for field, addresses in (("sender", (channel.sender,)), ("to", channel.to)):
        for address in addresses:
            if address and not _is_mail_address(address):
                at.at(field).problem(say("rulebook.no_address_e_mail", field=field, address=address))


def _is_mail_address(text: str) -> bool:
    """One address, with or without a name, that a mail can be sent to."""
    mail = EmailMessage()
    try:
        mail["To"] = text
    except (ValueError, IndexError, AttributeError):  # as the library fails at some that are cut short
        return False
    found = [(address.username, address.domain) for address in mail["To"].addresses]
    return not mail["To"].defects and len(found) == 1 and all(found[0])


def _check_route(at: Where, route: Route, found: Notifications) -> None:
    names = [channel.name for channel in found.channels]
    if not route.to:
        at.wrong("to", say("rulebook.list_empty"))
    for number, name in enumerate(route.to):
        channel = found.channel(name)
        if channel is None:
            hint = did_you_mean(name, names) or say("rulebook.channels_stand_under_channels")
            at.at("to", number).problem(say("rulebook.there_no_channel", name=name), hint)
        elif route.how is Manner.digest and channel.kind in _NO_DIGEST:
            at.at("how").problem(
                say("rulebook.which_takes_no_digest", name=name, kind=channel.kind),
                say("rulebook.how_page_or_channel"),
            )
    for field in ("clusters", "rules", "faults"):
        check_globs(at, field, getattr(route, field))


def _check_names(at: Where, route: Route, rules: Sequence[str], faults: Sequence[str]) -> None:
    """A route of a rule or fault that does not exist notifies no one."""
    for number, name in enumerate(route.rules):
        if is_glob(name) and not any(fnmatchcase(rule, name) for rule in rules):
            text = say("rulebook.there_no_rule", name=name)
            at.at("rules", number).problem(text, did_you_mean(name, rules))
    for number, fault in enumerate(route.faults):
        if is_glob(fault) and not any(fnmatchcase(fault, glob) for glob in faults):
            check_known_fault(at.at("faults", number), fault, faults)


def _check_people(source: Source, found: Notifications) -> None:
    seen: set[str] = set()
    for index, person in enumerate(found.people):
        at = source.at("people", index)
        if not re.fullmatch(r"[UW][A-Z0-9]{2,30}", person.slack):
            hint = say("rulebook.profile_more_copy_member")
            at.wrong("slack", say("rulebook.no_member_id_like", slack=person.slack), hint)
        if person.slack in seen:
            at.wrong("slack", say("rulebook.twice", name=person.slack))
        if not person.name.strip() or not person.name.isprintable():
            at.wrong("name", say("rulebook.name_that_healer_knows"))
        seen.add(person.slack)


def _check_alive(source: Source, found: Notifications) -> None:
    if found.alive is None:
        return
    channel = found.channel(found.alive.channel)
    if channel is None or channel.kind is not ChannelKind.alertmanager:
        text = say("rulebook.alive_no_channel_kind", channel=found.alive.channel)
        source.at("alive", "channel").problem(text, say("rulebook.only_an_alertmanager_misses"))
    source.at("alive").check_between("every_s", found.alive.every_s, _ALIVE_MIN_S, _ALIVE_MAX_S)


def _check_reached(source: Source, found: Notifications) -> None:
    """A channel without a route is a mistake: someone waits for its messages."""
    reached = {name for route in found.routes for name in route.to}
    if found.alive is not None:
        reached.add(found.alive.channel)
    for index, channel in enumerate(found.channels):
        if channel.name not in reached:
            text = say("rulebook.no_route_leads_channel", name=channel.name)
            source.at("channels", index, "name").problem(text, say("rulebook.add_route_s"))


def _is_web(text: str) -> bool:
    scheme, _, rest = text.partition("://")
    return scheme in ("http", "https") and bool(rest) and "@" not in rest
