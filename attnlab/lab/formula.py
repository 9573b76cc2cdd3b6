"""The formula's properties and shapes, and what rounding leaves of it, through every backend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.figures import BLACK, CYCLE, GREY, MARKERS, entitle, new_figure
from attnlab.lab.finding import Experiment, Finding, Row, Shown, pick
from attnlab.lab.observables import read_logits, weights_of
from attnlab.lab.survey import OpenBackend, Survey, agreement, generator, mean_over_clusters
from attnlab.lab.theory import attention_under_random_inputs, precision_classes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arrays = list[NDArray[Any]]
_HEADS, _TOKENS, _DIM = 2, 12, 16
_SCALE = _DIM**-0.5
#: rounding of sums of a few products in float64, with room; and that of a quotient of differences
_ROUNDING, _DIFFERENCE = 1e-13, 1e-9
#: what an honest error may be above its budget, which is a root mean square
_ABOVE_BUDGET = 0.25
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


def _drawn(seed: int, stream: int, queries: int, keys: int, value_dim: int = _DIM) -> Arrays:
    rng = generator(seed, 1600, stream)
    shapes = ((queries, _DIM), (keys, _DIM), (keys, value_dim))
    return [rng.standard_normal((1, _HEADS, *shape)) for shape in shapes]


def _error(one: OpenBackend, arrays: Arrays, dtype: str, causal: bool = False) -> tuple[float, float]:
    """Relative error over the budget of an implementation that rounds all it may, and the scatter of that figure."""
    q, k, v = (array.astype(dtype) for array in arrays)
    budget = list(precision_classes(q, k, v, dtype=dtype, scale=_SCALE, causal=causal).values())[-1]
    off = one.attend(q, k, v, causal=causal, scale=_SCALE).astype(np.float64) - budget.output
    relative = float(np.linalg.norm(off) / np.linalg.norm(budget.output))
    return relative / budget.relative, budget.relative_scatter


def _errors(one: OpenBackend, seed: int, dtype: str) -> Iterator[Row]:
    for mask in ("none", "causal"):
        error, scatter = _error(one, _drawn(seed, 1, 48, 64), dtype, mask == "causal")
        room = {"standard_error": scatter, "slack": _ABOVE_BUDGET, "relation": "≤"}
        yield one.row("error / error budget", {"dtype": dtype, "mask": mask}, 1.0, error, **room)


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


def _share_of_pairs(one: OpenBackend, q: NDArray[Any], k: NDArray[Any], mask: str, expected: float) -> Row:
    seen = weights_of(one.attend, q, k, scale=_SCALE, causal=mask == "causal") > 0
    return one.row("share of pairs with a weight", {"mask": mask}, expected, float(seen.mean()), slack=1e-12)


def _scores(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Scores of pairs: no symmetric table, and a length times a cosine."""
    heads, n = 32, 24
    q, other = generator(seed, 1600, 4).standard_normal((2, 1, heads, n, _DIM))
    for keys, k, expected in (("k = q", q, 0.0), ("independent", other, 2 * (n - 1) / n)):
        s = read_logits(one.attend, q, k, scale=_SCALE)[0]
        squares = ((s - s.swapaxes(-1, -2)) ** 2).mean(axis=-1)
        yield one.mean("‖S − Sᵀ‖² / n²", {"keys are": keys}, squares, expected, _ROUNDING)
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
    for keys in (16, 128):
        rng = generator(seed, 1650, keys)
        q, k, v = (rng.standard_normal((1, heads, n, _DIM)) for n in (n_q, keys, keys))
        summed = (read_logits(one.attend, q, k, scale=_SCALE) @ v)[0] ** 2
        output = one.attend(q, k, v, causal=False, scale=_SCALE)[0] ** 2
        exact = attention_under_random_inputs(keys, _DIM, _SCALE).participation
        yield one.mean("mean square of Σ s v", {"keys": keys}, summed.mean(axis=-1), float(keys))
        yield one.mean("mean square of Σ p v", {"keys": keys}, output.mean(axis=-1), exact)
        ratio = math.sqrt(float(np.mean(summed) / np.mean(output)))
        # by heads, which are independent
        means = [mean_over_clusters(squares.mean(axis=-1)) for squares in (summed, output)]
        error = 0.5 * ratio * math.hypot(*(error / mean for mean, error in means))
        expected, quantity = math.sqrt(keys / exact), "rms of Σ s v / rms of Σ p v"
        yield one.row(quantity, {"keys": keys}, expected, ratio, standard_error=error)


