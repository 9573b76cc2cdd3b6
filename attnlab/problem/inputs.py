"""A workload's arrays: equal workloads give bit-equal inputs, in every process and for every library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.problem.block import block_of
from attnlab.problem.distributions import DISTRIBUTIONS
from attnlab.problem.dtypes import carrier, round_to
from attnlab.problem.mask_kinds import Given
from attnlab.problem.masks import Mask
from attnlab.problem.problem import Alibi, Problem
from attnlab.problem.workload import Workload
from attnlab.problem.workload_checks import GIVEN

#: a random stream each: a change of one array leaves the others as they were
_DISTRIBUTION, _BIAS, _SINKS, _GRADIENT = 3, 6, 7, 8
#: numbers that are drawn at once: an array in the workload's format is then all that is held
_DRAWN = 2**20


def inputs(workload: Workload) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Query, key and value of `workload`, rounded to its dtype (bfloat16 in float32 arrays).

    Shapes as in `Workload`. Each array and the distribution have a random stream of their own, so that changing
    the number of keys leaves the queries as they were.

    Raises Declined, whoever asks, where the distribution needs numbers that the dtype does not hold: a logit of some
    size at a scale near 0 needs queries beyond its largest. Also for a file of inputs that is not what it was.
    """
    w = workload
    shapes = (
        (w.batch, w.heads, w.queries, w.head_dim),
        (w.batch, w.kv_heads, w.keys, w.head_dim),
        (w.batch, w.kv_heads, w.keys, w.value_dim),
    )
    if w.captured is not None:
        read = w.captured.read(dict(zip(("query", "key", "value"), shapes, strict=True)))
        q, k, v = (round_to(_plain(array), w.dtype) for array in read.values())
        return _held(w, q, k, v)
    if w.distribution == "normal":  # what every format holds
        q, k, v = (_normal(w, stream, shape) for stream, shape in enumerate(shapes))
        return q, k, v
    q, k, v = (_normal(w, stream, shape, rounded=False) for stream, shape in enumerate(shapes))
    with np.errstate(over="ignore", invalid="ignore"):  # told below
        drawn = DISTRIBUTIONS[w.distribution](
            q, k, v, w.scale, np.random.default_rng([w.seed, _DISTRIBUTION])
        )
        q, k, v = (round_to(array, w.dtype) for array in drawn)
    return _held(w, q, k, v)


def _held(w: Workload, *arrays: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Query, key and value, if the workload's format held them."""
    if not all(np.isfinite(array).all() for array in arrays):
        mend = "name a wider dtype" if w.captured else "use a larger scale"
        raise Declined(f"no {w.dtype} holds the inputs of {w.distribution} at scale {w.scale:g}; {mend}")
    q, k, v = arrays
    return q, k, v


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """bfloat16 as ml_dtypes has it in float32, which holds it exactly."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def problem_of(workload: Workload) -> Problem:
    """`workload` with its arrays: query, key and value, and bias, sinks and the output's gradient where it has them.

    Of a block x, memory and parameters (`attnlab.problem.block.block_of`) in place of query, key and value.
    The bias is one standard normal array for all batch elements, sinks are standard normal, and so is the gradient.
    Of a file of inputs that has them mask, bias and sinks are its own. Raises Declined as `inputs` does, ValueError for
    a mask or a bias of a caller's own.
    """
    w = workload
    if GIVEN in (w.mask, w.bias) and w.captured is None:
        raise ValueError("a mask or a bias that was given as an array cannot be drawn again; name one")
    block = None if w.d_model is None else block_of(w)
    q, k, v = inputs(w) if block is None else block.unknown()
    bias: Any = None
    if w.bias == "alibi":
        bias = Alibi.of_heads(w.heads)
    elif w.bias == GIVEN:
        bias = round_to(_plain(_read(w, "bias")), w.dtype)
    elif w.bias == "normal":
        bias = _normal(w, _BIAS, (1, w.heads, w.queries, w.keys), wide=_of_scores(w.dtype))
    upstream = (w.batch, w.heads, w.queries, w.value_dim)
    return Problem(
        query=q,
        key=k,
        value=v,
        dtype=w.dtype,
        scale=w.scale,
        mask=w.masked & Mask((Given(_read(w, "mask")),)) if w.mask == GIVEN else w.masked,
        bias=bias,
        softcap=w.softcap,
        sinks=_sinks(w) if w.sinks else None,
        output_gradient=_normal(w, _GRADIENT, upstream) if w.backward else None,
        block=block,
    )


def _read(w: Workload, name: str) -> NDArray[Any]:
    """A further array of the workload's file, over its scores; one for all of an axis where the file has one."""
    assert w.captured is not None, "only what is read can be given"
    return w.captured.read({name: tuple(w.shape)})[name]


def _sinks(w: Workload) -> NDArray[Any]:
    if w.captured is None or not w.captured.fields().get("sinks"):
        return _normal(w, _SINKS, (w.heads,))
    return round_to(_plain(w.captured.read({"sinks": (w.heads,)})["sinks"]), w.dtype)


def checked_problem(workload: Workload, rows: Sequence[int]) -> Problem:
    """`problem_of`, the output's gradient being 0 but on the query rows `rows`.

    What answers are judged on before a race: the gradients of key and value depend on no other row then.
    """
    problem = problem_of(workload)
    if problem.output_gradient is None:
        return problem
    upstream = np.zeros_like(problem.output_gradient)
    upstream[:, :, rows] = problem.output_gradient[:, :, rows]
    return problem.with_(output_gradient=upstream)


def _of_scores(dtype: str) -> type[np.floating[Any]]:
    """What a bias is drawn in, which is as large as a score matrix: half of float64 where no more is needed."""
    return np.float64 if dtype == "float64" else np.float32


def _normal(
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
