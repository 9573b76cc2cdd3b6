"""Calls of a backend on NumPy arrays in this process: `attend`, `block`, `gradients`, for tests and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from attnlab.backends.contender import in_this_process
from attnlab.errors import Declined
from attnlab.workload.inputs import Block, Inputs
from attnlab.workload.number_formats import dtype_of
from attnlab.workload.workload import GRADIENTS, OUTPUT, Workload


def attend(
    name: str,
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    causal: bool | str = False,
    mask: Any = None,
    bias: NDArray[Any] | None = None,
    window: tuple[int, int] | None = None,
    key_lengths: Sequence[int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: NDArray[Any] | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
) -> NDArray[Any]:
    """softmax(cap(scale · q kᵀ) + bias) v over the keys that are seen, by the backend `name`.

    name : may have settings of the backend's own, ``openvino[precision=bf16]``, but none that need a process of its own
    (threads, environment variables).
    q : (batch, heads, n_q, head_dim).
    k : (batch, kv_heads, n_k, head_dim); heads is a multiple of kv_heads. Each key head serves heads/kv_heads
    successive query heads.
    v : (batch, kv_heads, n_k, value_dim).
    causal : False, True or "top_left" (query i sees keys 0 to i), or "bottom_right" (the last query sees all keys).
    mask : boolean, True keeps, broadcastable to (batch, heads, n_q, n_k). mask, window, key_lengths and causal
    intersect. A query that sees no key gets 0.
    bias : numbers that are added to the scores, broadcastable like the mask; -inf masks its pair.
    window : (left, right) keys around a query's own position on the causal diagonal, -1 for no limit.
    key_lengths : the number of real keys of each batch element.
    scale : factor on q·k, 1/sqrt(head_dim) by default (Vaswani et al. 2017, section 3.2.1).
    softcap : c in c tanh(s/c), before the bias.
    sinks : (heads,), one more logit for each head in the sum of the softmax.
    dtype : number format, by default that of the arrays; bfloat16 is passed and returned in float32 arrays.
    device : "cpu" or "cuda".
    folders : folders with more backends.

    Returns (batch, heads, n_q, value_dim) in the number format.

    Raises ValueError for arrays that do not fit, an unknown name, and a backend that returns another shape or dtype;
    Declined if the backend does not do it; Unavailable if its library is missing.
    """
    seen = {"causal": causal, "mask": mask, "window": window, "key_lengths": key_lengths}
    scored: dict[str, Any] = {"bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
    inputs = Inputs.of(q, k, v, dtype=dtype, **seen, **scored)
    return answer(name, inputs, device=device, folders=folders)[OUTPUT]


def block(
    name: str,
    x: NDArray[Any],
    parameters: Mapping[str, Any],
    *,
    heads: int,
    memory: NDArray[Any] | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    projection: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
    **rest: Any,
) -> NDArray[Any]:
    """A multi-head block around the backend `name`, or a backend that computes whole blocks: (batch, n_q, d_model).

    name : as in `attend`.
    x : (batch, n_q, d_model).
    parameters : the state dict of a `torch.nn.MultiheadAttention`, as arrays or tensors on the CPU
    (`attnlab.workload.inputs`).
    heads : of the query.
    memory : (batch, n_k, d_model), the source of keys and values; x itself by default.
    kv_heads, head_dim, value_dim : heads, d_model/heads and head_dim by default.
    projection : how x is projected: "fused" or "loop" (`attnlab.backends.backend`).
    device, folders, rest : as in `attend`.

    Raises as `attend` does, and ValueError for a state dict that does not fit.
    """
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim}
    around = Block.of(x, parameters, memory=memory, **sizes)
    inputs = Inputs.of(*around.unknown(), **{"dtype": dtype_of(x), **rest}).with_(block=around)
    return answer(name, inputs, device=device, folders=folders, projection=projection)[OUTPUT]


def gradients(
    name: str,
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    output_gradient: NDArray[Any],
    *,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
    **rest: Any,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(∂L/∂q, ∂L/∂k, ∂L/∂v) for ∂L/∂output = `output_gradient`, by automatic differentiation through `name`.

    name, q, k, v, device, folders, rest : as in `attend`.
    output_gradient : (batch, heads, n_q, value_dim).

    Returns three arrays, each of the shape of its input. Raises as `attend` does, and Declined if the backend cannot be
    differentiated, for example on NumPy. `attnlab.correctness.expected.expect` gives the exact gradients.
    """
    inputs = Inputs.of(q, k, v, output_gradient=output_gradient, **rest)
    found = answer(name, inputs, direction="training", device=device, folders=folders)
    query, key, value = (found[one] for one in GRADIENTS)
    return query, key, value


def answer(
    name: str,
    inputs: Inputs,
    *,
    direction: str = "forward",
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
    projection: str | None = None,
) -> dict[str, NDArray[Any]]:
    """What the backend returns for these inputs, by name: "output", "query gradient", ... Raises as `attend` does."""
    backend = in_this_process(name, folders)
    workload = Workload.of_inputs(inputs, device=device, direction=direction)
    try:
        return backend.named(workload, backend.bind(workload, inputs, projection)())
    except Declined as declined:
        raise Declined(declined.refusal, f"{name} declines {workload.label}") from None
