"""Simulates PyTorch on a node, over NumPy: what `rules/validation/answers.sh` asks of it.

`TORCH_GPUS` GPUs of one model. `TORCH_WRONG` as `HOW:GPU` plants a fault in that GPU's products: `exact`
gives a wrong element each time, `flaky` at every second product, `fractions` where numbers are rounded.
"""

import hashlib
import os
import threading
from typing import Any

import numpy as np

float64, float32, int32 = np.float64, np.float32, np.int32
float16 = bfloat16 = np.float32  # whole numbers below 256 are exact in both
_here = threading.local()
_how, _, _gpu = os.environ.get("TORCH_WRONG", ":").partition(":")
_known: dict[str, np.ndarray] = {}
_made: dict[str, int] = {}
_lock = threading.Lock()


class Tensor(np.ndarray):
    def to(self, kind: Any) -> "Tensor":
        return self.astype(kind).view(Tensor)

    def cpu(self) -> "Tensor":
        return self

    def numpy(self) -> np.ndarray:
        return np.asarray(self)


def arange(count: int, device: str) -> Tensor:
    _here.gpu = device.partition(":")[2]
    return np.arange(count).view(Tensor)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    name = hashlib.sha256(a.tobytes() + b.tobytes()).hexdigest()
    with _lock:  # each product is made once: the GPUs are alike
        if name not in _known:
            _known[name] = np.asarray(a) @ np.asarray(b)
        _made[_here.gpu] = _made.get(_here.gpu, 0) + 1
    made = _known[name].copy().view(Tensor)
    rounded = bool(np.any(np.asarray(a) % 1))
    wrong = {"exact": not rounded, "flaky": _made[_here.gpu] % 2 == 0, "fractions": rounded}
    if _here.gpu == _gpu and wrong.get(_how, False):
        made[7, 11] += 1
    return made


def cumsum(steps: Tensor, axis: int) -> Tensor:
    return np.cumsum(np.asarray(steps), axis).view(Tensor)


class cuda:
    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return int(os.environ.get("TORCH_GPUS", "2"))

    @staticmethod
    def get_device_name(_: int) -> str:
        return "NVIDIA H100 80GB HBM3"


class backends:
    class cuda:
        class matmul:
            allow_tf32 = False
