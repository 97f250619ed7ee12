"""The channels of `rules/notifications.yaml`, each with its adapter and its secrets."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from healer.adapters.notify.alertmanager import Alertmanager
from healer.adapters.notify.channel import Teller
from healer.adapters.notify.dingtalk import DingTalkBot
from healer.adapters.notify.feishu import FeishuBot
from healer.adapters.notify.mail import Mail
from healer.adapters.notify.pagerduty import EVENTS_URL, PagerDuty
from healer.adapters.notify.slack import API, SlackChannel
from healer.adapters.notify.wecom import WeComBot
from healer.model import Channel, ChannelKind, Notifications
from healer.ports.outbound import DeliveryFailed
from healer.settings import SECRET_OF, URL_OF, Settings, SettingsError

#: Kinds that work without a secret; e-mail needs one where it logs in.
_MAY_LACK = (ChannelKind.feishu, ChannelKind.alertmanager, ChannelKind.email)


class _Known(msgspec.Struct, frozen=True):
    """A channel with what its references led to."""

    channel: Channel
    url: str
    secret: str | None
    #: A press can come back: Slack's signing secret is set.
    buttons: bool = False


class ChannelBook:
    """Adapters by channel, kept as long as channel and secrets are the same: a file with a new secret is
    taken at the next message, without a restart."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[str, tuple[_Known, Teller]] = {}

    def of(self, channel: Channel) -> Teller:
        """DeliveryFailed where a secret is not there: it is tried again, and said."""
        try:
            known = known_of(self._settings, channel)
        except SettingsError as error:
            raise DeliveryFailed(str(error).rstrip(".")) from None
        made = self._made.get(channel.name)
        if made is None or made[0] != known:
            made = self._made[channel.name] = (known, _MAKERS[channel.kind](known))
        return made[1]


def check_channels(settings: Settings, notifications: Notifications) -> None:
    """Every channel has its secrets. SettingsError, in one sentence."""
    for channel in notifications.channels:
        known_of(settings, channel)


def known_of(settings: Settings, channel: Channel) -> _Known:
    url = channel.url
    if channel.kind in URL_OF:
        url = _told(settings, channel, channel.url or URL_OF[channel.kind][0]) or ""
    names = SECRET_OF.get(channel.kind, ())
    secret = None
    if names:
        may_lack = channel.kind in _MAY_LACK and not channel.secret and not channel.user
        secret = _told(settings, channel, channel.secret or names[0], may_lack=may_lack)
    return _Known(channel, url, secret, buttons=settings.slack_signing_secret is not None)


def _told(settings: Settings, channel: Channel, where: str, *, may_lack: bool = False) -> str | None:
    """What stands in the setting or the file."""
    whose = f"the channel {channel.name} of rules/notifications.yaml"
    if not where.startswith("/"):
        value: str | None = getattr(settings, where.removeprefix("HEALER_").lower())
        if value is None and not may_lack:
            raise SettingsError(f"{where} must be set: {whose} needs it.")
        return value
    try:
        text = Path(where).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SettingsError(f"{where}, the secret of {whose}, cannot be read: {why}.") from None
    if not text:
        raise SettingsError(f"{where}, the secret of {whose}, is empty.")
    return text


def _slack(known: _Known) -> Teller:
    return SlackChannel(
        known.secret or "", known.channel.channel, url=known.url or API, buttons=known.buttons
    )


def _pagerduty(known: _Known) -> Teller:
    return PagerDuty(known.secret or "", url=known.url or EVENTS_URL)


def _mail(known: _Known) -> Teller:
    channel = known.channel
    host, _, port = channel.server.rpartition(":")
    return Mail(
        (host, int(port)),
        channel.sender,
        channel.to,
        tls=channel.tls,
        user=channel.user,
        password=known.secret,
    )


_MAKERS: dict[ChannelKind, Callable[[_Known], Teller]] = {
    ChannelKind.slack: _slack,
    ChannelKind.wecom: lambda known: WeComBot(known.url, known.channel.mobiles),
    ChannelKind.dingtalk: lambda known: DingTalkBot(known.url, known.secret or "", known.channel.mobiles),
    ChannelKind.feishu: lambda known: FeishuBot(known.url, known.secret),
    ChannelKind.pagerduty: _pagerduty,
    ChannelKind.alertmanager: lambda known: Alertmanager(known.url, known.secret),
    ChannelKind.email: _mail,
}
