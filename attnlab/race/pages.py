"""Arrays that the conductor and its workers share, each between two pages of NaN.

The conductor writes the inputs into such arrays and overwrites them before each turn; a worker writes its answers into
others. A kernel that reads past the end of an array reads NaN, so its answer is visibly wrong.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PAGE = mmap.PAGESIZE
#: a number that consists of these bytes is NaN in every number format
_NAN = b"\xff"


@dataclass(frozen=True)
class Form:
    """The number format of an array, in NumPy's notation, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the array and a page of NaN behind it, in whole pages."""
        size = np.dtype(self.dtype).itemsize * int(np.prod(self.shape))
        return (size // _PAGE + 2) * _PAGE


class Pages:
    """Arrays of these forms in shared memory: new memory, or that of the process that gave its `path`."""

    def __init__(self, forms: Sequence[Form], path: str | None = None) -> None:
        self.forms, size = tuple(forms), _PAGE + sum(one.bytes for one in forms)
        if path is not None:
            self._file: Any = Path(path).open("r+b")  # noqa: SIM115 (`close` closes it)
        elif hasattr(os, "memfd_create"):  # no file is left, even if this process is killed
            self._file = os.fdopen(os.memfd_create("attnlab"), "r+b")
        else:
            self._file = tempfile.NamedTemporaryFile(prefix="attnlab-")  # noqa: SIM115
        if path is None:
            self._file.truncate(size)
        self.memory = mmap.mmap(self._file.fileno(), size)
        self.arrays: list[NDArray[Any]] = []
        start = _PAGE
        if path is None:
            self.memory[:_PAGE] = _NAN * _PAGE
        for one in forms:
            count = int(np.prod(one.shape))
            found = np.frombuffer(self.memory, one.dtype, count, start).reshape(one.shape)
            self.arrays.append(found)
            if path is None:
                end = start + found.nbytes
                self.memory[end : start + one.bytes] = _NAN * (start + one.bytes - end)
            start += one.bytes
        named = isinstance(self._file.name, str)
        own = self._file.name if named else f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        self.path: str = path or own
        if path is not None:
            self._file.close()  # the mapping stays valid

    def fill_nan(self) -> None:
        """Make every number NaN: what a worker does not write counts as no answer."""
        for array in self.arrays:
            array.view(np.uint8)[...] = 0xFF

    def close(self) -> None:
        """Release the memory; it is freed when nothing refers to its arrays any more."""
        self.arrays = []
        self._file.close()
