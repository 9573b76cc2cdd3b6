"""What do heads do, and what do they cost? Initialisation, independence, concatenation and arithmetic.

With |x|² = d_model, as after a layer norm, the variance of the logits at initialisation follows from the projections
alone, (d_model σ_w²)². Every head projects the whole embedding, and none sees another's answer. One head of dimension
d_model/H takes 1/H of the operations of a full-width one, and H of them as many: 4 n² d_model, with n² exponentials for
each. How long they take is measured, and nothing predicts it. What joins the heads is W_O: without it a block's output
is their concatenation and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.contender import in_this_process
from attnlab.experiments import depth
from attnlab.experiments.estimates import mean_row
from attnlab.experiments.finding import Finding, Row, Where, pick
from attnlab.experiments.panels import numbers, of_first_backend
from attnlab.experiments.responses import read_logits
from attnlab.experiments.survey import OpenBackend, Survey, agreement, generator
from attnlab.figures import BLACK, BLUE, backend_styles, entitle, legend, new_figure, powers_of_two
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload
from attnlab.race.instruments import PEAK_MEMORY
from attnlab.theory import initial_logit_variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODEL_DIM, HEAD_DIM = 256, 32
#: independent draws of both projections, and tokens of each
_DRAWS, _TOKENS = 48, 24
HEAD_COUNTS = (1, 2, 4, 8, 16)
_COST_LENGTH = 384
MEMORY_LENGTH, MEMORY_HEADS = 2048, 16
#: rounding of a sum of d_model products in float64, with room
_ROUNDING = 1e-12

Draw = Callable[[np.random.Generator], NDArray[np.float64]]


def _uniform(limit: float) -> Draw:
    return lambda rng: rng.uniform(-limit, limit, (MODEL_DIM, MODEL_DIM + 1))


#: (scheme of the theory, its weight_std, how a projection is drawn; the last column is the bias)
SCHEMES: Mapping[str, tuple[str, float | None, Draw]] = {
    "nn.MultiheadAttention (one Xavier matrix)": (
        "fused_xavier",
        None,
        _uniform(math.sqrt(6 / (4 * MODEL_DIM))),
    ),
    "separate Xavier matrices": ("xavier", None, _uniform(math.sqrt(6 / (2 * MODEL_DIM)))),
    "nn.Linear's default": ("linear_default", None, _uniform(1 / math.sqrt(MODEL_DIM))),
    "N(0, .02²)": ("normal", 0.02, lambda rng: 0.02 * rng.standard_normal((MODEL_DIM, MODEL_DIM + 1))),
}


def measure(survey: Survey) -> None:
    """Var(logit) at four initialisations, and what heads do to one another and to the cost, by backend.

    Variances: `initial_logit_variance`, the spread over independent projections being the error. Structure: exact,
    up to rounding. FLOPs of one head and of all against 4 n² d_model, and the measured time of all over that of one
    full-width head, of which nothing is predicted.
    """
    survey.facts["d_model"] = MODEL_DIM
    survey.each(_initialisation, _structure, projected_heads, _cost)
    survey.each(partial(memory, folders=survey.folders), dtype="float32")
    survey.one(depth.by_layer)


def _heads_of(x: NDArray[Any], count: int) -> NDArray[Any]:
    """(batch, length, d_model) as (batch, heads, length, head_dim): split, then transposed."""
    batch, length, width = x.shape
    return np.ascontiguousarray(x.reshape(batch, length, count, width // count).swapaxes(1, 2))


def _joined(heads: NDArray[Any]) -> NDArray[Any]:
    """The inverse of `_heads_of`: heads side by side."""
    batch, count, length, dim = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, count * dim)


def _initialisation(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Each draw of W_q and W_k is a cluster: within it all logits share the projections."""
    heads = MODEL_DIM // HEAD_DIM
    for number, (label, (scheme, weight_std, draw)) in enumerate(SCHEMES.items()):
        rng = generator(seed, 1300, number)
        squares = []
        for _ in range(_DRAWS):
            x = rng.standard_normal((2, 1, _TOKENS, MODEL_DIM))
            x *= math.sqrt(MODEL_DIM) / np.linalg.norm(x, axis=-1, keepdims=True)
            if label.startswith("nn.Linear"):  # the only one with a bias that is not 0
                x = np.concatenate([x, np.ones((2, 1, _TOKENS, 1))], axis=-1)
            q, k = (_heads_of(tokens @ draw(rng)[:, : x.shape[-1]].T, heads) for tokens in x)
            logits = read_logits(one.attend, q, k, scale=HEAD_DIM**-0.5)
            squares.append(np.mean(logits**2))
        quantity, where = "variance of the logits at initialisation", {"backend": one.name, "scheme": label}
        expected = initial_logit_variance(MODEL_DIM, scheme, weight_std)
        yield mean_row(quantity, where, np.array(squares)[:, None], predicted=expected)