def _shapes(one: OpenBackend, seed: int) -> Iterator[Row]:
    """The share of questions that are answered right; what does not fit must be refused."""
    for stream, (label, sizes) in enumerate(SHAPES.items()):
        right: list[bool] = []
        for size in sizes:
            try:
                error, scatter = _error(one, _drawn(seed, 10 + stream, *size), "float64")
            except Declined:
                continue
            # within what roundings explain
            right.append(error <= 1 + max(5 * scatter, _ABOVE_BUDGET))
        if right:
            yield one.row("share answered right", {"shapes": label}, 1.0, float(np.mean(right)))
    q, k, v = _drawn(seed, 20, 6, 6)
    for label, arrays in (("d_q ≠ d_k", (q, k[..., :12], v)), ("n_k ≠ n_v", (q, k, v[:, :, :4]))):
        try:
            one.attend(*arrays, causal=False, scale=_SCALE)
            answered = 1.0
        except ValueError:
            answered = 0.0
        yield one.row("share answered", {"shapes": label}, 0.0, answered)


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
    """Errors over their budgets, and shares of pairs with a weight."""
    figure, (errors, pairs) = new_figure(2, 1, width=12.5, height=4.4, sharey=True)
    by_error = pick(finding.rows, "error / error budget")
    names = list(dict.fromkeys(str(row.where["backend"]) for row in by_error))
    shared = pick(finding.rows, "share of pairs with a weight", backend=tuple(names))
    for panel, shown, keys in ((errors, by_error, ("dtype", "mask")), (pairs, shared, ("mask",))):
        kinds: dict[str, list[Row]] = {}
        for row in shown:
            kinds.setdefault(", mask: ".join(str(row.where[key]) for key in keys), []).append(row)
        for (kind, rows), colour, marker in zip(kinds.items(), CYCLE, MARKERS, strict=False):
            places = [names.index(str(row.where["backend"])) for row in rows]
            label = f"mask: {kind}" if panel is pairs else kind
            x = [row.measured for row in rows]
            panel.plot(x, places, marker, color=colour, mfc="none", label=label, clip_on=False)
            panel.axvline(rows[0].predicted, color=BLACK if panel is errors else colour, linewidth=1.2)
        panel.set_xlim(left=0)
        if kinds:
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, fontsize=9, frameon=False)
    for place, name in enumerate(names):
        if not pick(by_error, dtype="float64", backend=name):
            pairs.text(0.02, place, "no float64", color=GREY, fontsize=8.5, va="center")
    errors.set_yticks(range(len(names)), names)
    entitle(errors, "No error above what roundings predict", "relative error / error budget", "")
    entitle(pairs, "A causal mask keeps (n + 1)/2n of the pairs", "share of pairs with a weight", "")
    return figure


EXPERIMENT = Experiment(
    title="The formula, index by index",
    question="What does softmax(scale · q kᵀ) v compute, and which shapes does it take?",
    theory="There is a score for every pair of query and key, s_ij = scale · q_i·k_j. The weights of a "
    "query are positive and add up to 1 over the keys it sees, p_ij = e^{s_ij} / Σ_l e^{s_il}, and its "
    "output is the mean of the values with these weights, o_i = Σ_j p_ij v_j (Vaswani et al. 2017, section "
    "3.2.1). So the numbers of queries and keys are independent, as are the widths of keys and values; the "
    "same permutation of all tokens permutes the output; and under a causal mask the output of a prefix "
    "does not depend on what follows it.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Left: relative error of each backend over the budget of an implementation that rounds all it "
    "may; left of the line the error is explained by rounding. Right: share of the pairs of query and key "
    "that have a weight, without a mask and with a causal one, in float64; lines are predicted.",
    lesson="The table of scores is in general not symmetric, even for n queries and n keys; it is where queries "
    "and keys are equal. For one query a score is the key's length times a cosine, up to a factor: a longer key can "
    "outweigh a better aligned one. The output is linear in the values, and never larger than the largest of them.",
    shown=(
        Shown("error / error budget", every=True),
        Shown("‖S − Sᵀ‖² / n²"),
        Shown("share of pairs with a weight"),
        Shown("rms of Σ s v / rms of Σ p v"),
        Shown("share answered right"),
    ),
)
