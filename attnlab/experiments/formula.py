"""What does softmax(scale · q kᵀ) v compute, index by index, and which shapes does it take? Asked of every backend.

There is a score for every pair of query and key, s_ij = q_i·k_j; each query has weights of its own that add up over the
keys; the output has a row for each query and the width of a value. So lengths of queries and keys are independent of
each other, reordering the tokens reorders the output, and a causal prefix does not know what follows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.experiments.estimates import mean_over_clusters, mean_row
from attnlab.experiments.finding import Finding, Row, Where, pick
from attnlab.experiments.responses import read_logits, weights_of
from attnlab.experiments.survey import OpenBackend, Survey, agreement, generator
from attnlab.figures import BLACK, CYCLE, GREY, entitle, new_figure
from attnlab.theory import attention_under_random_inputs, precision_classes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]
_HEADS, _TOKENS, _DIM = 2, 12, 16
_SCALE = _DIM**-0.5
#: rounding of sums of a few products in float64, with room; and that of a quotient of differences
_ROUNDING, _DIFFERENCE = 1e-13, 1e-9
#: what an honest error may be above its budget, which is a root mean square
_ABOVE_BUDGET = 0.25
#: keys over which scores are summed without a softmax
UNNORMALISED_KEYS = (16, 128)
#: queries, keys, value dimension
SHAPES: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "n_q = n_k": ((12, 12, _DIM),),
    "n_q ≠ n_k": ((5, 12, _DIM), (12, 5, _DIM), (1, 9, _DIM)),
    "d_v ≠ d_k": ((6, 6, 8), (6, 6, 40)),
}


def measure(survey: Survey) -> None:
    """Errors over their budgets in two formats, properties that hold exactly, and the shapes that are taken."""
    for dtype in ("float64", "float32"):
        survey.each(partial(_errors, dtype=dtype), dtype=dtype)
    survey.each(_properties, _causal_properties, _scores, without_softmax, _shapes)


def _drawn(
    seed: int, stream: int, queries: int, keys: int, value_dim: int = _DIM
) -> tuple[Array, Array, Array]:
    rng = generator(seed, 1600, stream)
    shapes = ((queries, _DIM), (keys, _DIM), (keys, value_dim))
    q, k, v = (rng.standard_normal((1, _HEADS, *shape)) for shape in shapes)
    return q, k, v


def _error(
    one: OpenBackend, arrays: tuple[Array, Array, Array], dtype: str, causal: bool = False
) -> tuple[float, float]:
    """Relative error over the budget of an implementation that rounds all it may, and the scatter of that figure."""
    q, k, v = (array.astype(dtype) for array in arrays)
    budget = list(precision_classes(q, k, v, dtype=dtype, scale=_SCALE, causal=causal).values())[-1]
    off = one.attend(q, k, v, causal=causal, scale=_SCALE).astype(np.float64) - budget.output
    relative = float(np.linalg.norm(off) / np.linalg.norm(budget.output))
    return relative / budget.relative, budget.relative_scatter


def _errors(one: OpenBackend, seed: int, dtype: str) -> Iterator[Row]:
    for causal in (False, True):
        error, scatter = _error(one, _drawn(seed, 1, 48, 64), dtype, causal)
        where = {"dtype": dtype, "mask": "causal" if causal else "none"}
        room = {"standard_error": scatter, "slack": _ABOVE_BUDGET}
        yield one.row("error / error budget", where, 1.0, error, **room, relation="≤")


def _causal_properties(one: OpenBackend, seed: int) -> Iterator[Row]:
    """What a causal mask does, in float64."""
    q, k, v = _drawn(seed, 2, _TOKENS, _TOKENS)
    attend, half = partial(one.attend, causal=True, scale=_SCALE), _TOKENS // 2
    prefix = attend(*(array[:, :, :half] for array in (q, k, v))) - attend(q, k, v)[:, :, :half]
    quantity = "causal output of the first half alone − of the whole"
    yield one.row(quantity, {}, 0.0, np.abs(prefix).max(), slack=_ROUNDING)
    yield _share_of_pairs(one, q, k, "causal", (_TOKENS + 1) / (2 * _TOKENS))


def _properties(one: OpenBackend, seed: int) -> Iterator[Row]:
    """What the output as a whole obeys, in float64."""
    q, k, v = _drawn(seed, 2, _TOKENS, _TOKENS)
    attend = partial(one.attend, causal=False, scale=_SCALE)
    order = generator(seed, 1600, 3).permutation(_TOKENS)
    output = attend(q, k, v)
    turned = attend(*(array[:, :, order] for array in (q, k, v))) - output[:, :, order]
    quantity = "output of reordered tokens − reordered output"
    yield one.row(quantity, {}, 0.0, np.abs(turned).max(), slack=_ROUNDING)
    rows = min(len(np.unique(head, axis=0)) for head in output[0])
    yield one.row("different rows of the output", {"queries": _TOKENS}, _TOKENS, rows)
    yield _share_of_pairs(one, q, k, "none", 1.0)
    small, large = (np.linalg.norm(attend(q, k, by * v + 1) - attend(q, k, by * v)) for by in (1e-3, 1.0))
    quantity = "change of the output with V, at V/1000 over at V"
    yield one.row(quantity, {}, 1.0, float(small / large), slack=_DIFFERENCE)
    unscaled = np.abs(one.attend(q, k, v, causal=False, scale=1.0)).max() / np.abs(v).max()
    yield one.row("largest |o| / largest |v|, unscaled", {}, 1.0, unscaled, slack=_ROUNDING, relation="≤")


def _share_of_pairs(one: OpenBackend, q: Array, k: Array, mask: str, expected: float) -> Row:
    seen = weights_of(one.attend, q, k, scale=_SCALE, causal=mask == "causal") > 0
    return one.row("share of pairs with a weight", {"mask": mask}, expected, float(seen.mean()), slack=1e-12)


def _scores(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Scores of pairs: no symmetric table, and a length times a cosine."""
    heads, n = 32, 24
    rng = generator(seed, 1600, 4)
    q, other = rng.standard_normal((2, 1, heads, n, _DIM))
    for keys, k, expected in (("k = q", q, 0.0), ("independent", other, 2 * (n - 1) / n)):
        s = read_logits(one.attend, q, k, scale=_SCALE)[0]
        squares = ((s - s.swapaxes(-1, -2)) ** 2).mean(axis=-1)
        where: Where = {"backend": one.name, "keys are": keys}
        yield mean_row("‖S − Sᵀ‖² / n²", where, squares, predicted=expected, slack=_ROUNDING)
    for lengths, long in (("equal", 1.0), ("1 and 4", 4.0)):
        # the query along the first axis; one key in its direction, one at 60°
        two = np.array([[1.0, 0.0], [long / 2, long * math.sqrt(3) / 2]])[None, None]
        weight = weights_of(one.attend, two[:, :, :1], two, scale=1.0)[0, 0, 0, 0]
        quantity, expected = "weight of the better aligned of two keys", 1 / (1 + math.exp(long / 2 - 1))
        yield one.row(quantity, {"lengths": lengths}, expected, float(weight), slack=_ROUNDING)


