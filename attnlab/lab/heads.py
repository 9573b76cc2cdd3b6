"""What each head's softmax does on the inputs that a model gave it, in float64, a block of rows at a time.

A row is one query: with logits s_j over the keys that it sees, weights p = softmax(s), n of them (a learned sink is
one more logit and weight). Of each head:

    β² = mean over rows of Var_j(s_j)               spread of the logits within a row; a row's mean moves no weight
    H = −Σ p ln p, max p, Σ p²                      means over rows
    ‖J‖_F², J = diag p − ppᵀ                        what a gradient on the weights becomes on the logits

and beside them what the random energy model (`attnlab.lab.random_energy`) expects of rows of as many independent
normal logits with the same β: the mean over the head's own rows, each with its own n and β. What a head is apart from
that, the dependence of its logits makes, which an untrained model has too (`attnlab.lab.untrained`). Rows that
see one key have no spread and no choice, and count nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.exact_attention import Rows, Softmax, blocks, softmax_rows
from attnlab.figures import BLACK, BLUE, GREY, ORANGE, entitle, lay_out, legend, new_figure, note
from attnlab.lab.theory import (
    critical_beta,
    float_format,
    jacobian_norm_squared,
    random_energy,
    underflow_threshold,
)
from attnlab.text import number_text
from attnlab.workload.inputs import Inputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

Array = NDArray[np.float64]

#: one key has a row to itself where it holds more than this: then no other key can
FROZEN = 0.5
#: a gradient is lost where the norm of the softmax's Jacobian is below this, as in the experiments
LOST = 1e-3


@dataclass(frozen=True)
class Head:
    """One head of one call, means over its rows unless said otherwise; entropies in nats, the rest dimensionless.

    beta : root mean square, over rows, of the logits' standard deviation within a row. critical : β_c = √(2 ln n), of
    rows of different n the root mean square. frozen_rows : share with a weight above 1/2. lost_rows : share with ‖J‖_F
    below 1e-3. jacobian_norm : root mean square of ‖J‖_F. first, separators : mass on the first token, and on special
    tokens after it; `nan` where there are none. sink : mass on a learned sink. largest_logit : max |s|, masked keys
    aside. largest_product : max |q·k|, before the scale. underflow : share of the exponentials e^(s − max s) that
    are 0 in float16. expected_... : by the random energy model.
    """

    layer: int
    head: int
    beta: float
    critical: float
    entropy: float
    largest_weight: float
    participation: float
    jacobian_norm: float
    frozen_rows: float
    lost_rows: float
    first: float
    separators: float
    sink: float
    largest_logit: float
    largest_product: float
    underflow: float
    expected_entropy: float
    expected_largest_weight: float
    expected_participation: float
    expected_jacobian_norm: float

    @property
    def beyond(self) -> bool:
        """Whether its logits are spread so far that as many independent ones would be frozen."""
        return self.beta > self.critical

    @property
    def departure(self) -> float:
        """Entropy less that of the random energy model, in nats: below 0 where it attends more sharply than chance."""
        return self.entropy - self.expected_entropy

    @property
    def float16_share(self) -> float:
        """Of float16's largest number, what the largest product before the scale takes."""
        return self.largest_product / float_format("float16").largest


def heads_of(layer: int, problem: Inputs, separators: Sequence[int] = ()) -> list[Head]:
    """Every head of one call, averaged over the batch. separators : positions of keys.

    Raises ValueError where no row sees two keys.
    """
    shape = problem.shape
    rows: list[list[dict[str, Array]]] = [[] for _ in range(shape.heads)]
    for part in blocks(problem):
        found = _of_rows(part, softmax_rows(part), list(separators), shape.keys)
        for place, head in enumerate(range(*part.at[1].indices(shape.heads))):
            rows[head].append({name: array[:, place].reshape(-1) for name, array in found.items()})
    return [
        _head(layer, head, {name: np.concatenate([one[name] for one in parts]) for name in parts[0]})
        for head, parts in enumerate(rows)
    ]


