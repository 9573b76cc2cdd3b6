"""A backend as a function of NumPy arrays and nothing else: what every observable and experiment measures through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from attnlab.backends.backend import Backend
from attnlab.backends.contender import in_this_process
from attnlab.problem.directions import OUTPUT
from attnlab.problem.dtypes import round_to
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload


class Attend(Protocol):
    """softmax(scale · q kᵀ) v on arrays (batch, heads, length, dim), in the number format of `q`."""

    def __call__(self, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], **rest: Any) -> NDArray[Any]:
        """The output, (batch, heads, n_q, value_dim); `rest` as for `Problem.of`: causal, scale, mask, ..."""


def black_box(
    backend: str | Backend,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
) -> Attend:
    """The backend called `backend`, with its own settings where the name has them, as a function of NumPy arrays.

    dtype : number format to compute in, the arrays' own unless given; the arrays are rounded to it.
    folders : where to look for backends beside those that come with attnlab.

    Raises ValueError for an unknown name and Unavailable where its library is missing; the function raises
    Declined where the backend cannot do what it is asked, and ValueError where shapes do not fit.
    """
    chosen = in_this_process(backend, folders) if isinstance(backend, str) else backend

    def attend(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], **rest: Any) -> NDArray[Any]:
        number_format = dtype or str(q.dtype)
        q, k, v = (round_to(array, number_format) for array in (q, k, v))
        problem = Problem.of(q, k, v, dtype=number_format, **rest)
        workload = Workload.of_problem(problem, device=device)
        return chosen.named(workload, chosen.bind(workload, problem)())[OUTPUT]

    return attend