def without_softmax(one: OpenBackend, seed: int) -> Iterator[Row]:
    """How large Σ_j s_ij v_j is, the sum with the scaled scores for weights, beside the output, both as mean squares.

    Standard normal inputs: every term has variance 1 and is uncorrelated with the others, so that the sum has n; and
    the output has E Σp².
    """
    heads, n_q = 32, 24
    for keys in UNNORMALISED_KEYS:
        rng = generator(seed, 1650, keys)
        q, k, v = (rng.standard_normal((1, heads, n, _DIM)) for n in (n_q, keys, keys))
        scores = read_logits(one.attend, q, k, scale=_SCALE)
        output = one.attend(q, k, v, causal=False, scale=_SCALE)
        where: Where = {"backend": one.name, "keys": keys}
        exact = attention_under_random_inputs(keys, _DIM, _SCALE).participation
        for quantity, vectors, expected in (
            ("mean square of Σ s v", scores @ v, float(keys)),
            ("mean square of Σ p v", output, exact),
        ):
            yield mean_row(quantity, where, (vectors[0] ** 2).mean(axis=-1), predicted=expected)
        ratio = math.sqrt(float(np.mean((scores @ v) ** 2) / np.mean(output**2)))
        error = 0.5 * ratio * math.hypot(*(_relative_error(vectors) for vectors in (scores @ v, output)))
        quantity = "rms of Σ s v / rms of Σ p v"
        yield Row.compare(quantity, where, math.sqrt(keys / exact), ratio, standard_error=error)


