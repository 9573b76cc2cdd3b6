"""What a workload may name, number formats, devices, storages, directions; and how a field of it is declared.

NumPy has no bfloat16, so its values travel in float32 arrays that hold them exactly; every array
library can then take them over without a second rounding. A new direction is one more row here.

A field of a workload is declared once, with all that commands, plan files, pytest, labels and tables need.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


#: what a seed may be at most: what stored tables hold
MOST_SEED = 2**63 - 1
#: what seconds, hours and numbers of things may be at most: longer than anybody waits, within what clocks can wait
MOST = 10**6


@dataclass(frozen=True)
class Declared:
    """What is declared of a field beside its name and its default.

    help : one line for a person, which names are added to. read : from text to the value, by default that of its type.
    brief : its part of a label, with the value in {}, or a function from the value to that; empty for nothing, and None
    for the name of a flag, the value of a field that has names, and otherwise ``name=value``. always : whether a label
    says it at its default too. several : the plural under which a grid takes many values of it. also : a second name of
    its option. names : the values that it may have, where they are names. most : what a size may be at most. group :
    the heading, on a page of options, of its option and of those of the fields after it that name none.
    """

    help: str
    read: Callable[[str], Any] | None = None
    brief: str | Callable[[Any], str] | None = None
    always: bool = False
    several: str | None = None
    also: str | None = None
    names: tuple[str, ...] = ()
    most: int | None = None
    group: str = ""


def declared(default: Any, help: str, names: Iterable[str] = (), **rest: Any) -> Any:
    """A dataclass field with its declaration."""
    told = Declared(help, names=tuple(names), **rest)
    return dataclasses.field(default=default, metadata={"declared": told})


def declaration(field: dataclasses.Field[Any]) -> Declared:
    """What was declared of `field`."""
    found: Declared = field.metadata["declared"]
    return found


def in_label(field: dataclasses.Field[Any], value: Any) -> str:
    """What a label says of a `value` of `field`; nothing at its default, but for what is said always."""
    told = declaration(field)
    if value == field.default and not told.always:
        return ""
    if told.brief is None:
        return field.name if value is True else value if told.names else f"{field.name}={spoken(value)}"
    return told.brief.format(value) if isinstance(told.brief, str) else told.brief(value)


def option(name: str) -> str:
    """The option of the command line that stands for the field `name`: ``--head-dim``."""
    return "--" + name.replace("_", "-")


def within(name: str, value: float, most: int = MOST) -> float:
    """`value`, where it is above 0 and at most `most`. Raises ValueError otherwise."""
    if not 0 < value <= most:  # nor nan
        raise ValueError(f"{name} must be above 0 and at most {most:,}, got {value}")
    return value


def split_names(text: str) -> list[str]:
    """Names between commas, those inside brackets aside: ``a,b[threads=1,X=2]`` is two names.

    Raises ValueError for an empty name.
    """
    names = [name.strip() for name in re.split(r",(?![^\[\]]*\])", text)]
    if not all(names):
        raise ValueError(f"a list of names is separated by single commas, got {text!r}")
    return names


def spoken(value: Any) -> str:
    """A value as its option's text: ``true``, ``256,0``, ``0.125``."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
