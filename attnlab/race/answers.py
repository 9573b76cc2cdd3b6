"""The inputs of a visit, which are overwritten before each turn, and the check of answers in it.

The first answer of a contender is checked by `attnlab.correctness.weighing`, on rows that were drawn before the answer.
The last answer of a turn is checked by `astray`, on a few rows of one head that are drawn after the answer. Such an
answer can be wrong only because of a stale cache, skipped work or an unfinished queue, and then the error is far larger
than rounding. The gradients of key and value have no row for each query; in this check they must only be finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.expected import expect
from attnlab.correctness.weighing import Answers, anywhere, weigh
from attnlab.race.pages import Form, Pages
from attnlab.workload.inputs import Alibi, Inputs, pack, unpack
from attnlab.workload.mask_kinds import Given, Place
from attnlab.workload.masks import Mask
from attnlab.workload.number_formats import carrier, round_to
from attnlab.workload.workload import LOG_SUM, OF_QUERIES, Workload

#: the number of rows of a turn's answer that are checked, and the largest error that passes, in error budgets
_ROWS, _FAR = 2, 8.0
#: arrays that are overwritten before each turn; those with the same number are shifted together along their length
_FRESH = {"query": 0, "x": 0, "key": 1, "value": 1, "memory": 1, "output_gradient": 2}
#: how many numbers more than the largest array a pool has; for each turn, the place of an array in it is drawn
_MORE = 2**17


class Drawn:
    """The inputs of one visit, in pages that the workers read. The operating system seeds all random numbers."""

    def __init__(self, workload: Workload, inputs: Inputs, generator: np.random.Generator) -> None:
        self.workload, self._random = workload, generator
        self.plain, arrays = pack(inputs)
        self.pages = Pages([Form(one.dtype.str, one.shape) for one in arrays])
        for page, array in zip(self.pages.arrays, arrays, strict=True):
            page[...] = array
        self.inputs = unpack(self.plain, self.pages.arrays)
        #: the first inputs, in memory that no worker can write to
        self.first, self._first = inputs, tuple(arrays)
        names = self.plain["arrays"]
        self._fresh = [at for at, name in enumerate(names) if name in _FRESH]
        self._moving = {at: _FRESH[names[at]] for at in self._fresh}
        self._pool: NDArray[Any] | None = None

    def copy(self) -> Inputs:
        """A copy of the inputs as they are now."""
        return unpack(self.plain, [one.copy() for one in self.pages.arrays])

    def restore(self) -> bool:
        """Write the first inputs again if a worker has changed them. Returns whether they were unchanged."""
        pairs = list(zip(self.pages.arrays, self._first, strict=True))
        same = all(page.tobytes() == array.tobytes() for page, array in pairs)
        for page, array in pairs if not same else ():
            page[...] = array
        return same

    def refresh(self) -> None:
        """Overwrite the inputs with others of the same distribution."""
        arrays = self.pages.arrays
        if self.workload.distribution == "normal":
            width = max(arrays[at].shape[-1] for at in self._fresh)
            if self._pool is None:
                most = max(arrays[at].size for at in self._fresh) + max(_MORE, 2 * width)
                drawn = self._random.standard_normal(most, dtype=np.float32)
                self._pool = round_to(drawn, self.workload.dtype)
            # no array may have rows of another, so their parts of the pool begin at different columns
            columns = self._random.permutation(width)
            for at, column in zip(self._fresh, np.resize(columns, len(self._fresh)), strict=True):
                rows = (self._pool.size - arrays[at].size) // columns.size - 1
                start = int(self._random.integers(max(1, rows))) * columns.size + column
                arrays[at].reshape(-1)[...] = self._pool[start : start + arrays[at].size]
            return
        parts = self._random.random(3)
        # shifted along their length by an even number of rows, so that pairs of equal keys stay pairs
        for at in self._fresh:
            length = arrays[at].shape[-2]
            steps = 2 * (1 + int(parts[self._moving[at]] * max(1, length // 2 - 1)))
            arrays[at][...] = np.roll(arrays[at], steps, axis=-2)

    def without_gradient(self, rows: Sequence[int]) -> None:
        """Set the output's gradient to 0 except on these rows. Then key and value gradients depend on no other rows."""
        upstream = self.inputs.output_gradient
        if upstream is not None:
            others = np.ones(upstream.shape[2], bool)
            others[list(rows)] = False
            upstream[:, :, others] = 0
            self._first = tuple(one.copy() for one in self.pages.arrays)
            self.first = unpack(self.plain, self._first)


def answer_pages(workload: Workload) -> Pages:
    """Pages for the answers of a contender: an array for each name in `Workload.results`, in that order."""
    forms = {name: np.dtype(carrier(workload.dtype_of(name))).str for name in workload.results}
    return Pages([Form(dtype, workload.shape_of(name)) for name, dtype in forms.items()])


def astray(
    workload: Workload,
    inputs: Inputs,
    answers: Answers,
    computes_in: str | None,
    generator: np.random.Generator,
) -> str | None:
    """Why the answers of a turn are wrong for its `inputs`, checked on rows that are drawn now; None if they are right.

    Raises Declined if the number format that the backend computes in cannot hold the inputs.
    """
    rows = sorted({int(one) for one in generator.integers(workload.queries, size=_ROWS)})
    for name in workload.results:
        if name not in OF_QUERIES and not np.isfinite(answers[name]).all():
            return f"{name}: it is not finite"
    batch, head = int(generator.integers(workload.batch)), int(generator.integers(workload.heads))
    part = inputs if workload.d_model is not None else _of_head(inputs, batch, head, rows)
    cast = part if computes_in is None else part.cast(computes_in)
    exact = expect(cast, rows if part is inputs else None, log_sum=LOG_SUM in workload.results)
    for name in (one for one in workload.results if one in OF_QUERIES):
        if not exact[name].first_order:
            continue
        given = answers[name]
        own = given[:, rows] if part is inputs else given[batch : batch + 1, head : head + 1, rows]
        found = weigh(exact[name], own, **anywhere(name))
        error = found.relative_error if math.isfinite(found.relative_error) else math.inf
        if error > _FAR * max(found.budget, 1e-30):
            where = f"rows {', '.join(map(str, rows))}" + ("" if part is inputs else f" of head {head}")
            return (
                f"the {name} of a timed call is not that of its inputs: relative error {error:.2g} in {where}, "
                f"at most {found.budget:.2g} is rounding"
            )
    return None


def _of_head(inputs: Inputs, batch: int, head: int, rows: Sequence[int]) -> Inputs:
    """The inputs of the queries `rows` of one head."""
    shape, of_keys = inputs.shape, head // inputs.group
    b, h, k = slice(batch, batch + 1), slice(head, head + 1), slice(of_keys, of_keys + 1)
    place = Place(shape, np.asarray(rows), np.arange(shape.keys), b, h)
    seen, bias, upstream = inputs.mask.visible(place), inputs.bias, inputs.output_gradient
    if isinstance(bias, Alibi):
        bias = bias.at(place)[None]
    elif bias is not None:
        bias = place.cut(bias)
    if seen is not None:
        seen = np.array(np.broadcast_to(seen, (1, 1, len(rows), shape.keys)))
    return inputs.with_(
        query=inputs.query[b, h][:, :, rows],
        key=inputs.key[b, k],
        value=inputs.value[b, k],
        mask=Mask(()) if seen is None else Mask((Given(seen),)),
        bias=bias,
        sinks=None if inputs.sinks is None else inputs.sinks[h],
        output_gradient=None if upstream is None else upstream[b, h][:, :, rows],
    )
