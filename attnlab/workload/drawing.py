"""A workload's arrays: equal workloads give bit-equal inputs, in every process and for every library.

They are drawn, standard normal or in a shape that breaks implementations (`attnlab.workload.distributions`), or read
from a file of inputs that a model computed (`attnlab.workload.distributions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.workload.distributions import DISTRIBUTIONS
from attnlab.workload.inputs import PARAMETERS, WIDTHS, Alibi, Block, Inputs, of_four_axes, shapes
from attnlab.workload.mask_kinds import Given
from attnlab.workload.masks import Mask
from attnlab.workload.number_formats import carrier, round_to
from attnlab.workload.workload import GIVEN, GRADIENTS, OUTPUT, Workload

#: a random stream each: a change of one array leaves the others as they were. `attnlab.backends.backend` has 9
_DISTRIBUTION, _BIAS, _SINKS, _GRADIENT, _X, _MEMORY, _PARAMETERS = 3, 6, 7, 8, 10, 11, (12, 13, 14, 15)
#: numbers that are drawn at once: an array in the workload's format is then all that is held
_DRAWN = 2**20


def inputs_of(workload: Workload, rows: Sequence[int] | None = None) -> Inputs:
    """`workload` with its arrays: query, key and value, and bias, sinks and the output's gradient where it has them.

    Each array and the distribution have a random stream of their own, so that changing the number of keys leaves the
    queries as they were. Of a block x, memory and parameters are drawn in place of query, key and value. The bias is
    one standard normal array for all batch elements, sinks are standard normal, and so is the output's gradient. Of a
    file of inputs that has them mask, bias and sinks are its own.

    rows : the query rows that the output's gradient is not 0 on, all of them by default. Answers are judged on some
    rows before a race: the gradients of key and value depend on no other row then.

    Raises Declined where the dtype does not hold the numbers: a logit of some size at a scale near 0 needs queries
    beyond its largest. Also for a file of inputs that is not what it was. ValueError for a mask or a bias of a caller's
    own.
    """
    w = workload
    held = None if w.captured is None else _held(w)
    if GIVEN in (w.mask, w.bias) and held is None:
        raise ValueError("a mask or a bias that was given as an array cannot be drawn again; name one")
    block = None if w.d_model is None else _block(w)
    arrays = (held.query, held.key, held.value) if held else block.unknown() if block else _query_key_value(w)
    if w.distribution != "normal" and not all(np.isfinite(one).all() for one in arrays):
        mend = "name a wider dtype" if held else "use a larger scale"
        raise Declined(f"no {w.dtype} holds the inputs of {w.distribution} at scale {w.scale:g}; {mend}")
    bias: Any = Alibi.of_heads(w.heads) if w.bias == "alibi" else None
    if held and w.bias == GIVEN:
        bias = held.bias
    elif w.bias == "normal":  # as large as a score matrix: half of float64 where no more is needed
        wide = np.float64 if w.dtype == "float64" else np.float32
        bias = _drawn(w, _BIAS, (1, w.heads, w.queries, w.keys), wide=wide)
    sinks = held.sinks if held and w.sinks else None
    upstream = _drawn(w, _GRADIENT, w.shape_of(OUTPUT)) if w.backward else None
    if upstream is not None and rows is not None:
        upstream[:, :, np.delete(np.arange(w.queries), rows)] = 0
    return Inputs(
        *arrays,
        dtype=w.dtype,
        scale=w.scale,
        mask=w.masked & held.mask if held and w.mask == GIVEN else w.masked,
        bias=bias,
        softcap=w.softcap,
        sinks=_drawn(w, _SINKS, (w.heads,)) if w.sinks and sinks is None else sinks,
        output_gradient=upstream,
        block=block,
    )


def _query_key_value(w: Workload) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Drawn by the workload's distribution and rounded to its dtype; infinite where that does not hold a number."""
    rounded = w.distribution == "normal"  # every format holds these, and they need no arrays in float64
    q, k, v = (_drawn(w, at, w.shape_of(one), rounded=rounded) for at, one in enumerate(GRADIENTS))
    if not rounded:
        generator = np.random.default_rng([w.seed, _DISTRIBUTION])
        with np.errstate(over="ignore", invalid="ignore"):
            drawn = DISTRIBUTIONS[w.distribution](q, k, v, w.scale, generator)
        q, k, v = (round_to(array, w.dtype) for array in drawn)
    return q, k, v


def _held(w: Workload) -> Inputs:
    """The first numbers of each axis of the file's arrays, rounded to the workload's dtype.

    Raises Declined where the file has fewer or has changed: this happens within a race.
    """
    assert w.captured is not None
    try:
        found = w.captured.inputs()
    except ValueError as fault:
        raise Declined(str(fault)) from None
    query, key, value = map(w.shape_of, GRADIENTS)
    wanted = {"query": query, "key": key, "value": value, "sinks": (w.heads,), "bias": w.shape}
    arrays = {name: getattr(found, name) for name in wanted if getattr(found, name) is not None}
    cut = {name: round_to(one[tuple(map(slice, wanted[name]))], w.dtype) for name, one in arrays.items()}
    for name, one in cut.items():
        if name != "bias" and one.shape != wanted[name]:  # a bias may be broadcast
            fewer = (
                f"{w.distribution} holds an array of {arrays[name].shape}, and {wanted[name]} is asked for"
            )
            raise Declined(fewer)
    parts = (part.array for part in found.mask.parts if isinstance(part, Given))
    mask = Mask(tuple(Given(of_four_axes(one)[tuple(map(slice, w.shape))]) for one in parts))
    return found.with_(**cut, mask=mask)


def _block(workload: Workload) -> Block:
    """The block that `workload` poses: equal workloads give bit-equal arrays.

    x and memory are standard normal. in_proj_weight is drawn as PyTorch initialises it, Xavier's uniform law on the
    one matrix (Glorot and Bengio 2010), out_proj.weight by the law of a linear layer, uniform within 1/√(its columns).
    The biases are uniform within 1/√d_model. PyTorch starts them at 0, and a backend that leaves out a bias would not
    be noticed.
    """
    w = workload
    assert w.d_model is not None
    wanted = shapes(w, w.d_model)
    xavier, of_biases = np.sqrt(6 / (wanted["in_proj_weight"][0] + w.d_model)), w.d_model**-0.5
    limits = xavier, of_biases, (w.heads * w.value_dim) ** -0.5, of_biases
    parameters = {}
    for name, stream, limit in zip(PARAMETERS, _PARAMETERS, limits, strict=True):
        drawn = np.random.default_rng([w.seed, stream]).uniform(-limit, limit, wanted[name])
        parameters[name] = round_to(drawn, w.dtype)
    return Block(
        x=_drawn(w, _X, (w.batch, w.queries, w.d_model)),
        memory=None if w.queries == w.keys else _drawn(w, _MEMORY, (w.batch, w.keys, w.d_model)),
        parameters=parameters,
        **{name: getattr(w, name) for name in WIDTHS},
    )


def _drawn(
    workload: Workload,
    stream: int,
    shape: tuple[int, ...],
    *,
    wide: type[np.floating[Any]] = np.float64,
    rounded: bool = True,
) -> NDArray[Any]:
    """Standard normal numbers, drawn in the format `wide` and rounded to the workload's unless told otherwise.

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
