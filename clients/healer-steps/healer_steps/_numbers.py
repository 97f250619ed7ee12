"""What a program calls a number -> a plain one, as JSON has it. Imports neither numpy nor torch."""

from __future__ import annotations

import operator
import re
from typing import Any

#: healer takes no whole number beyond it.
WHOLE_MAX = 2**62
#: Of numpy, torch and JAX; and of TensorFlow, `/job:localhost/replica:0/task:0/device:CPU:0`.
_HOST = re.compile(r"(?:/.*[/:])?cpu(?::\d+)?", re.IGNORECASE)


def on_device(value: Any) -> bool:
    """It may lie in an accelerator's memory, where reading it makes the host wait. Tensors and arrays of
    torch, JAX, CuPy and their like name their device: by its `type`, by its `platform` or in words."""
    device = getattr(value, "device", None)
    if device is None:
        return False
    kind = getattr(device, "type", None) or getattr(device, "platform", device)
    return not (isinstance(kind, str) and _HOST.fullmatch(kind))


def number(value: Any) -> float:
    """Of Python, numpy, or a tensor in the host's memory. Never waits for a GPU. Raises TypeError,
    ValueError, OverflowError, or what reading it raises."""
    return value if type(value) is float else float(_plain(value))


def whole(value: Any, most: int = WHOLE_MAX) -> int:
    """As `number`, and from 0 to `most`; `3.0` is 3."""
    plain = value if type(value) is int else _plain(value)
    if plain != int(plain) or not 0 <= plain <= most:
        raise ValueError("%.40r is no whole number from 0 to %d" % (plain, most))
    return int(plain)


def _plain(value: Any) -> int | float:
    if type(value) is int:
        return value
    if on_device(value):
        raise TypeError("it lies on %s, and reading it would make the host wait" % value.device)
    if not hasattr(value, "item") and hasattr(value, "numpy"):
        value = value.numpy()  # of TensorFlow
    item = getattr(value, "item", None)
    if item is not None:  # of numpy or torch: a scalar, or an array of one
        value = item()
    if isinstance(value, bool):  # the wrong one of several values
        raise TypeError("%r is a truth value" % value)
    if hasattr(value, "__index__"):
        return operator.index(value)
    if not hasattr(value, "__float__"):  # float() would read text too
        raise TypeError("%.40r is no number" % (value,))
    return float(value)
