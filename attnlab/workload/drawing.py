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

#: a random stream each: a change of one array leaves the others as they were. See `attnlab.backends.storage` for 9
_DISTRIBUTION, _BIAS, _SINKS, _GRADIENT, _X, _MEMORY, _PARAMETERS = 3, 6, 7, 8, 10, 11, (12, 13, 14, 15)
#: numbers that are drawn at once: an array in the workload's format is then all that is held
_DRAWN = 2**20


def inputs(workload: Workload) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Query, key and value of `workload`, rounded to its dtype (bfloat16 in float32 arrays).

    Shapes as in `Workload`. Each array and the distribution have a random stream of their own, so that changing
    the number of keys leaves the queries as they were.

    Raises Declined where the distribution needs numbers that the dtype does not hold: a logit of some size at a scale
    near 0 needs queries beyond its largest. Also for a file of inputs that is not what it was.
    """
    w = workload
    wanted = [w.shape_of(gradient) for gradient in GRADIENTS]
    if w.captured is not None:
        held = _held(w)
        q, k, v = (_cut(w, *pair) for pair in zip((held.query, held.key, held.value), wanted, strict=True))
    elif w.distribution == "normal":  # what every format holds
        q, k, v = (_drawn(w, stream, shape) for stream, shape in enumerate(wanted))
        return q, k, v
    else:
        q, k, v = (_drawn(w, stream, shape, rounded=False) for stream, shape in enumerate(wanted))
        with np.errstate(over="ignore", invalid="ignore"):  # told below
            generator = np.random.default_rng([w.seed, _DISTRIBUTION])
            drawn = DISTRIBUTIONS[w.distribution](q, k, v, w.scale, generator)
            q, k, v = (round_to(array, w.dtype) for array in drawn)
    if not all(np.isfinite(array).all() for array in (q, k, v)):
        mend = "name a wider dtype" if w.captured else "use a larger scale"
        raise Declined(f"no {w.dtype} holds the inputs of {w.distribution} at scale {w.scale:g}; {mend}")
    return q, k, v


def inputs_of(workload: Workload, rows: Sequence[int] | None = None) -> Inputs:
    """`workload` with its arrays: query, key and value, and bias, sinks and the output's gradient where it has them.

    Of a block x, memory and parameters (`block_of`) in place of query, key and value.
    The bias is one standard normal array for all batch elements, sinks are standard normal, and so is the gradient.
    Of a file of inputs that has them mask, bias and sinks are its own. Raises Declined as `inputs` does, ValueError for
    a mask or a bias of a caller's own.

    rows : the query rows that the output's gradient is not 0 on, all of them by default. Answers are judged on some
    rows before a race: the gradients of key and value depend on no other row then.
    """
    w = workload
    if GIVEN in (w.mask, w.bias) and w.captured is None:
        raise ValueError("a mask or a bias that was given as an array cannot be drawn again; name one")
    block = None if w.d_model is None else block_of(w)
    q, k, v = inputs(w) if block is None else block.unknown()
    bias: Any = None
    mask, held = w.masked, None if w.captured is None else _held(w)
    if held is not None and w.mask == GIVEN:
        parts = (part.array for part in held.mask.parts if isinstance(part, Given))
        mask = mask & Mask(tuple(Given(of_four_axes(one)[tuple(map(slice, w.shape))]) for one in parts))
    if w.bias == "alibi":
        bias = Alibi.of_heads(w.heads)
    elif held is not None and w.bias == GIVEN:
        bias = round_to(np.asarray(held.bias)[tuple(map(slice, w.shape))], w.dtype)
    elif w.bias == "normal":  # as large as a score matrix: half of float64 where no more is needed
        wide = np.float64 if w.dtype == "float64" else np.float32
        bias = _drawn(w, _BIAS, (1, w.heads, w.queries, w.keys), wide=wide)
    sinks = None
    if w.sinks:
        own = None if held is None else held.sinks
        sinks = _drawn(w, _SINKS, (w.heads,)) if own is None else _cut(w, own, (w.heads,))
    upstream = _drawn(w, _GRADIENT, w.shape_of(OUTPUT)) if w.backward else None
    if upstream is not None and rows is not None:
        upstream[:, :, np.delete(np.arange(w.queries), rows)] = 0
    return Inputs(
        query=q,
        key=k,
        value=v,
        dtype=w.dtype,
        scale=w.scale,
        mask=mask,
        bias=bias,
        softcap=w.softcap,
        sinks=sinks,
        output_gradient=upstream,
        block=block,
    )


def block_of(workload: Workload) -> Block:
    """The block that `workload` poses: equal workloads give bit-equal arrays.

    x and memory are standard normal. in_proj_weight is drawn as PyTorch initialises it, Xavier's uniform law on the
    one matrix (Glorot and Bengio 2010), out_proj.weight by the law of a linear layer, uniform within 1/√(its columns).
    So are the biases, within 1/√d_model: PyTorch's are 0 at first, and one that is left out could not be told from
    them.
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
        memory=None if w.attends_to_itself else _drawn(w, _MEMORY, (w.batch, w.keys, w.d_model)),
        parameters=parameters,
        **{name: getattr(w, name) for name in WIDTHS},
    )


def _held(w: Workload) -> Inputs:
    """What the workload's file holds. Raises Declined for one that is not what it was: inputs are made in a race."""
    try:
        assert w.captured is not None
        return w.captured.inputs()
    except ValueError as fault:
        raise Declined(str(fault)) from None


def _cut(w: Workload, array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The first numbers of each axis, rounded. Raises Declined where there are fewer."""
    found = array[tuple(map(slice, shape))]
    if found.shape != shape:
        raise Declined(f"{w.distribution} holds an array of {array.shape}, and {shape} is asked for")
    return round_to(found, w.dtype)


def _drawn(
    workload: Workload,
    stream: int,
    shape: tuple[int, ...],
    *,
    wide: type[np.floating[Any]] = np.float64,
    rounded: bool = True,
) -> NDArray[Any]:
    """Standard normal numbers, drawn in the format `wide` and rounded to the workload's unless told otherwise.

    Piece by piece: the generator gives the same numbers one after the other, however many are asked for at once.
    """
    generator = np.random.default_rng([workload.seed, stream])
    found = np.empty(shape, carrier(workload.dtype) if rounded else wide)
    flat = found.reshape(-1)
    for start in range(0, flat.size, _DRAWN):
        part = flat[start : start + _DRAWN]
        drawn = generator.standard_normal(part.size, dtype=wide)
        part[:] = round_to(drawn, workload.dtype) if rounded else drawn
    return found
