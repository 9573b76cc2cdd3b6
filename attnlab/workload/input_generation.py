"""From a workload to its arrays (`inputs_of`): equal workloads have bit-equal inputs, in every process and library.

They are drawn from the workload's seed and distribution, or read from a file (`attnlab.workload.distributions`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.workload.distributions import DISTRIBUTIONS, Captured, Three
from attnlab.workload.inputs import PARAMETERS, WIDTHS, Alibi, Block, Inputs, shapes
from attnlab.workload.number_formats import carrier, round_to
from attnlab.workload.workload import GIVEN, GRADIENTS, OUTPUT, Workload

#: the random stream of each array: a change of one array does not change the others. `attnlab.backends.backend` uses 9
_DISTRIBUTION, _BIAS, _SINKS, _GRADIENT, _X, _MEMORY, _PARAMETERS = 3, 6, 7, 8, 10, 11, (12, 13, 14, 15)
#: how many numbers are drawn at once: only the array in the workload's format is then held in memory
_DRAWN = 2**20


def inputs_of(workload: Workload, rows: Sequence[int] | None = None) -> Inputs:
    """The inputs of `workload`: query, key and value, and bias, sinks and the output's gradient if it has them.

    Each array has a separate random stream: more keys do not change the queries. A block has x, memory and parameters
    in place of query, key and value. The bias is one standard normal array for all batch elements. The output's
    gradient is standard normal. Sinks are standard normal too, plus the logarithm of the average number of keys that a
    query sees.

    rows : the query rows on which the output's gradient is not 0, all by default. A race judges answers on some rows
    first: then the gradients of key and value depend on no other row.

    Raises Declined if the dtype does not hold the numbers (at a scale near 0, large logits need huge queries), and for
    a file of inputs that has changed or is too small. Raises ValueError for a caller's own mask or bias.
    """
    w = workload
    if GIVEN in (w.mask, w.bias):
        raise ValueError("a mask or a bias that was given as an array cannot be drawn again; name one")
    block = None if w.d_model is None else _block(w, w.d_model)
    arrays: Three = block.unknown() if block else _held(w, w.captured) if w.captured else _query_key_value(w)
    if w.distribution != "normal" and not all(np.isfinite(one).all() for one in arrays):
        mend = "name a wider dtype" if w.captured else "use a larger scale"
        raise Declined(f"{w.dtype} cannot hold inputs of {w.distribution} at scale {w.scale:g}; {mend}")
    bias: Any = Alibi.of_heads(w.heads) if w.bias == "alibi" else None
    if w.bias == "normal":  # as large as a score matrix: float32 takes half the memory of float64
        wide = np.float64 if w.dtype == "float64" else np.float32
        bias = _drawn(w, _BIAS, (1, w.heads, w.queries, w.keys), wide=wide)
    sinks = None
    if w.sinks:  # as large as ln Z, so that a sink has much of the weight at any length
        seen = max(1, w.pairs / math.prod(w.shape[:3]))
        sinks = round_to(math.log(seen) + _drawn(w, _SINKS, (w.heads,), rounded=False), w.dtype)
    upstream = _drawn(w, _GRADIENT, w.shape_of(OUTPUT)) if w.backward else None
    if upstream is not None and rows is not None:
        upstream[:, :, np.delete(np.arange(w.queries), rows)] = 0
    asked: dict[str, Any] = {"dtype": w.dtype, "scale": w.scale, "softcap": w.softcap, "mask": w.masked}
    return Inputs(*arrays, **asked, bias=bias, sinks=sinks, output_gradient=upstream, block=block)


def _query_key_value(w: Workload) -> Three:
    """Query, key and value, drawn and rounded to the workload's dtype; infinite if this does not hold a number."""
    rounded = w.distribution == "normal"  # every format holds these numbers: no arrays in float64 are needed
    q, k, v = (_drawn(w, at, w.shape_of(one), rounded=rounded) for at, one in enumerate(GRADIENTS))
    if not rounded:
        generator = np.random.default_rng([w.seed, _DISTRIBUTION])
        with np.errstate(over="ignore", invalid="ignore"):
            drawn = DISTRIBUTIONS[w.distribution](q, k, v, w.scale, generator)
        q, k, v = (round_to(array, w.dtype) for array in drawn)
    return q, k, v


def _held(w: Workload, file: Captured) -> Three:
    """The first numbers of each axis of the file's arrays, rounded to the workload's dtype.

    Raises Declined if the file has fewer numbers or has changed, because this happens within a race.
    """
    try:
        held = file.inputs()
    except ValueError as fault:
        raise Declined(str(fault)) from None
    arrays = []
    for one, wanted in zip((held.query, held.key, held.value), map(w.shape_of, GRADIENTS), strict=True):
        arrays.append(round_to(one[tuple(map(slice, wanted))], w.dtype))
        if arrays[-1].shape != wanted:
            raise Declined(f"{w.distribution} holds an array of {one.shape}, and {wanted} is asked for")
    return arrays[0], arrays[1], arrays[2]


def _block(w: Workload, d_model: int) -> Block:
    """The arrays of a multi-head block of this width.

    x and memory are standard normal. Weights are drawn as PyTorch initialises them: in_proj_weight by Xavier's uniform
    distribution for the whole matrix (Glorot and Bengio 2010), out_proj.weight like that of a linear layer, uniform
    within 1/√(its columns). Biases are uniform within 1/√d_model. PyTorch starts biases at 0, but then a backend that
    ignores them would pass.
    """
    wanted = shapes(w)
    xavier, of_biases = np.sqrt(6 / (wanted["in_proj_weight"][0] + d_model)), d_model**-0.5
    limits = xavier, of_biases, (w.heads * w.value_dim) ** -0.5, of_biases
    parameters = {}
    for name, stream, limit in zip(PARAMETERS, _PARAMETERS, limits, strict=True):
        drawn = np.random.default_rng([w.seed, stream]).uniform(-limit, limit, wanted[name])
        parameters[name] = round_to(drawn, w.dtype)
    x = _drawn(w, _X, (w.batch, w.queries, d_model))
    memory = None if w.queries == w.keys else _drawn(w, _MEMORY, (w.batch, w.keys, d_model))
    return Block(x, memory, parameters, **{name: getattr(w, name) for name in WIDTHS})


def _drawn(
    workload: Workload, stream: int, shape: tuple[int, ...], wide: Any = np.float64, rounded: bool = True
) -> NDArray[Any]:
    """Standard normal numbers, drawn in the format `wide` and, if `rounded`, rounded to the workload's.

    They are drawn piece by piece. The generator gives the same numbers however many are drawn at once.
    """
    generator = np.random.default_rng([workload.seed, stream])
    found = np.empty(shape, carrier(workload.dtype) if rounded else wide)
    flat = found.reshape(-1)
    for start in range(0, flat.size, _DRAWN):
        part = flat[start : start + _DRAWN]
        drawn = generator.standard_normal(part.size, dtype=wide)
        part[:] = round_to(drawn, workload.dtype) if rounded else drawn
    return found
