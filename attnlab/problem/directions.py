"""What is measured of a call: a direction is a value, and a new one is one more here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.backends.library import Arrays, Call, Library

#: the names of what a call may return
OUTPUT, LOG_SUM = "output", "log sum"
GRADIENTS = ("query gradient", "key gradient", "value gradient")
#: those that have a row for every query
OF_QUERIES = (OUTPUT, LOG_SUM, GRADIENTS[0])


@dataclass(frozen=True)
class Direction:
    """One way through attention.

    results : the names of what the call returns, in their order; one alone is returned as it is, several in a tuple.
    "log sum" is ln Z, which `attend_with_log_sum` gives: the function in `call` returns it beside the output then.
    flops : matrix products, in those of the forward pass. gradients : whether the library must differentiate; the
    inputs have an output gradient then. call : from a library, a function of query, key and value, their arrays and
    the output's gradient (None without gradients) to the call that is timed; what it computes at once is not timed.
    """

    name: str
    results: tuple[str, ...]
    flops: float
    gradients: bool
    call: Callable[[Library, Callable[..., Any], Arrays, Any], Call]


def _forward(library: Library, attend: Callable[..., Any], arrays: Arrays, upstream: Any) -> Call:
    query, key, value = arrays
    completed = library.completed
    if completed is None:
        return lambda: attend(query, key, value)
    return lambda: completed(attend(query, key, value))


def _backward(library: Library, attend: Callable[..., Any], arrays: Arrays, upstream: Any) -> Call:
    return library.backward_call(attend, arrays, upstream)


def _training(library: Library, attend: Callable[..., Any], arrays: Arrays, upstream: Any) -> Call:
    return library.training_call(attend, arrays, upstream)


#: by name. A backward pass computes five products where the forward pass computes two (Dao 2023, section 4.1)
DIRECTIONS: dict[str, Direction] = {
    one.name: one
    for one in (
        Direction("forward", (OUTPUT,), 1.0, False, _forward),
        Direction("forward_with_log_sum", (OUTPUT, LOG_SUM), 1.0, False, _forward),
        Direction("backward", GRADIENTS, 2.5, True, _backward),
        Direction("training", (OUTPUT, *GRADIENTS), 3.5, True, _training),
    )
}