def _relative_error(vectors: Array) -> float:
    """Standard error of the mean square, relative to it: by heads, which are independent."""
    mean, error = mean_over_clusters((vectors[0] ** 2).mean(axis=-1))
    return error / mean


def _shapes(one: OpenBackend, seed: int) -> Iterator[Row]:
    """The share of questions that are answered right; what does not fit must be refused."""
    for stream, (label, sizes) in enumerate(SHAPES.items()):
        found = [_answered_right(one, _drawn(seed, 10 + stream, *size)) for size in sizes]
        told = [right for right in found if right is not None]
        if told:
            where: Where = {"backend": one.name, "shapes": label}
            yield Row.compare("share answered right", where, 1.0, float(np.mean(told)))
    q, k, v = _drawn(seed, 20, 6, 6)
    attend: Callable[..., Array] = partial(one.attend, causal=False, scale=_SCALE)
    for label, arrays in (("d_q ≠ d_k", (q, k[..., :12], v)), ("n_k ≠ n_v", (q, k, v[:, :, :4]))):
        try:
            attend(*arrays)
            answered = 1.0
        except ValueError:
            answered = 0.0
        yield Row.compare("share answered", {"backend": one.name, "shapes": label}, 0.0, answered)


def _answered_right(one: OpenBackend, arrays: tuple[Array, Array, Array]) -> bool | None:
    """Whether the error is within what roundings explain; None where the backend declines the shapes."""
    try:
        error, scatter = _error(one, arrays, "float64")
    except Declined:
        return None
    return bool(error <= 1 + max(5 * scatter, _ABOVE_BUDGET))


def conclusion(rows: Sequence[Row]) -> str:
    """The largest error over its budget."""
    errors = pick(rows, "error / error budget")
    if not errors:
        return "No backend could be measured." + (f" {agreement(rows, 'the formula')}." if rows else "")
    worst = max(errors, key=lambda row: row.measured)
    return (
        f"No error exceeds {worst.measured:.2f} of what its roundings predict ({worst.where['backend']}, "
        f"{worst.where['dtype']}). {agreement(rows, 'the formula')}."
    )


def draw(finding: Finding) -> Figure:
    """Errors over their budgets, and the share of pairs that have a weight, by backend."""
    figure, (errors, pairs) = new_figure(2, 1, width=12.5, height=4.4, sharey=True)
    by_error = pick(finding.rows, "error / error budget")
    names = list(dict.fromkeys(str(row.where["backend"]) for row in by_error))
    shown = (
        (errors, "error / error budget", ("dtype", "mask")),
        (pairs, "share of pairs with a weight", ("mask",)),
    )
    for panel, quantity, keys in shown:
        kinds: dict[str, list[Row]] = {}
        for row in pick(finding.rows, quantity):
            if row.where["backend"] in names:
                kinds.setdefault(", ".join(str(row.where[key]) for key in keys), []).append(row)
        for (kind, rows), colour in zip(kinds.items(), CYCLE, strict=False):
            places = [names.index(str(row.where["backend"])) for row in rows]
            label = f"mask: {kind}" if panel is pairs else kind.replace(", ", ", mask: ")
            panel.plot([row.measured for row in rows], places, "o", color=colour, mfc="none", label=label)
            panel.axvline(rows[0].predicted, color=BLACK if panel is errors else colour, linewidth=1.2)
        panel.set_xlim(left=0)
        if kinds:
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, fontsize=9, frameon=False)
    in_float64 = {str(row.where["backend"]) for row in pick(by_error, dtype="float64")}
    for name in (one for one in names if one not in in_float64):
        pairs.text(0.02, names.index(name), "no float64", color=GREY, fontsize=8.5, va="center")
    errors.set_yticks(range(len(names)), names)
    entitle(errors, "No error above what roundings predict", "relative error / error budget", "")
    entitle(pairs, "A causal mask keeps (n + 1)/2n of the pairs", "share of pairs with a weight", "")
    return figure
