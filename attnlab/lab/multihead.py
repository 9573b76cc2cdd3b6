"""Heads: logits at initialisation, independence, cost, and the size of q·k by layer.

How long heads take is measured, and nothing predicts it. The stack of layers is x ← x + W_O Attention(x) at
initialisation, with projections that preserve variance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.figures import BLACK, BLUE, ORANGE, backend_styles, entitle, legend, new_figure, powers_of_two
from attnlab.lab import panels
from attnlab.lab.finding import Array, Experiment, Finding, Row, Shown, pick, values
from attnlab.lab.observables import read_logits
from attnlab.lab.survey import OpenBackend, Survey, agreement, generator, mean_over_clusters
from attnlab.lab.theory import initial_logit_variance
from attnlab.race.instruments import PEAK_MEMORY
from attnlab.workload.inputs import Inputs
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODEL_DIM, HEAD_DIM = 256, 32
HEADS = MODEL_DIM // HEAD_DIM
#: independent draws of both projections, and tokens of each
_DRAWS, _TOKENS = 48, 24
HEAD_COUNTS = (1, 2, 4, 8, 16)
_COST_LENGTH = 384
MEMORY_LENGTH, MEMORY_HEADS = 2048, 16
#: rounding of a sum of d_model products in float64, with room
_ROUNDING = 1e-12
#: layers of the stack; independent stacks, their tokens, dimensions of a token, heads
LAYERS, NORMS = 6, ("none", "pre-norm")
_STACKS, _STACK_TOKENS, _STACK_DIM, _STACK_HEADS = 24, 64, 128, 4
_STACK_HEAD_DIM = _STACK_DIM // _STACK_HEADS
START = "variance of the logits at initialisation"
UNTOUCHED = "elements of other heads changed by one head"
SEEN = "heads changed by one coordinate of the embedding"
AFTER = "‖heads after the weighted sum − heads before it‖ / ‖heads before it‖"
FLOPS, FLOPS_ALONE = "FLOPs / (4 n² d_model)", "FLOPs of one head / (4 n² d_model)"
TIME, PEAK = "time / time of one head", "peak memory, MiB"
SIZE, RATIO = "Var(q·k) / d_k", "Var(q·k) of the last layer, unscaled over scaled"

#: scheme of the theory, its weight_std, and half the width of the uniform law that a projection is drawn from;
#: the last column of a projection is the bias
SCHEMES: Mapping[str, tuple[str, float | None, float]] = {
    "nn.MultiheadAttention (one Xavier matrix)": ("fused_xavier", None, (6 / (4 * MODEL_DIM)) ** 0.5),
    "separate Xavier matrices": ("xavier", None, (6 / (2 * MODEL_DIM)) ** 0.5),
    "nn.Linear's default": ("linear_default", None, MODEL_DIM**-0.5),
    "N(0, .02²)": ("normal", 0.02, 0.0),
}


def measure(survey: Survey) -> None:
    """Var(logit) at four initialisations, and what heads do to one another and to the cost, by backend.

    Variances: `initial_logit_variance`, the spread over independent projections being the error. Structure: exact,
    up to rounding. FLOPs of one head and of all against 4 n² d_model, and the measured time of all over that of one
    full-width head, of which nothing is predicted.
    """
    survey.facts["d_model"] = MODEL_DIM
    survey.each(_initialisation, _structure, projected_heads, _cost)
    survey.each(memory, dtype="float32")
    survey.one(by_layer)


def _heads_of(x: NDArray[Any], count: int) -> NDArray[Any]:
    """(batch, length, d_model) as (batch, heads, length, head_dim): split, then transposed."""
    batch, length, width = x.shape
    return np.ascontiguousarray(x.reshape(batch, length, count, width // count).swapaxes(1, 2))


def _joined(heads: NDArray[Any]) -> NDArray[Any]:
    """The inverse of `_heads_of`: heads side by side."""
    batch, count, length, dim = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, count * dim)


def _normalised(x: Array) -> Array:
    """Every vector at |x|² = its dimension."""
    return np.asarray(x * (math.sqrt(x.shape[-1]) / np.linalg.norm(x, axis=-1, keepdims=True)))


def _apart(one: NDArray[Any], other: NDArray[Any]) -> float:
    """‖one − other‖ / ‖other‖."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def _initialisation(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Each draw of W_q and W_k is a cluster: within it all logits share the projections."""
    for number, (label, (scheme, weight_std, half)) in enumerate(SCHEMES.items()):
        rng, shape, squares = generator(seed, 1300, number), (MODEL_DIM, MODEL_DIM + 1), []
        for _ in range(_DRAWS):
            x = _normalised(rng.standard_normal((2, 1, _TOKENS, MODEL_DIM)))
            if scheme == "linear_default":  # the only one with a bias that is not 0
                x = np.concatenate([x, np.ones((2, 1, _TOKENS, 1))], axis=-1)
            drawn = (
                weight_std * rng.standard_normal(shape) if weight_std else rng.uniform(-half, half, shape)
                for _ in range(2)
            )
            q, k = (_heads_of(of @ w[:, : x.shape[-1]].T, HEADS) for of, w in zip(x, drawn, strict=True))
            squares.append([np.mean(read_logits(one.attend, q, k, scale=HEAD_DIM**-0.5) ** 2)])
        expected = initial_logit_variance(MODEL_DIM, scheme, weight_std)
        yield one.mean(START, {"scheme": label}, np.array(squares), expected)


