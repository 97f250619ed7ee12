"""Blows at a host of tests/support/ha.py. Each returns what repairs it."""

import os
import random
import signal
from collections.abc import Callable
from functools import partial

from tests.support.ha import Host, Site, ip

Repair = Callable[[], None]
Blow = Callable[[Site, Host, random.Random], Repair]
#: No interface has it: what is sent there vanishes without a sign.
_NOWHERE = "02:00:00:00:00:99"


def lose_host(site: Site, host: Host, _: random.Random) -> Repair:
    """Power is lost."""
    names = tuple(host.running)
    host.kill()
    host.signal(signal.SIGKILL)

    def repair() -> None:
        for name in names:
            site.start_again(host, name)

    return repair


def lose_database(site: Site, host: Host, _: random.Random) -> Repair:
    """Patroni and its server at once."""
    host.kill("patroni")
    return partial(site.start_again, host, "patroni")


def crash_server(_site: Site, host: Host, _: random.Random) -> Repair:
    """PostgreSQL alone; Patroni lives."""
    host.kill_server()
    return lambda: None


def lose_program(site: Site, host: Host, chance: random.Random) -> Repair:
    name = chance.choice(sorted(host.running))
    host.kill(name)
    return partial(site.start_again, host, name)


def freeze(_site: Site, host: Host, _: random.Random) -> Repair:
    """As a virtual machine that is paused: it goes on in the belief that no time went by."""
    host.signal(signal.SIGSTOP)
    return partial(host.signal, signal.SIGCONT)


def cut_off(_site: Site, host: Host, _: random.Random) -> Repair:
    """It reaches no one, and works on."""
    ip("link", "set", f"{host.name}-a", "down")
    return partial(ip, "link", "set", f"{host.name}-a", "up")


def _silence(pairs: list[tuple[Host, Host]]) -> Repair:
    """Nothing of the first ones reaches the second ones. Clients reach all of them."""
    for source, target in pairs:
        words = ("replace", target.address, "lladdr", _NOWHERE, "nud", "permanent", "dev", "eth0")
        ip("-n", source.name, "neigh", *words)

    def repair() -> None:
        for source, target in pairs:
            ip("-n", source.name, "neigh", "delete", target.address, "dev", "eth0")

    return repair


def make_deaf(site: Site, host: Host, _: random.Random) -> Repair:
    return _silence([(other, host) for other in site.hosts if other is not host])


def make_mute(site: Site, host: Host, _: random.Random) -> Repair:
    return _silence([(host, other) for other in site.hosts if other is not host])


def split(site: Site, host: Host, chance: random.Random) -> Repair:
    """Two hosts do not reach each other; both reach the third."""
    other = chance.choice([other for other in site.hosts if other is not host])
    return _silence([(host, other), (other, host)])


def step_clock(_site: Site, host: Host, chance: random.Random) -> Repair:
    host.clock.step(chance.choice([-3600, -300, -30, 30, 300, 3600]))
    return partial(host.clock.step, 0)


def fill_disk(_site: Site, host: Host, _: random.Random) -> Repair:
    host.disk.fill()
    return host.disk.empty


def slow_disk(_site: Site, host: Host, _: random.Random) -> Repair:
    host.disk.slow(10)
    return partial(host.disk.slow, 0)


def restart_broker(site: Site, _host: Host, _: random.Random) -> Repair:
    """The one that is in use; it is empty afterwards."""
    host = site.broker()
    host.kill("redis")
    site.start_again(host, "redis")
    return lambda: None


def lose_broker(site: Site, _host: Host, _: random.Random) -> Repair:
    host = site.broker()
    host.kill("redis")
    return partial(site.start_again, host, "redis")


def freeze_brokers(site: Site, _host: Host, _: random.Random) -> Repair:
    """Both of them: nothing is left to switch to."""
    groups = [host.running["redis"].pid for host in site.hosts[:2]]

    def send(number: int) -> None:
        for group in groups:
            os.killpg(group, number)

    send(signal.SIGSTOP)
    return partial(send, signal.SIGCONT)


BLOWS: dict[str, Blow] = {
    "host lost": lose_host,
    "database lost": lose_database,
    "server crashed": crash_server,
    "program lost": lose_program,
    "frozen": freeze,
    "cut off": cut_off,
    "deaf": make_deaf,
    "mute": make_mute,
    "split": split,
    "clock stepped": step_clock,
    "disk full": fill_disk,
    "disk slow": slow_disk,
    "broker restarted": restart_broker,
    "broker lost": lose_broker,
    "brokers frozen": freeze_brokers,
}
#: The third host has etcd alone.
OF_DATABASE_HOSTS = ("database lost", "server crashed", "broker restarted", "broker lost", "brokers frozen")
