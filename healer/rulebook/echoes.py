"""Problems that only follow from another: the entry with the mistake defines no name, so each place with that
name would be wrong as well, in a file that may come first, with a hint that misleads."""

from collections.abc import Iterator, Mapping, Sequence

from healer.rulebook.source import Problem
from healer.text import Said

#: Files by the beginning of their names, each before those that use its names.
_ORDER = (
    "xid", "sxid", "kernel_lines", "signals", "gpu_models", "validation/", "playbooks/", "detection/",
    "escalations",
)  # fmt: skip
#: Of a mistake there, no name in the files that follow is known.
_OF_ALL = ("signals", "gpu_models")
_FAULTS = ("xid", "sxid", "kernel_lines", *_OF_ALL, "detection/", "escalations")
#: Sentence that a name is unknown -> its argument with the name, and the files that could define it.
_UNKNOWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "rulebook.no_fault_that_healer": ("fault", _FAULTS),
    "rulebook.there_no_gpu_model": ("glob", ("gpu_models",)),
    "rulebook.models_no_gpu_model": ("glob", ("gpu_models",)),
    "rulebook.no_gpu_model_tells": ("name", ("gpu_models",)),
    "expressions.unknown_spec": ("text", ("gpu_models",)),
    "expressions.unknown_signal": ("name", ("signals",)),
    "rulebook.there_no_signal": ("name", ("signals",)),
    "rulebook.there_no_script": ("name", ("validation/",)),
    "rulebook.there_no_depth": ("name", ("validation/",)),
    "rulebook.fits_there_no_depth": ("name", ("validation/",)),
    "rulebook.there_no_playbook": ("name", ("playbooks/",)),
    "playbooks.use_unknown": ("name", ("playbooks/",)),
    "playbooks.use_wrong": ("name", ("playbooks/",)),
}


def without_echoes(problems: Sequence[Problem], read: Mapping[str, bytes]) -> list[Problem]:
    """The problems without those that another one explains. `read`: the files, as far as they were read."""
    unknown = {id(problem): list(_unknown(problem.text)) for problem in problems}

    def explains(cause: Problem, name: str, files: tuple[str, ...], file: str) -> bool:
        if not cause.file.startswith(files):
            return False
        if unknown[id(cause)] and _rank(cause.file) >= _rank(file):
            return False  # it may be one itself
        return cause.file.startswith(_OF_ALL) or _may_define(cause.file, read.get(cause.file), name)

    return [
        problem
        for problem in problems
        if not any(
            explains(cause, name, files, problem.file)
            for name, files in unknown[id(problem)]
            for cause in problems
            if cause is not problem
        )
    ]


def _unknown(text: object) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The names that a sentence, or a part of it, says are unknown, and the files that could define them."""
    if not isinstance(text, Said):
        return
    if text.key in _UNKNOWN:
        argument, files = _UNKNOWN[text.key]
        yield str(text.args[argument]), files
    for part in text.args.values():
        yield from _unknown(part)


def _may_define(file: str, raw: bytes | None, name: str) -> bool:
    """A code's name is made from its number, and a glob may mean any."""
    bare = name.removeprefix("s").removeprefix("xid-")
    return raw is None or any(sign in name for sign in "*?[") or bare in file or bare.encode() in raw


def _rank(file: str) -> int:
    return next((rank for rank, head in enumerate(_ORDER) if file.startswith(head)), len(_ORDER))
