"""The nodes and jobs of drawn recordings."""

import random

from tests.support.drawn_senders import UPTIME_S, Row, stamp


def fleet(rng: random.Random, most: int) -> dict[str, Row]:
    """4 to 40 nodes in racks, under switches, on PDUs."""
    gpus, model = rng.choice((1, 2, 4, 8, 8, 8)), rng.choice(("a100", "h100", "h100", "b200"))
    sizes = {place: rng.choice((None, 2, 4, 8, 16)) for place in ("rack", "switch", "pdu")}
    nodes: dict[str, Row] = {}
    for number in range(min(most, rng.choice((4, 6, 9, 12, 20, 32, 40)))):
        name = f"gpu{number + 1:04}"
        node = {"name": name, "state": ["IDLE"], "gpus": gpus, "gpu_model": model, "partitions": ["train"]}
        places = {place: f"{place}{number // size + 1}" for place, size in sizes.items() if size}
        nodes[name] = node | places | {"boot_id": f"{name}-b1", "boot_at": stamp(-UPTIME_S)}
    return nodes


def jobs_on(rng: random.Random, nodes: dict[str, Row]) -> dict[str, Row]:
    """Jobs on one to many nodes, some of an array, some two to a node; some nodes stay idle."""
    names, jobs, number = list(nodes), dict[str, Row](), rng.randrange(1000, 9000)
    while names:
        many = rng.choice((1, 1, 2, 4, 8, 16))
        place, names = names[:many], names[many:]
        if rng.random() < 0.25:
            continue
        gpus = nodes[place[0]]["gpus"]
        halves = [range(gpus)]
        if len(place) == 1 and gpus > 1 and rng.random() < 0.5:
            halves = [range(gpus // 2), range(gpus // 2, gpus)]
        number += 1
        for part, half in enumerate(halves):
            array = len(halves) > 1 or rng.random() < 0.2
            job: Row = {
                "id": f"{number}_{part}" if array else str(number),
                "state": "RUNNING",
                "nodes": place,
            }
            job |= {"gpus": {name: list(half) for name in place}, "restarts": 0, "partition": "train"}
            requeue = rng.choice((True, True, True, False, None))
            job |= {} if requeue is None else {"requeue": requeue}
            jobs[job["id"]] = job
        state = "ALLOCATED" if len(halves) == 1 else "MIXED"
        for name in place:
            nodes[name]["state"] = [state]
    return jobs