def _structure(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Independence of heads, and what concatenation and W_O are."""
    rng = generator(seed, 1400)
    count, length = MODEL_DIM // HEAD_DIM, 12
    q, k, v = (_heads_of(rng.standard_normal((1, length, MODEL_DIM)), count) for _ in range(3))
    attend = partial(one.attend, causal=False, scale=HEAD_DIM**-0.5)
    together = attend(q, k, v)
    where: Where = {"backend": one.name, "heads": count}
    changed = [array.copy() for array in (q, k, v)]
    for array in changed:
        array[:, 3] += 1.0
    others = np.delete(attend(*changed) != together, 3, axis=1)
    yield Row.compare("elements of other heads changed by one head", where, 0.0, others.sum())
    alone = [attend(*(array[:, h : h + 1] for array in (q, k, v))) for h in range(count)]
    yield _exact(
        "all heads at once − a loop over heads", where, np.abs(np.concatenate(alone, axis=1) - together).max()
    )
    concatenated = _joined(together)
    w_o = rng.standard_normal((MODEL_DIM, MODEL_DIM)) / math.sqrt(MODEL_DIM)
    block = concatenated @ w_o
    parts = sum(together[:, h] @ w_o[h * HEAD_DIM : (h + 1) * HEAD_DIM] for h in range(count))
    yield _exact("Concat(z) W_O − Σ_h z^h W_O^h", where, np.abs(block - parts).max())
    unchanged = concatenated @ np.eye(MODEL_DIM)
    yield _exact("Concat(z) I − Concat(z)", where, np.abs(unchanged - concatenated).max())
    # W_O with independent unit-variance-preserving entries turns the vector: |z − zW|² = |z|² + |zW|² on average
    distance = float(np.linalg.norm(block - concatenated) / np.linalg.norm(concatenated))
    error = 4 / math.sqrt(MODEL_DIM)  # a random projection of a few independent rows, at most
    yield Row.compare("‖Concat(z) W_O − Concat(z)‖ / ‖Concat(z)‖", where, math.sqrt(2), distance, slack=error)


def projected_heads(one: OpenBackend, seed: int) -> Iterator[Row]:
    """What a head sees of the embedding, and what becomes of heads that branch after the weighted sum."""
    rng = generator(seed, 1450)
    count, length = MODEL_DIM // HEAD_DIM, 12
    x = rng.standard_normal((1, length, MODEL_DIM))
    projections = rng.standard_normal((3, MODEL_DIM, MODEL_DIM)) / math.sqrt(MODEL_DIM)

    def heads(tokens: NDArray[Any], dims: int) -> NDArray[Any]:
        q, k, v = (_heads_of(tokens @ w, MODEL_DIM // dims) for w in projections)
        return one.attend(q, k, v, causal=False, scale=dims**-0.5)

    before = heads(x, HEAD_DIM)
    moved = x.copy()
    moved[..., 5] += 1.0
    changed = (heads(moved, HEAD_DIM) != before).any(axis=(0, 2, 3)).sum()
    where: Where = {"backend": one.name, "heads": count}
    yield Row.compare("heads changed by one coordinate of the embedding", where, count, changed)
    # one softmax for all, whose output is split: every head then has the same weights
    after, side_by_side = _joined(heads(x, MODEL_DIM)), _joined(before)
    distance = float(np.linalg.norm(after - side_by_side) / np.linalg.norm(side_by_side))
    quantity = "‖heads after the weighted sum − heads before it‖ / ‖heads before it‖"
    yield Row.compare(quantity, where, 0.0, distance, slack=_ROUNDING, relation=">")


def _exact(quantity: str, where: Mapping[str, str | float], found: float) -> Row:
    return Row.compare(quantity, where, 0.0, found, slack=_ROUNDING)


def _cost(one: OpenBackend, seed: int) -> Iterator[Row]:
    """FLOPs counted in what really ran where that can be seen, and time, against the number of heads.

    Nothing of a slow backend, whose calls at this length take too long.
    """
    if one.slow:
        return
    rng = generator(seed, 1500)
    n = _COST_LENGTH
    x = rng.standard_normal((3, 1, n, MODEL_DIM)).astype(np.float32)
    seconds: dict[int, list[float]] = {}
    for _ in range(4):  # rounds, so that a slow spell meets every head count
        for count in HEAD_COUNTS:
            q, k, v = (_heads_of(one_x, count) for one_x in x)
            start = time.process_time()
            one.attend(q, k, v, causal=False, scale=(MODEL_DIM / count) ** -0.5)
            seconds.setdefault(count, []).append(time.process_time() - start)
    for count in HEAD_COUNTS:
        where: Where = {"backend": one.name, "heads": count, "length": n}
        workload = Workload(heads=count, queries=n, keys=n, head_dim=MODEL_DIM // count)
        flops = _counted_flops(one, workload, x)
        counted = {**where, "counted": "by PyTorch" if flops else "by arithmetic"}
        share = (flops or workload.flops) / (4 * n * n * MODEL_DIM)
        yield Row.compare("FLOPs / (4 n² d_model)", counted, 1.0, share, slack=1e-12)
        alone = Workload(heads=1, queries=n, keys=n, head_dim=MODEL_DIM // count)
        flops = _counted_flops(one, alone, x[..., : MODEL_DIM // count])
        counted = {**where, "counted": "by PyTorch" if flops else "by arithmetic"}
        share = (flops or alone.flops) / (4 * n * n * MODEL_DIM)
        yield Row.compare("FLOPs of one head / (4 n² d_model)", counted, 1 / count, share, slack=1e-12)
        if count > 1:
            ratio = min(seconds[count]) / min(seconds[1])
            yield Row.only_measured("time / time of one head", where, ratio)


def memory(one: OpenBackend, seed: int, folders: Sequence[Path | str]) -> Iterator[Row]:
    """Peak memory of a call in float32, its inputs not counted, and over that of the table of scores, 4Hn² bytes.

    Nothing is predicted of it. Nothing of a slow backend.
    """
    if one.slow:
        return
    rng, n = generator(seed, 1550), MEMORY_LENGTH
    shape = (3, 1, MEMORY_HEADS, n, MODEL_DIM // 4)
    problem = Problem.of(*rng.standard_normal(shape, dtype=np.float32), dtype="float32")
    backend, workload = in_this_process(one.name, folders), Workload.of_problem(problem)
    readings = PEAK_MEMORY.measure(backend.open("cpu"), backend.bind(workload, problem))
    where: Where = {"backend": one.name, "heads": MEMORY_HEADS, "length": n}
    peak = min(readings.samples)
    yield Row.only_measured("peak memory, MiB", where, peak / 2**20)
    yield Row.only_measured("peak memory / table of scores", where, peak / (4 * MEMORY_HEADS * n * n))


def _counted_flops(one: OpenBackend, workload: Workload, x: NDArray[Any]) -> int:
    """What PyTorch's own counter sees in one call; 0 where the backend does not compute with PyTorch."""
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = (_heads_of(one_x, workload.heads) for one_x in x)
    with FlopCounterMode(display=False) as counter:
        one.attend(q, k, v, causal=False, scale=workload.scale)
    return int(counter.get_total_flops())


def conclusion(rows: Sequence[Row]) -> str:
    """Variances at initialisation, independence, and the time of many heads over that of one."""
    if not rows:
        return "No backend could be measured."
    start = ", ".join(
        f"{row.measured:.3f} with {row.where['scheme']}"
        for row in {row.where["scheme"]: row for row in rows if "scheme" in row.where}.values()
    )
    others = pick(rows, "elements of other heads changed by one head")
    independent = others and all(row.passed for row in others)
    untouched = " To the last bit, no head changes another." if independent else ""
    many = [row.measured for row in pick(rows, "time / time of one head", heads=HEAD_COUNTS[-1])]
    cost = (
        f" At the same d_model {HEAD_COUNTS[-1]} heads take {min(many):.1f} to "
        f"{max(many):.1f} times the processor time of one, by backend."
        if many
        else ""
    )
    peaks = pick(rows, "peak memory, MiB")
    low, high = (side(peaks, key=lambda row: row.measured) if peaks else None for side in (min, max))
    kept = (
        f" At n = {MEMORY_LENGTH} with {MEMORY_HEADS} heads a call in float32 takes {low.measured:.3g} MiB "
        f"({low.where['backend']}) to {high.measured:.3g} MiB ({high.where['backend']})."
        if low and high
        else ""
    )
    return (
        f"At d_model = {MODEL_DIM} the logits start with variance {start}.{untouched}{depth.told(rows)}{cost}{kept} "
        f"{agreement(rows, 'theory')}."
    )


def draw(finding: Finding) -> Figure:
    """Variance at initialisation, its growth with depth, and FLOPs and time against the number of heads."""
    figure, (start, deeper, cost) = new_figure(3, 1, width=17.5, height=4.6)
    depth.draw(deeper, finding.rows)
    _by_scheme(start, [row for row in finding.rows if "scheme" in row.where])
    _by_heads(cost, finding.rows)
    title = "Initialisation sets the variance (bars: predicted)"
    entitle(start, title, "variance of a logit at initialisation", "")
    x, y = f"heads, at d_model = {MODEL_DIM}", "time, or FLOPs, over those of one head"
    entitle(cost, "More heads: equal FLOPs, not equal time", x, y)
    return figure


def _by_scheme(panel: Axes, rows: Sequence[Row]) -> None:
    names = list(SCHEMES)
    for row in rows:
        place, error = names.index(str(row.where["scheme"])), [5 * row.standard_error]
        panel.errorbar([row.measured], [place], xerr=error, fmt="o", color=BLUE, mfc="none", ms=7)
        panel.plot([row.predicted] * 2, [place - 0.3, place + 0.3], color=BLACK, linewidth=1.6)
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(-0.6, len(names) - 0.4)
    panel.set_xscale("log")


def _by_heads(panel: Axes, rows: Sequence[Row]) -> None:
    times, flops = pick(rows, "time / time of one head"), pick(rows, "FLOPs / (4 n² d_model)")
    for name, style in backend_styles([str(row.where["backend"]) for row in times]).items():
        mine = pick(times, backend=name)
        panel.plot(numbers(mine, "heads"), [row.measured for row in mine], label=name, mfc="none", **style)
    y = [row.measured for row in flops]
    panel.plot(numbers(flops, "heads"), y, "_", color=BLACK, ms=22, mew=2, label="FLOPs, all heads")
    alone = of_first_backend(pick(rows, "FLOPs of one head / (4 n² d_model)"))
    share = [row.measured for row in alone]
    panel.plot(numbers(alone, "heads"), share, ":", color=BLACK, label="FLOPs, one of them")
    powers_of_two(panel, HEAD_COUNTS)
    panel.set_ylim(bottom=0)
    legend(panel, fontsize=8.5)
