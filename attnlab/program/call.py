"""Any backend, and its gradients, on NumPy arrays, in this process: for tests, notebooks and one-off questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from attnlab.contract.backend import checked_gradient, checked_output
from attnlab.contract.discovery import load
from attnlab.contract.workload import Workload
from attnlab.theory.exact_gradients import checked_upstream


def attend(
    name: str,
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    causal: bool = False,
    scale: float | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
) -> NDArray[Any]:
    """softmax(scale · q kᵀ) v by the backend `name`.

    q: (batch, heads, n_q, head_dim), k: (batch, heads, n_k, head_dim), v: (batch, heads, n_k, value_dim);
    returns (batch, heads, n_q, value_dim). `scale` defaults to 1/sqrt(head_dim); `causal` lets query i see
    keys 0 to i. `dtype` is the arrays' own unless given; bfloat16 comes and goes in float32 arrays.
    `folders` hold further backends.

    Raises ValueError for shapes that do not fit, an unknown name, or a backend that returns another
    shape or dtype; Declined where the backend does not do it; Unavailable where its library is missing.
    """
    backend = load(name, folders)
    workload = Workload.of_arrays(q, k, v, causal=causal, scale=scale, dtype=dtype, device=device)
    return checked_output(backend, workload, backend.bind(workload, q, k, v)())


def gradients(
    name: str,
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    output_gradient: NDArray[Any],
    *,
    causal: bool = False,
    scale: float | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(∂L/∂q, ∂L/∂k, ∂L/∂v) where ∂L/∂output is `output_gradient`, by automatic differentiation through `name`.

    output_gradient : (batch, heads, n_q, value_dim). Everything else, and the errors raised, as in `attend`; each
    gradient has the shape of its array. Declined also where the backend cannot be differentiated: NumPy cannot.
    What the exact gradients are, `attnlab.theory.exact_gradients` says.
    """
    backend = load(name, folders)
    workload = Workload.of_arrays(q, k, v, causal=causal, scale=scale, dtype=dtype, device=device)
    upstream = checked_upstream(output_gradient, q, v)
    library = backend.open(device)
    *arrays, given = (library.from_numpy(array, workload.dtype) for array in (q, k, v, upstream))
    output, *found = backend.gradients(workload, tuple(arrays), given)
    checked_output(backend, workload, output)
    query, key, value = (
        checked_gradient(library, *one) for one in zip(("query", "key", "value"), found, arrays, strict=True)
    )
    return query, key, value
