"""Bodies of columnar metrics as they are read: their form, their bounds, one entry after the other."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from healer.signals.rejects import BadBody, BadEntry, Rejects, check_marks
from healer.signals.wire import Gpu

#: GPUs of one node, NVLinks of one GPU, names of one body: far above what any machine has.
GPUS_MAX = 64
LINKS_MAX = 64
NAMES_MAX = 4096
#: Values of one entry, known and unknown names together.
PLACES_MAX = 50_000
#: Entries of one request; values, objects and lists in it.
ENTRIES_MAX = 20_000
VALUES_MAX, OBJECTS_MAX, LISTS_MAX = 2_000_000, 500_000, 1_000_000
_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]
_Number = float | None
_Word = float | bool | Annotated[str, msgspec.Meta(max_length=100)] | None


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """One node's samples, all of them numbers: the form that is decoded fast.

    `inventory` are facts about the node by the names of `healer.model.FACTS`; other names are passed over.
    """

    node: _Name
    cluster: _Name | None = None
    time: str | None = None
    gpu: dict[_Name, list[_Number]] = {}
    host: dict[_Name, _Number] = {}
    ports: dict[_Name, dict[_Name, _Number]] = {}
    links: dict[_Name, list[list[_Number]]] = {}
    gpus: list[Gpu] = []
    inventory: dict[_Name, _Text] = {}


class Wordy(msgspec.Struct, forbid_unknown_fields=True):
    """The same with words among the values, such as `"Completed"`."""

    node: _Name
    cluster: _Name | None = None
    time: str | None = None
    gpu: dict[_Name, list[_Word]] = {}
    host: dict[_Name, _Word] = {}
    ports: dict[_Name, dict[_Name, _Word]] = {}
    links: dict[_Name, list[list[_Word]]] = {}
    gpus: list[Gpu] = []
    inventory: dict[_Name, _Text] = {}


_fast = msgspec.json.Decoder(list[Body] | Body)
_list = msgspec.json.Decoder(list[msgspec.Raw])
_one = msgspec.json.Decoder(Wordy)


def bodies(raw: bytes, rejects: Rejects) -> Iterator[tuple[int, Body | Wordy]]:
    """(index, body) of each entry that has the right form; the others go to `rejects`."""
    check_marks(raw, values=(b",", VALUES_MAX), objects=(b"{", OBJECTS_MAX), lists=(b"[", LISTS_MAX))
    try:
        body = _fast.decode(raw)
        bodies = body if isinstance(body, list) else [body]
        _check_entries(len(bodies))
        yield from enumerate(bodies)
        return
    except msgspec.ValidationError:
        pass  # one by one: one bad entry never loses the good ones
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"the body is not JSON: {error}") from None
    for index, item in enumerate(_items(raw)):
        try:
            yield index, _one.decode(item)
        except msgspec.ValidationError as error:
            rejects.add(index, error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadBody(f"the body is not JSON: {error}") from None


def _items(raw: bytes) -> Sequence[msgspec.Raw | bytes]:
    """The entries as they stand in the body: an entry is read, judged and forgotten before the next one."""
    begin = raw.lstrip(b" \t\r\n")[:1]
    if begin == b"{":
        return [raw]
    if begin != b"[":
        raise BadBody("the body: expected an object with `node` and `gpu` or `host`, or a list of them")
    try:
        items = _list.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"the body is not JSON: {error}") from None
    _check_entries(len(items))
    return items


def _check_entries(count: int) -> None:
    if count > ENTRIES_MAX:
        raise BadBody(f"the body: a list of {count} entries, at most {ENTRIES_MAX} are taken")


def check_sizes(body: Body | Wordy) -> None:
    names = (
        len(body.inventory)
        + len(body.gpu)
        + len(body.host)
        + len(body.links)
        + sum(map(len, body.ports.values()))
    )
    if names > NAMES_MAX:
        raise BadEntry(f"{names} names, at most {NAMES_MAX} are taken")
    for field, lists in (("gpu", body.gpu), ("links", body.links)):
        for name, values in lists.items():
            if len(values) > GPUS_MAX:
                raise BadEntry(f"{field}: {name} has {len(values)} GPUs, at most {GPUS_MAX} are taken")
    for name, gpus in body.links.items():
        if any(len(links) > LINKS_MAX for links in gpus):
            raise BadEntry(f"links: {name} has more than {LINKS_MAX} links on a GPU")
    places = (
        sum(map(len, body.gpu.values()))
        + sum(len(links) for gpus in body.links.values() for links in gpus)
        + len(body.host)
        + sum(map(len, body.ports.values()))
    )
    if places > PLACES_MAX:
        raise BadEntry(f"{places} values, at most {PLACES_MAX} are taken in one entry")