def _structure(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Independence of heads, and what concatenation and W_O are."""
    rng = generator(seed, 1400)
    q, k, v = (_heads_of(rng.standard_normal((1, 12, MODEL_DIM)), HEADS) for _ in range(3))
    attend, where = partial(one.attend, causal=False, scale=HEAD_DIM**-0.5), {"heads": HEADS}
    together = attend(q, k, v)
    changed = [array.copy() for array in (q, k, v)]
    for array in changed:
        array[:, 3] += 1.0
    others = np.delete(attend(*changed) != together, 3, axis=1)
    yield one.row(UNTOUCHED, where, 0.0, others.sum())
    alone = [attend(*(array[:, h : h + 1] for array in (q, k, v))) for h in range(HEADS)]
    joined, w_o = _joined(together), rng.standard_normal((MODEL_DIM, MODEL_DIM)) / math.sqrt(MODEL_DIM)
    block = joined @ w_o
    parts = sum(together[:, h] @ w_o[h * HEAD_DIM : (h + 1) * HEAD_DIM] for h in range(HEADS))
    for quantity, off in (
        ("all heads at once − a loop over heads", np.concatenate(alone, axis=1) - together),
        ("Concat(z) W_O − Σ_h z^h W_O^h", block - parts),
        ("Concat(z) I − Concat(z)", joined @ np.eye(MODEL_DIM) - joined),
    ):
        yield one.row(quantity, where, 0.0, np.abs(off).max(), slack=_ROUNDING)
    # W_O with independent unit-variance-preserving entries turns the vector: |z − zW|² = |z|² + |zW|² on average
    error = 4 / math.sqrt(MODEL_DIM)  # a random projection of a few independent rows, at most
    quantity = "‖Concat(z) W_O − Concat(z)‖ / ‖Concat(z)‖"
    yield one.row(quantity, where, math.sqrt(2), _apart(block, joined), slack=error)


def projected_heads(one: OpenBackend, seed: int) -> Iterator[Row]:
    """What a head sees of the embedding, and what becomes of heads that branch after the weighted sum."""
    rng = generator(seed, 1450)
    x = rng.standard_normal((1, 12, MODEL_DIM))
    projections = rng.standard_normal((3, MODEL_DIM, MODEL_DIM)) / math.sqrt(MODEL_DIM)

    def heads(tokens: NDArray[Any], dims: int) -> NDArray[Any]:
        q, k, v = (_heads_of(tokens @ w, MODEL_DIM // dims) for w in projections)
        return one.attend(q, k, v, causal=False, scale=dims**-0.5)

    before, moved = heads(x, HEAD_DIM), x.copy()
    moved[..., 5] += 1.0
    changed = (heads(moved, HEAD_DIM) != before).any(axis=(0, 2, 3)).sum()
    yield one.row(SEEN, {"heads": HEADS}, HEADS, changed)
    # one softmax for all, whose output is split: every head then has the same weights
    distance = _apart(_joined(heads(x, MODEL_DIM)), _joined(before))
    yield one.row(AFTER, {"heads": HEADS}, 0.0, distance, slack=_ROUNDING, relation=">")


def _cost(one: OpenBackend, seed: int) -> Iterator[Row]:
    """FLOPs counted in what really ran where that can be seen, and time, against the number of heads.

    Nothing of a slow backend, whose calls at this length take too long.
    """
    if one.slow:
        return
    from torch.utils.flop_counter import FlopCounterMode

    rng, n = generator(seed, 1500), _COST_LENGTH
    x = rng.standard_normal((3, 1, n, MODEL_DIM)).astype(np.float32)
    seconds: dict[int, list[float]] = {count: [] for count in HEAD_COUNTS}
    for _ in range(4):  # rounds, so that a slow spell meets every head count
        for count in HEAD_COUNTS:
            q, k, v = (_heads_of(one_x, count) for one_x in x)
            start = time.process_time()
            one.attend(q, k, v, causal=False, scale=(MODEL_DIM / count) ** -0.5)
            seconds[count].append(time.process_time() - start)
    for count in HEAD_COUNTS:
        where, head_dim = {"heads": count, "length": n}, MODEL_DIM // count
        for quantity, heads, expected in ((FLOPS, count, 1.0), (FLOPS_ALONE, 1, 1 / count)):
            workload = Workload(heads=heads, queries=n, keys=n, head_dim=head_dim)
            q, k, v = (_heads_of(one_x[..., : heads * head_dim], heads) for one_x in x)
            with FlopCounterMode(display=False) as counter:
                one.attend(q, k, v, causal=False, scale=workload.scale)
            flops = counter.get_total_flops()  # 0 of a backend that does not compute with PyTorch
            counted = {**where, "counted": "by PyTorch" if flops else "by arithmetic"}
            share = (flops or workload.flops) / (4 * n * n * MODEL_DIM)
            yield one.row(quantity, counted, expected, share, slack=1e-12)
        if count > 1:
            yield one.row(TIME, where, None, min(seconds[count]) / min(seconds[1]))


def memory(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Peak memory of a call in float32, its inputs not counted, and over that of the table of scores, 4Hn² bytes.

    Nothing is predicted of it. Nothing of a slow backend.
    """
    if one.slow:
        return
    rng, n = generator(seed, 1550), MEMORY_LENGTH
    shape = (3, 1, MEMORY_HEADS, n, MODEL_DIM // 4)
    problem = Inputs.of(*rng.standard_normal(shape, dtype=np.float32), dtype="float32")
    call = one.backend.bind(Workload.of_problem(problem), problem)
    call()  # a first call takes workspaces that are kept
    peak = min(PEAK_MEMORY.measure(one.backend.open("cpu"), call).samples)
    where = {"heads": MEMORY_HEADS, "length": n}
    yield one.row(PEAK, where, None, peak / 2**20)
    yield one.row("peak memory / table of scores", where, None, peak / (4 * MEMORY_HEADS * n * n))


def by_layer(one: OpenBackend, seed: int) -> Iterator[Row]:
    """The mean square of q·k over d_k at each layer, and at the last without the scale over with it.

    Predicted where the length of x is known: at the first layer, and at all of them under a pre-norm. Standard errors
    are those of independent stacks, which are the same with the scale and without.
    """
    for norm in NORMS:
        last: list[Array] = []
        for scaling, scale in (("unscaled", 1.0), ("scaled", _STACK_HEAD_DIM**-0.5)):
            for layer, sizes in enumerate(_sizes(one, seed, norm, scale), start=1):
                expected = 1.0 if norm == "pre-norm" or layer == 1 else None
                where = {"norm": norm, "scaling": scaling, "layer": layer}
                yield one.mean(SIZE, where, sizes[:, None], expected)
            last.append(sizes)
        unscaled, scaled = last
        ratio, expected = float(unscaled.mean() / scaled.mean()), 1.0 if norm == "pre-norm" else None
        # of a ratio of two means: that of the mean of a − ratio·b, over the mean of b
        _, error = mean_over_clusters(((unscaled - ratio * scaled) / scaled.mean())[:, None])
        yield one.row(RATIO, {"norm": norm, "layer": LAYERS}, expected, ratio, standard_error=error)


def _sizes(one: OpenBackend, seed: int, norm: str, scale: float) -> Iterator[Array]:
    """E(q·k)²/d_k of each stack, (stacks,), a layer at a time."""
    rng = generator(seed, 1700)
    x = _normalised(rng.standard_normal((_STACKS, _STACK_TOKENS, _STACK_DIM)))
    for _ in range(LAYERS):
        weights = rng.standard_normal((4, _STACKS, _STACK_DIM, _STACK_DIM)) / math.sqrt(_STACK_DIM)
        seen = _normalised(x) if norm == "pre-norm" else x
        q, k, v = (_heads_of(seen @ w, _STACK_HEADS) for w in weights[:3])
        yield np.asarray(((q @ k.swapaxes(-1, -2)) ** 2).mean(axis=(1, 2, 3)) / _STACK_HEAD_DIM)
        x = x + _joined(one.attend(q, k, v, causal=False, scale=scale)) @ weights[3]


def conclusion(rows: Sequence[Row]) -> str:
    """Variances at initialisation, independence, size by layer, and what many heads take."""
    if not rows:
        return "No backend could be measured."
    last_of_scheme = {row.where["scheme"]: row.measured for row in pick(rows, START)}
    start = ", ".join(f"{variance:.3f} with {scheme}" for scheme, variance in last_of_scheme.items())
    told = [f"At d_model = {MODEL_DIM} the logits start with variance {start}."]
    others, sizes = pick(rows, UNTOUCHED), pick(rows, SIZE)
    if others and all(row.passed for row in others):
        told.append("To the last bit, no head changes another.")
    if sizes:
        unscaled, scaled, pre_unscaled, pre_scaled = (
            ", ".join(f"{row.measured:.3g}" for row in pick(sizes, norm=norm, scaling=scaling))
            for norm in NORMS
            for scaling in ("unscaled", "scaled")
        )
        told.append(
            f"Through {LAYERS} layers (d_model {_STACK_DIM}, d_k {_STACK_HEAD_DIM}, {_STACK_TOKENS} tokens) without "
            f"a norm Var(q·k)/d_k is {unscaled} unscaled and {scaled} with 1/√d_k; under a pre-norm {pre_unscaled} "
            f"and {pre_scaled}."
        )
    many = [row.measured for row in pick(rows, TIME, heads=HEAD_COUNTS[-1])]
    if many:
        told.append(
            f"At the same d_model {HEAD_COUNTS[-1]} heads take {min(many):.1f} to {max(many):.1f} times the processor "
            "time of one, by backend."
        )
    peaks = sorted(pick(rows, PEAK), key=lambda row: row.measured)
    if peaks:
        low, high = (f"{row.measured:.3g} MiB ({row.where['backend']})" for row in (peaks[0], peaks[-1]))
        told.append(
            f"At n = {MEMORY_LENGTH} with {MEMORY_HEADS} heads a call in float32 takes {low} to {high}."
        )
    return " ".join([*told, f"{agreement(rows, 'theory')}."])


def draw(finding: Finding) -> Figure:
    """Variances at initialisation, the size of q·k by layer, and operations and time against the heads."""
    figure, (start, deeper, cost) = new_figure(3, 1, width=17.5, height=4.6)
    _by_layer(deeper, finding.rows)
    names = list(SCHEMES)
    for row in pick(finding.rows, START):
        place, error = names.index(str(row.where["scheme"])), [5 * row.standard_error]
        start.errorbar([row.measured], [place], xerr=error, fmt="o", color=BLUE, mfc="none", ms=7)
        start.plot([row.predicted] * 2, [place - 0.3, place + 0.3], color=BLACK, linewidth=1.6)
    start.set_yticks(range(len(names)), names)
    start.set_ylim(-0.6, len(names) - 0.4)
    start.set_xscale("log")
    _by_heads(cost, finding.rows)
    title = "Initialisation sets the variance (bars: predicted)"
    entitle(start, title, "variance of a logit at initialisation", "")
    x, y = f"heads, at d_model = {MODEL_DIM}", "time, or FLOPs, over those of one head"
    entitle(cost, "More heads: equal FLOPs, not equal time", x, y)
    return figure


def _by_layer(panel: Axes, rows: Sequence[Row]) -> None:
    """The sizes against the layer: solid without a norm, dashed with a pre-norm, where theory has 1 throughout."""
    entitle(panel, "Depth enters where nothing is normalised", "layer", SIZE)
    panel.set_yscale("log")
    panel.axhline(1.0, color=BLACK, linewidth=1.0)
    # both lie at 1 with a pre-norm: the dashes of one fill the gaps of the other
    lines: tuple[tuple[str, str, Any, Any], ...] = (
        ("unscaled", ORANGE, "-", (0, (5, 5))),
        ("scaled", BLUE, "-", (5, (5, 5))),
    )
    for norm, at in (("none", 0), ("pre-norm", 1)):
        for scaling, colour, *styles in lines:
            if mine := pick(rows, SIZE, norm=norm, scaling=scaling):
                look = {"linestyle": styles[at], "color": colour, "linewidth": 1.4}
                name = f"{scaling}, {('no norm', 'pre-norm')[at]}"
                panel.plot(values(mine, "layer"), values(mine, "measured"), label=name, **look)
                panels.measured(panel, mine, "layer", colour, fmt="none")
    legend(panel, loc="upper left")


def _by_heads(panel: Axes, rows: Sequence[Row]) -> None:
    times, flops = pick(rows, TIME), pick(rows, FLOPS)
    for name, style in backend_styles([str(row.where["backend"]) for row in times]).items():
        mine = pick(times, backend=name)
        panel.plot(values(mine, "heads"), values(mine, "measured"), label=name, mfc="none", **style)
    look: dict[str, Any] = {"color": BLACK, "ms": 22, "mew": 2, "label": "FLOPs, all heads"}
    panel.plot(values(flops, "heads"), values(flops, "measured"), "_", **look)
    alone = panels.of_first_backend(pick(rows, FLOPS_ALONE))
    x, share = values(alone, "heads"), values(alone, "measured")
    panel.plot(x, share, ":", color=BLACK, label="FLOPs, one of them")
    powers_of_two(panel, HEAD_COUNTS)
    panel.set_ylim(bottom=0)
    legend(panel, fontsize=8.5)


EXPERIMENT = Experiment(
    title="Initialisation and heads",
    question="How large are logits at initialisation, and do heads interact or save arithmetic?",
    theory="For inputs with |x|² = d_model, as after a layer norm, and independent projection weights of "
    "variance σ_w², a logit scaled by 1/√d_k has the variance (d_model σ_w² + σ_b²)² at initialisation, σ_b² "
    "being that of the biases, 0 but for nn.Linear's default: 1 only for one of the four usual schemes. Each "
    "of H heads of dimension d_model/H projects the whole embedding and takes 1/H of the operations of a "
    "full-width head; together they take 4 n² d_model operations for QKᵀ and PV, whatever H is, and H n² "
    "exponentials. They meet in W_O alone. In a stack of layers with a pre-norm |x|² is d_model each time, "
    "and so the dot products have the same variance at every depth, whatever the scale; without a norm |x|² "
    "grows by what each layer adds.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Left: variance of the logits at four initialisations; bars are predicted, circles measured. "
    "Middle: E(q·k)²/d_k by layer, with bars of five standard errors. Right: operations and processor time "
    "of one call against the number of heads at the same d_model, over those of one full-width head. The "
    "times are of one thread in this process, without a prediction: a tendency, not a benchmark.",
    lesson="Many heads take the same matrix products as one of full width, and H times the exponentials; their time "
    "is another matter and differs by backend. And the scale 1/√d_k alone does not make the logits start with "
    "variance 1; the initialisation decides.",
    shown=(
        Shown("variance of the logits at initialisation"),
        Shown("Var(q·k) / d_k", {"layer": (1, 6)}),
        Shown("elements of other heads changed by one head"),
        Shown("FLOPs / (4 n² d_model)", {"heads": (1, 16), "counted": "by PyTorch"}),
        Shown("FLOPs of one head / (4 n² d_model)", {"heads": (1, 16), "counted": "by PyTorch"}),
        Shown("heads changed by one coordinate of the embedding"),
        Shown("‖heads after the weighted sum − heads before it‖ / ‖heads before it‖"),
        Shown("time / time of one head", {"heads": 16}, every=True),
        Shown("peak memory, MiB", every=True),
    ),
)
