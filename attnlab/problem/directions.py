"""What is measured of a call: a direction is a value, and a new one is one more here."""

from __future__ import annotations

from typing import NamedTuple

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