def _of_rows(part: Rows, soft: Softmax, separators: list[int], keys: int) -> dict[str, Array]:
    """One number a row of a block, each (batches, heads, rows)."""
    seen = np.broadcast_to(True if part.visible is None else part.visible, soft.scores.shape)
    n = seen.sum(axis=-1)
    mean = np.where(seen, soft.scores, 0.0).sum(axis=-1, keepdims=True) / np.maximum(n, 1)[..., None]
    variance = np.where(seen, (soft.scores - mean) ** 2, 0.0).sum(axis=-1) / np.maximum(n, 1)
    p = soft.weights
    surprise = np.where(p > 0, -p * np.log(np.where(p > 0, p, 1.0)), 0.0)
    under = seen & (soft.fall < -underflow_threshold("float16"))
    nothing = np.zeros(n.shape)
    return {
        "n": n.astype(np.float64),
        "variance": variance,
        "entropy": surprise.sum(axis=-1),
        "largest_weight": p.max(axis=-1),
        "participation": (p * p).sum(axis=-1),
        "jacobian": jacobian_norm_squared(np.where(n[..., None] > 0, p, 1.0 / p.shape[-1])),
        "first": p[..., 0],
        "separators": p[..., separators].sum(axis=-1) if separators else np.full(n.shape, math.nan),
        "sink": p[..., keys] if part.sink else nothing,
        "largest_logit": np.where(seen, np.abs(soft.scores), 0.0)[..., :keys].max(axis=-1),
        "largest_product": (np.abs(soft.raw[..., :keys]) / abs(part.scale)).max(axis=-1)
        if part.scale
        else nothing,
        "underflow": under.sum(axis=-1) / np.maximum(n, 1),
    }


def _head(layer: int, head: int, rows: dict[str, Array]) -> Head:
    chosen = rows["n"] > 1
    if not chosen.any():
        raise ValueError(
            "every query sees one key or none: the softmax has nothing to choose; give a longer text"
        )
    rows = {name: array[chosen] for name, array in rows.items()}
    null = expected(rows["n"], np.sqrt(rows["variance"]))
    means = ("entropy", "largest_weight", "participation", "first", "separators", "sink", "underflow")
    return Head(
        layer=layer,
        head=head,
        beta=math.sqrt(rows["variance"].mean()),
        critical=math.sqrt((2 * np.log(rows["n"])).mean()),
        jacobian_norm=math.sqrt(rows["jacobian"].mean()),
        frozen_rows=float((rows["largest_weight"] > FROZEN).mean()),
        lost_rows=float((rows["jacobian"] < LOST**2).mean()),
        largest_logit=float(rows["largest_logit"].max()),
        largest_product=float(rows["largest_product"].max()),
        expected_entropy=float(null.entropy.mean()),
        expected_largest_weight=float(null.largest_weight.mean()),
        expected_participation=float(null.participation.mean()),
        expected_jacobian_norm=math.sqrt(null.jacobian_norm_squared.mean()),
        **{name: float(rows[name].mean()) for name in means},
    )


# -- the null ----------------------------------------------------------------------------------------
# `attnlab.lab.random_energy` is exact and costs some hundredths of a second; a model has tens of thousands of rows.
# Here it is computed at nodes, and its logarithms are interpolated: in β by monotone cubics (Fritsch and Carlson 1980)
# through nodes that lie closest around the freezing line, in ln n linearly between nodes an octave apart, exactly at
# the n of rows that are all alike. A test holds what that costs below 1 % of each number.

#: nodes of β in units of the freezing one; above the last one the frozen law, in which everything goes with 1/β
_RATIOS = np.concatenate([np.linspace(0, 0.45, 7), np.linspace(0.5, 1.4, 16), np.geomspace(1.55, 24, 8)])
#: nodes of n are so far apart, in ln n
_STEP = math.log(2)


class Expected(NamedTuple):
    """Of each row, by the random energy model: H in nats, max p, Σ p², ‖J‖_F²."""

    entropy: Array
    largest_weight: Array
    participation: Array
    jacobian_norm_squared: Array


