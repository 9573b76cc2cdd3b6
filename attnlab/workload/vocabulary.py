"""What a workload may name: number formats, with rounding to them in NumPy alone; devices, storages, directions.

NumPy has no bfloat16, so its values travel in float32 arrays that hold them exactly; every array
library can then take them over without a second rounding. A new direction is one more row here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

DEVICES = ("cpu", "cuda")
#: how keys and values lie between calls, and what a reader calls it; see `attnlab.backends.storage`
STORAGES = {
    "contiguous": "contiguous keys",
    "preallocated": "preallocated cache",
    "grown": "grown cache",
    "packed": "packed batch",
    "paged": "paged cache",
}
CONTIGUOUS = "contiguous"
#: the mask and the bias of a caller's own array, which have no text
GIVEN = "given"

#: the formats by name
FORMATS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
DTYPES = tuple(FORMATS)
#: bytes one element takes, by name
ITEM_BYTES: dict[str, int] = {name: form.itemsize for name, form in FORMATS.items()}


def lower(dtype: str, computes_in: str | None) -> str | None:
    """`computes_in` where it rounds more coarsely than `dtype`, else None.

    Raises KeyError for a name that is not in `DTYPES`.
    """
    if computes_in is None:
        return None
    bits = {name: int(ml_dtypes.finfo(FORMATS[name]).nmant) for name in (dtype, computes_in)}  # type: ignore[no-untyped-call]
    return computes_in if bits[computes_in] < bits[dtype] else None


def carrier(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype that holds every value of `dtype` exactly (float32 for bfloat16).

    Raises ValueError for a name that is not in `DTYPES`.
    """
    if dtype not in FORMATS:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def round_to(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """`array` rounded to nearest, ties to even, in `dtype`; any shape, returned in `carrier(dtype)`.

    Values beyond the largest finite number become infinite, as they do in hardware. bfloat16 goes
    through float32, so a float64 input is rounded twice: off by one unit for about one value in 2^29.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # of signalling NaN
        cast = np.asarray(array).astype(carrier(dtype), copy=False)
        return cast.astype(FORMATS[dtype], copy=False).astype(cast.dtype, copy=False)


# -- what is measured of a call

#: the names of what a call may return
OUTPUT, LOG_SUM = "output", "log sum"
GRADIENTS = ("query gradient", "key gradient", "value gradient")
#: those that have a row for every query
OF_QUERIES = (OUTPUT, LOG_SUM, GRADIENTS[0])


class Direction(NamedTuple):
    """One way through attention.

    results : the names of what the call returns, in their order; one alone is returned as it is, several in a tuple.
    "log sum" is ln Z, which `attend_with_log_sum` gives: the function in `call` returns it beside the output then.
    With a gradient among them the library must differentiate, and the inputs have an output gradient: with the output
    too the forward pass is timed, without it the gradients alone. flops : of matrix products, in those of "forward".
    """

    results: tuple[str, ...]
    flops: float

    @property
    def gradients(self) -> bool:
        """Whether the library must differentiate."""
        return bool(set(self.results) & set(GRADIENTS))


#: by name. A backward pass computes five products where the forward pass computes two (Dao 2023, section 4.1)
DIRECTIONS = {
    "forward": Direction((OUTPUT,), 1.0),
    "forward_with_log_sum": Direction((OUTPUT, LOG_SUM), 1.0),
    "backward": Direction(GRADIENTS, 2.5),
    "training": Direction((OUTPUT, *GRADIENTS), 3.5),
}
