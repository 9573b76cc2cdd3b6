"""Keras on PyTorch's arrays: its torch backend, which is chosen before Keras is imported."""

from __future__ import annotations

import atexit
import os
from typing import Any

from attnlab.errors import Unavailable
from attnlab.libraries.host import required
from attnlab.libraries.torch_library import Torch

#: whose arrays it computes on: it has no matrix product and no copy of its own
ARRAYS_OF = "torch"


def opened() -> Any:
    """The module keras, on its torch backend.

    Raises Unavailable where it is not installed, or was imported with another backend before.
    """
    os.environ["KERAS_BACKEND"] = "torch"
    keras = required("keras", extra="keras")
    if keras.backend.backend() != "torch":
        raise Unavailable(
            f"Keras was imported with its {keras.backend.backend()} backend; start with KERAS_BACKEND=torch"
        )
    return keras


def open_on(device: str) -> Keras:
    """Keras on `device`. Raises Unavailable where it is not installed, or PyTorch sees no CUDA device."""
    return Keras(device)


class Keras(Torch):
    """See `attnlab.backend.library.Library`."""

    name = "keras"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._keras = opened()
        # Keras moves what it is given to the device that it finds best, unless it is told which one
        scope = self._keras.device(device)
        scope.__enter__()
        atexit.register(scope.__exit__, None, None, None)  # while Keras is still there

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "keras": self._keras.__version__}