def expected(n: Array, beta: Array) -> Expected:
    """Of rows with n keys, 2 or more, whose logits have the standard deviation β: arrays of one shape.

    Beyond 24 β_c the entropy, 1 − max p, 1 − Σ p² and ‖J‖_F² fall as 1/β, as they do in the frozen phase.
    """
    n, beta = np.broadcast_arrays(np.asarray(n, np.float64), np.asarray(beta, np.float64))
    nodes, logs = _nodes(n), np.log(n).ravel()
    # in units of each n's own freezing β, in which the curves lie close together: (nodes, numbers, rows)
    tables = np.log([_at(node, beta.ravel() / np.sqrt(2 * logs)) for node in nodes])
    place = np.interp(logs, np.log(nodes), np.arange(len(nodes)))
    low, rows = place.astype(int), np.arange(n.size)
    high, share = np.minimum(low + 1, len(nodes) - 1), (place - low)[:, None]
    found = np.exp(tables[low, :, rows] * (1 - share) + tables[high, :, rows] * share).T
    found[0] *= logs
    return Expected(*(one.reshape(n.shape) for one in found))


def _nodes(n: Array) -> list[int]:
    """Numbers of keys at which the model is computed: the least and the most that there are, and octaves between."""
    low, high = int(n.min()), int(n.max())
    count = max(2, math.ceil(math.log(high / low) / _STEP) + 1)
    return sorted({*map(int, np.round(np.geomspace(low, high, count)))})


def _at(n: int, ratios: Array) -> Array:
    """The four numbers at β/β_c = `ratios`, the entropy over ln n: (4, ratios)."""
    from scipy.interpolate import PchipInterpolator

    last = float(_RATIOS[-1])
    found: Array = np.exp(PchipInterpolator(_RATIOS, _table(n), axis=1)(np.minimum(ratios, last)))
    fall = np.maximum(ratios / last, 1.0)
    found[0] /= fall
    found[3] /= fall
    found[1:3] = 1 - (1 - found[1:3]) / fall
    return found


@lru_cache(maxsize=256)
def _table(n: int) -> Array:
    """The logarithms of the four numbers at the nodes."""
    exact = [random_energy(n, float(ratio * critical_beta(n))) for ratio in _RATIOS]
    found = np.array([[getattr(one, name) for one in exact] for name in Expected._fields])
    found[0] /= math.log(n)
    return np.asarray(np.log(found))


# -- two figures: the spread of each head's logits, and its entropy against that of the null ----------

#: of the heads beyond the line so many are named, and so many of those furthest from chance
_NAMED = 8
#: part of a layer's place that its heads are spread over
_WIDTH = 0.72


def spread(heads: Sequence[Head]) -> tuple[Figure, str]:
    """β by layer and head with the freezing line, and what it shows in words."""
    layers = 1 + max(one.layer for one in heads)
    figure, (panel,) = new_figure(width=max(7.0, min(18.0, 1.1 * layers + 1.5)), height=4.4)
    beyond = [one for one in heads if one.beyond]
    entitle(
        panel,
        f"{len(beyond)} of {len(heads)} heads are spread beyond the freezing line",
        "layer; within it, heads from left to right",
        "β: standard deviation of the logits in a row",
    )
    panel.set_yscale("log")
    places = {one: (_place(one, heads), one.beta) for one in heads}
    _points(panel, places)
    critical = {one.layer: one.critical for one in reversed(heads)}  # of the first head of each layer
    for layer, line in critical.items():
        panel.hlines(line, layer - 0.5, layer + 0.5, color=BLACK, linewidth=1.4, zorder=1)
    first = critical[min(critical)]
    panel.set_xlim(-0.5, layers - 0.5)
    line_text = f"√(2 ln n) = {number_text(first)}"
    note(panel, layers - 0.52, first * 1.04, line_text, ha="right", va="bottom")
    panel.set_xticks(range(layers))
    _plain_ticks(panel, [*(one.beta for one in heads), first])
    legend(panel, loc="upper right", ncols=2)
    _name(figure, panel, places, sorted(beyond, key=lambda one: -one.beta)[:_NAMED])
    low, high = (f(heads, key=lambda one: one.beta) for f in (min, max))
    text = (
        f"Spread β of the logits of {len(heads)} heads in {layers} layers, from {number_text(low.beta)} "
        f"(layer {low.layer}, head {low.head}) to {number_text(high.beta)} (layer {high.layer}, head {high.head}); "
        f"{len(beyond)} lie above the freezing line at {number_text(first)}."
    )
    return figure, text


