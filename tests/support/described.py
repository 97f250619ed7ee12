"""A script of torchrun that describes its process in lines of JSON. Arguments: their file, and its status."""

import atexit
import importlib
import json
import os
import random
import sys
from pathlib import Path

import numpy
import torch

#: A module beside this file, as scripts find theirs.
WAIT = importlib.import_module("wait")
FILE, STATUS = Path(sys.argv[1]), int(sys.argv[2])


def say(**what: object) -> None:
    with FILE.open("a") as file:
        file.write(json.dumps({"rank": int(os.environ["RANK"])} | what) + "\n")


def unregistered() -> None:
    say(unregistered=True)


if __name__ == "__main__":
    atexit.register(unregistered)
    atexit.register(say, at_exit="last")
    atexit.register(say, at_exit="first")
    atexit.unregister(unregistered)
    print("said at once", end="")
    say(
        name=Path(str(sys.modules["__main__"].__file__)).name,
        beside=Path(str(WAIT.__file__)).name,
        drawn=[random.random(), float(numpy.random.rand())],
        threads=torch.get_num_threads(),
        nvml="PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ,
        preloaded="colorsys" in sys.modules,
    )
    sys.exit(STATUS)
