"""The closed set of functions: what each takes, and the sentence that explains it.

`signal` is a bare signal, `number` and `truth` any expression, `window` a duration of at most 15 min, `word`
a name in quotes.
"""

from dataclasses import dataclass

#: The rings hold so much.
LONGEST_WINDOW_S = 900.0


@dataclass(frozen=True, slots=True)
class Function:
    takes: tuple[str, ...]
    text: str
    #: More arguments of the last kind are taken.
    more: bool = False


FUNCTIONS: dict[str, Function] = {
    "rate": Function(("signal", "window"), "increase of a counter per second"),
    "delta": Function(("signal", "window"), "increase of a counter, or newest less oldest value of a gauge"),
    "avg_over": Function(("signal", "window"), "mean of the known values"),
    "min_over": Function(("signal", "window"), "smallest known value"),
    "max_over": Function(("signal", "window"), "largest known value"),
    "median_over": Function(("signal", "window"), "median of the known values"),
    "changed": Function(("signal", "window"), "whether two different values are known"),
    "count_over": Function(("truth", "window"), "ticks at which the condition was known true"),
    "share": Function(("truth", "window"), "share of the known ticks at which the condition was true, 0..1"),
    "peers": Function(("number",), "median of the peers"),
    "peer_z": Function(("number",), "distance from the peers' median in robust standard deviations"),
    "rack_peers": Function(("number",), "median of what is alike in the same rack, of three nodes at least"),
    "node_peers": Function(("number",), "median of the GPUs of the same node"),
    "peers_at": Function(
        ("number", "number"), "what the peers have where the second number is as it is here: a robust line"
    ),
    "spec": Function(("word",), "what the GPU model is made for (`gpu_models.yaml`)"),
    "has": Function(("signal", "word"), "whether a bit of a bit mask is set"),
    "known": Function(("any",), "whether there is a value; never unknown itself"),
    "age": Function(("signal",), "seconds since the last value"),
    "first": Function(("any", "any"), "the first that is known: of numbers, or of conditions", more=True),
    "abs": Function(("number",), "without its sign"),
    "min": Function(("number", "number"), "the smaller one; unknown if one is", more=True),
    "max": Function(("number", "number"), "the larger one; unknown if one is", more=True),
    "any_of": Function(("truth",), "whether it is true of at least one part"),
    "count_of": Function(("truth",), "of how many parts it is known true"),
    "share_of": Function(("truth",), "of which share of the parts where it is known it is true, 0..1"),
    "sum_of": Function(("number",), "sum over the parts where it is known"),
    "max_of": Function(("number",), "largest of the parts"),
    "min_of": Function(("number",), "smallest of the parts"),
    "median_of": Function(("number",), "median of the parts"),
}

#: These look at the parts of a row: the GPUs of a node, the nodes of a job.
OVER_PARTS = frozenset({"any_of", "count_of", "share_of", "sum_of", "max_of", "min_of", "median_of"})