def entropies(heads: Sequence[Head]) -> tuple[Figure, str]:
    """Entropy as measured against that of the random energy model at the same n and β, and what it shows in words."""
    figure, (panel,) = new_figure(width=6.4, height=5.4)
    below = sum(one.departure < 0 for one in heads)
    named = sorted(heads, key=lambda one: -abs(one.departure))[: _NAMED // 2]
    furthest = named[0]
    entitle(
        panel,
        f"Heads depart from chance by up to {number_text(abs(furthest.departure))} nats",
        "entropy of independent logits of the same spread, nats",
        "measured entropy of a row, nats",
    )
    most = 1.06 * max(max(one.entropy, one.expected_entropy) for one in heads)
    panel.plot([0, most], [0, most], color=BLACK, linewidth=1.4, zorder=1)
    places = {one: (one.expected_entropy, one.entropy) for one in heads}
    _points(panel, places)
    panel.set_xlim(0, most)
    panel.set_ylim(0, most)
    panel.set_aspect("equal")
    note(panel, 0.97 * most, 0.06 * most, "sharper than chance", GREY, ha="right")
    note(panel, 0.03 * most, 0.72 * most, "flatter than chance", GREY)
    legend(panel, loc="upper left")
    _name(figure, panel, places, named)
    text = (
        f"Measured entropy of {len(heads)} heads against that of the random energy model at the same spread: "
        f"{below} lie below the diagonal; the furthest from it is layer {furthest.layer}, head {furthest.head}, "
        f"with {number_text(furthest.entropy)} nats measured and {number_text(furthest.expected_entropy)} expected."
    )
    return figure, text


def _points(panel: Axes, places: Mapping[Head, tuple[float, float]]) -> None:
    for beyond, colour, label in ((False, BLUE, "below the freezing line"), (True, ORANGE, "beyond it")):
        x, y = [[place[axis] for one, place in places.items() if one.beyond == beyond] for axis in (0, 1)]
        panel.plot(x, y, "o", color=colour, markersize=5, zorder=5, label=label)


def _place(one: Head, heads: Sequence[Head]) -> float:
    count = 1 + max(each.head for each in heads if each.layer == one.layer)
    return one.layer + _WIDTH * ((one.head + 0.5) / count - 0.5)


_Side = tuple[float, float, Literal["left", "center", "right"]]
#: where a name may stand beside its point: points right of it and above it, and which end of the name that is
_SIDES: tuple[_Side, ...] = (
    (5, 3, "left"), (6, -3, "left"), (0, 6, "center"), (-5, 3, "right"), (-6, -3, "right"), (0, -13, "center"),
)  # fmt: skip


def _name(
    figure: Figure, panel: Axes, places: Mapping[Head, tuple[float, float]], named: Sequence[Head]
) -> None:
    """Layer and head beside the points of `named`, on that side where a name covers the fewest points and names."""
    from matplotlib.patheffects import withStroke

    lay_out(figure)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # the canvas of Agg has one
    points = panel.transData.transform(list(places.values()))
    taken: list[Bbox] = []
    for one in named:
        text = panel.annotate(
            f"{one.layer}.{one.head}",
            places[one],
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=8.5,
            color=ORANGE if one.beyond else BLUE,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            zorder=4,
        )

        def box(side: _Side, text: Annotation = text) -> Bbox:
            text.xyann = side[:2]
            text.set_horizontalalignment(side[2])
            return text.get_window_extent(renderer).padded(1.0)

        def covered(side: _Side, box: Callable[..., Bbox] = box) -> int:
            place = box(side)
            return place.count_contains(points) + 3 * place.count_overlaps(taken)

        taken.append(box(min(_SIDES, key=covered)))


def _plain_ticks(panel: Axes, values: Sequence[float]) -> None:
    """1, 2, 5 times powers of ten as plain numbers, over the values."""
    low, high = min(filter(None, values), default=1.0), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    ticks = [tick for tick in steps if low / 1.6 <= tick <= high * 1.6]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_ylim(low / 1.3, high * 1.6)
