"""How the weight gathers on few keys as the logits grow, against the random energy model.

Measured against d_k through every backend. For the map and the temperature queries have exactly the length √d_k, so
that one exact curve is the prediction, and one backend measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab import figures
from attnlab.figures import BLACK, BLUE, GREEN, GREY, ORANGE, entitle, note
from attnlab.lab import panels, theory
from attnlab.lab.finding import Experiment, Finding, Row, Shown, pick, values
from attnlab.lab.observables import Observables, observe
from attnlab.lab.survey import OpenBackend, Survey, agreement, generator, mean_over_clusters

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: keys a row, head dimensions, heads and queries a head; a slow backend gets the second line. Below d_k = 4 a few
#: long queries carry the mean participation, and no error of it can be told from the rows that were seen
_SIZES = 1024, (4, 8, 16, 32, 64, 128, 256), 32, 32
_SLOW_SIZES = 64, (4, 64), 32, 4
#: single precision resolves weights to about 1e-6 and entropies to 1e-5 at these sizes
DTYPE, _SLACK = "float32", 2e-5
#: heads and queries a head of the map and the temperature, and keys and head dimension of the temperature
_HEADS, _QUERIES, _KEYS, _HEAD_DIM = 32, 16, 1024, 16
MAP_KEYS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
MAP_HEAD_DIMS = (2, 4, 8, 16, 32, 64, 128)
#: temperatures in units of the freezing one, 1/β_c
TEMPERATURES = (0.125, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25, 1.6, 2.0, 3.0, 5.0, 10.0)
#: the frozen law holds for n → ∞; at these n it is off by less than this from 1.5 β_c on
FROZEN_SLACK, _DEEP = 0.03, 1.5
QUANTITIES = ("entropy", "largest_weight", "participation")
_ON_MAP, _AT = "largest_weight on the map", "temperature / freezing"


def measure(survey: Survey) -> None:
    """Mean entropy (nats), largest weight and participation Σp² of a row, through each backend in float32.

    Prediction: `attention_under_random_inputs`, exact at any n. Standard error: from the spread of the means of
    independent heads, as the rows of one head share its keys.
    """
    survey.each(through, dtype=DTYPE)
    chosen = survey.one(lambda one, seed: [*_map_rows(one, seed), *_temperature_rows(one, seed)], DTYPE)
    if chosen:
        survey.facts["phase diagram measured through"] = chosen.name


def through(one: OpenBackend, seed: int) -> Iterator[Row]:
    """All quantities against d_k, with the scale and without."""
    keys, dims, heads, queries = _SLOW_SIZES if one.slow else _SIZES
    for head_dim in dims:
        rng = generator(seed, head_dim)
        q, k = (rng.standard_normal((1, heads, n, head_dim), dtype=np.float32) for n in (queries, keys))
        for scaling, scale in (("unscaled", 1.0), ("scaled", head_dim**-0.5)):
            seen = observe(one.attend, q, k, scale=scale)
            exact = theory.attention_under_random_inputs(keys, head_dim, scale)
            where = {"scaling": scaling, "keys": keys, "head_dim": head_dim}
            for name in QUANTITIES:
                yield one.mean(name, where, getattr(seen, name)[0], getattr(exact, name), _SLACK)


def _map_rows(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Largest weight of unscaled attention (β = √d_k) over the plane of n and d_k."""
    for keys in MAP_KEYS:
        for head_dim in MAP_HEAD_DIMS:
            seen = _rows_of(one, keys, head_dim, 1.0, generator(seed, 400, keys, head_dim))
            expected = theory.random_energy(keys, math.sqrt(head_dim)).largest_weight
            where = {"keys": keys, "head_dim": head_dim}
            yield one.mean(_ON_MAP, where, seen.largest_weight[0], expected, _SLACK)


def _temperature_rows(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Entropy, largest weight, participation and the share of rows with a weight above ½ across freezing."""
    critical = theory.critical_beta(_KEYS)
    for number, temperature in enumerate(TEMPERATURES):
        beta = critical / temperature
        rng = generator(seed, 500, number)
        seen = _rows_of(one, _KEYS, _HEAD_DIM, beta / math.sqrt(_HEAD_DIM), rng)
        exact = theory.random_energy(_KEYS, beta)
        where = {"keys": _KEYS, _AT: temperature}
        for name in QUANTITIES:
            quantity = f"{name} against temperature"
            yield one.mean(quantity, where, getattr(seen, name)[0], getattr(exact, name), _SLACK)
        if beta >= _DEEP * critical:
            frozen, error = mean_over_clusters((seen.largest_weight[0] > 0.5).astype(np.float64))
            expected = frozen_fraction(_KEYS, beta)
            # where nearly all rows are frozen, those that were seen not to be are too few to tell the error
            error = max(error, math.sqrt(expected * (1 - expected) / seen.largest_weight.size))
            room = {"standard_error": error, "slack": FROZEN_SLACK}
            yield one.row("frozen fraction", where, expected, frozen, **room)


def frozen_fraction(keys: int, beta: float) -> float:
    """P(p_max > ½) in the frozen phase, for n → ∞: (sin πm/π) ∫_½¹ x^{−1−m} (1 − x)^{m−1} dx.

    At most one weight exceeds ½, so that the probability is the mean number of weights that do, an integral
    over the intensity of the Poisson–Dirichlet law (Pitman and Yor 1997) with m = b_n/β. Raises ValueError where
    m is not below 1: there the row is not frozen.
    """
    from scipy.integrate import quad

    m = theory.extreme_level(keys) / beta
    if not 0 < m < 1:
        raise ValueError(f"not frozen: b_n/β must lie between 0 and 1, got {m:g}")
    # 1 − x = y^{1/m} takes the singularity at x = 1 away
    integral, _ = quad(lambda y: (1 - y ** (1 / m)) ** (-1 - m) / m, 0.0, 0.5**m)
    return math.sin(math.pi * m) / math.pi * float(integral)


def _rows_of(
    one: OpenBackend, keys: int, head_dim: int, scale: float, rng: np.random.Generator
) -> Observables:
    """Observables of rows whose queries have the length √d_k exactly."""
    q: NDArray[np.float64] = rng.standard_normal((1, _HEADS, _QUERIES, head_dim))
    q *= math.sqrt(head_dim) / np.linalg.norm(q, axis=-1, keepdims=True)
    k = rng.standard_normal((1, _HEADS, keys, head_dim), dtype=np.float32)
    return observe(one.attend, q.astype(np.float32), k, scale=scale)


def conclusion(rows: Sequence[Row]) -> str:
    """The freezing point, and the largest weight at both ends with and without the scale."""
    weights = panels.of_most_keys(pick(rows, "largest_weight"))
    if not weights:
        return "No backend could be measured."
    keys, dims = int(weights[0].where["keys"]), values(weights, "head_dim")
    low, high, freezing = dims.min(), dims.max(), theory.freezing_head_dim(keys)

    def at(scaling: str, head_dim: float) -> float:
        return float(values(pick(weights, scaling=scaling, head_dim=head_dim), "measured").mean())

    return (
        f"Over {keys} keys theory has the unscaled softmax freeze around d_k = 2 ln n = {freezing:.1f}. "
        f"Its largest weight averages {at('unscaled', low):.3f} at d_k = {low:g} and {at('unscaled', high):.3f} at "
        f"{high:g}, against {at('scaled', low):.3f} and {at('scaled', high):.3f} with 1/√d_k. "
        f"{agreement(rows, 'theory')}."
    )


def draw(finding: Finding) -> Figure:
    """Entropy, largest weight and effective keys; the map of the largest weight; and both against the temperature."""
    figure, axes = figures.new_figure(3, 2, width=14.0, height=9.2)
    _against_head_dim(axes[:3], panels.of_most_keys(row for row in finding.rows if "scaling" in row.where))
    _map(axes[3], pick(finding.rows, _ON_MAP))
    _entropy(axes[4], pick(finding.rows, "entropy against temperature"))
    _frozen(axes[5], finding.rows)
    if axes[0].get_legend_handles_labels()[0]:  # as many backends as there are would cover the curves
        beside: dict[str, Any] = {"loc": "outside lower center", "ncols": 9, "fontsize": 9, "frameon": False}
        figure.legend(*axes[0].get_legend_handles_labels(), title="top row, measured through", **beside)
    return figure


def _against_head_dim(axes: Sequence[Axes], rows: Sequence[Row]) -> None:
    keys = int(rows[0].where["keys"]) if rows else 2
    freezing = theory.freezing_head_dim(keys)
    # how high the note stands, and where the names of the two curves go: in points from the third mark before the end
    shown: tuple[tuple[Any, ...], ...] = (
        ("entropy", "Unscaled, the entropy collapses", "entropy / ln n",
         lambda h: h / math.log(keys), 0.04, (4, 8), (4, -17)),
        ("largest_weight", "Unscaled, few keys take the weight", "mean largest weight", float, 0.95, (12, -14), (4, 8)),
        ("participation", "How many keys take part", "effective number of keys, 1 / mean Σp²",
         lambda s: 1 / s, 0.6, (4, 8), (4, -17)),
    )  # fmt: skip
    for panel, (quantity, title, label, form, height, *offsets) in zip(axes, shown, strict=True):
        mine = pick(rows, quantity)
        for scaling, colour, offset in zip(("unscaled", "scaled"), (ORANGE, BLUE), offsets, strict=True):
            through_all = pick(mine, scaling=scaling)
            if first := panels.of_first_backend(through_all):  # the exact curve with its name
                x, exact = list(values(first, "head_dim")), [form(row.predicted) for row in first]
                panel.plot(*figures.smooth(x, exact), color=colour, linewidth=1.8, zorder=2)
                place = x[max(0, len(x) - 3)], exact[max(0, len(x) - 3)]
                panel.annotate(scaling, place, offset, textcoords="offset points", color=colour, fontsize=10)
            named = scaling == "scaled"
            panels.by_backend(panel, through_all, "head_dim", colour, form=form, named=named)
        figures.powers_of_two(panel, sorted(set(values(mine, "head_dim"))) or [1.0])
        entitle(panel, title, f"head dimension d_k, at n = {keys}", label)
        panels.boundary(panel, freezing)
        across = panel.get_xaxis_transform()  # x in data, y as a fraction of the panel
        text = f"d_k = 2 ln n = {freezing:.1f}"
        panel.text(freezing * 1.1, height, text, fontsize=9, color=GREY, transform=across)
    axes[2].set_yscale("log")


def _map(panel: Axes, rows: Sequence[Row]) -> None:
    """Measured largest weight over the plane, and the line on which the softmax freezes."""
    keys, dims = (sorted({int(row.where[name]) for row in rows}) for name in ("keys", "head_dim"))
    entitle(panel, "Unscaled attention freezes above d_k = 2 ln n", "keys n", "head dimension d_k")
    if not rows:
        return
    at = {(row.where["keys"], row.where["head_dim"]): row.measured for row in rows}
    grid = np.array([[at[n, d] for n in keys] for d in dims])
    look: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": 1, "shading": "nearest", "rasterized": True}
    mesh = panel.pcolormesh(keys, dims, grid, **look)
    panel.figure.colorbar(mesh, ax=panel, pad=0.02).set_label("mean largest weight", fontsize=9)
    panel.set_yscale("log", base=2)
    figures.powers_of_two(panel, keys)
    panel.set_yticks(dims, [str(d) for d in dims])
    line = np.geomspace(min(keys), max(keys), 100)
    panel.plot(line, 2 * np.log(line), color="white", linewidth=2.2)
    note(panel, line[55], 2 * math.log(line[55]) * 1.25, "d_k = 2 ln n", ha="center", va="bottom")
    for dim, text, colour in ((dims[-2], "frozen", BLACK), (dims[0], "all keys take part", "white")):
        panel.text(keys[-2], dim, text, color=colour, fontsize=12, ha="right", va="center")
    panel.grid(False)


def _entropy(panel: Axes, rows: Sequence[Row]) -> None:
    """Entropy against temperature, with the exact curve and both asymptotes."""
    entitle(panel, "Entropy across the freezing temperature", _TEMPERATURE, "entropy / ln n")
    if not rows:
        return
    keys, fine = int(rows[0].where["keys"]), _fine(rows)
    for exact, line, colour, width in (
        (theory.random_energy, "-", BLUE, 1.8),
        (theory.random_energy_high_temperature, ":", GREEN, 3.4),
        (theory.random_energy_frozen, "--", ORANGE, 1.8),
    ):
        curve = [exact(keys, theory.critical_beta(keys) / t).entropy / math.log(keys) for t in fine]
        panel.plot(fine, curve, line, color=colour, linewidth=width)
    panels.measured(panel, rows, _AT, BLUE, math.log(keys), linewidth=1.5, within=(0.0, 1.0))
    panel.set_ylim(-0.03, 1.03)
    _temperatures(panel)
    note(panel, 2.3, 0.62, "limit, not frozen:\nln n − β²/2 + …", GREEN)
    note(panel, 0.12, 0.42, "limit, frozen:\nψ(1) − ψ(1 − m)", ORANGE)
    note(panel, 1.15, 0.2, f"exact, n = {keys}", BLUE)


_TEMPERATURE = "temperature / freezing temperature"


def _fine(rows: Sequence[Row]) -> list[float]:
    """Temperatures for a curve through those of the rows."""
    x = values(rows, _AT)
    return [float(one) for one in np.geomspace(x.min(), x.max(), 80)]


def _temperatures(panel: Axes) -> None:
    """The x axis of a panel against temperature, with a line where the softmax freezes."""
    panel.set_xscale("log")
    panel.set_xticks([0.125, 0.25, 0.5, 1, 2, 4, 8], ["1/8", "1/4", "1/2", "1", "2", "4", "8"])
    panel.minorticks_off()
    panels.boundary(panel, 1.0)


def _frozen(panel: Axes, rows: Sequence[Row]) -> None:
    """Share of rows in which one key holds more than half of the weight."""
    weights, frozen = pick(rows, "largest_weight against temperature"), pick(rows, "frozen fraction")
    entitle(panel, "Frozen, few keys hold the weight", _TEMPERATURE, "weight, or share of rows")
    if not frozen:
        return
    keys, fine = int(weights[0].where["keys"]), _fine(weights)
    beta = {t: theory.critical_beta(keys) / t for t in fine}
    exact = [theory.random_energy(keys, beta[t]).largest_weight for t in fine]
    panel.plot(fine, exact, color=BLUE, linewidth=1.8)
    cold = [t for t in fine if beta[t] > theory.extreme_level(keys) * 1.02]
    panel.plot(cold, [frozen_fraction(keys, beta[t]) for t in cold], "--", color=ORANGE, linewidth=1.8)
    for found, colour in ((weights, BLUE), (frozen, ORANGE)):
        panels.measured(panel, found, _AT, colour, linewidth=1.5, within=(0.0, 1.0))
    _temperatures(panel)
    note(panel, 1.15, 0.45, "mean largest weight", BLUE)
    note(panel, 0.12, 0.2, "share of rows in which\none key has over half\n(frozen limit)", ORANGE)


EXPERIMENT = Experiment(
    title="Saturation of the softmax",
    question="Do few keys take the weight as d_k grows, and does 1/√d_k prevent it?",
    theory="Given its query, a row of standard normal inputs has n independent normal logits of standard "
    "deviation β: about √d_k without the scale, about 1 with it. The softmax over them is the random energy "
    "model (Derrida 1981). It freezes at β_c = √(2 ln n), which unscaled is d_k = 2 ln n: beyond, at a "
    "fixed β/β_c, a few keys keep a share of the weight that no longer falls with their number once it is large. "
    "At a fixed β they lose it again as n grows, since β_c grows. The tails of the logits decide this: components of "
    "±1, whose products have shorter ones, freeze at d_k = 3.05 ln n. Curves are exact integrals at this n, but for "
    "the limits: hot rows to first order, and frozen ones by the law of n → ∞ with b_n, the level that the largest of "
    "n logits reaches (3.12 at n = 1024), in place of β_c. At any finite n the transition is a gradual one.",
    measure=measure,
    conclusion=conclusion,
    draw=draw,
    caption="Top: entropy, largest weight and effective number of keys 1/Σp² against d_k, unscaled and "
    "scaled; lines are exact, marks are measured through each backend. Bottom left: measured largest weight "
    "of unscaled attention over n and d_k, with the freezing line. Bottom middle and right: rows whose "
    "logits have standard deviation β, against the temperature T = 1/β in units of T_c = 1/β_c; the dashed "
    "line is the limit of cold rows, which are frozen, with b_n for β_c, the dotted one of hot rows; bars are five "
    "standard errors.",
    lesson="For components of mean 0 and unit variance 1/√d_k keeps β at 1 at every d_k, below β_c (3.7 at n = 1024). "
    "In this model it is the standard deviation of a row's logits that decides, against √(2 ln n), and d_k enters "
    "through it alone. Nothing here was trained: `attnlab numerics training` asks whether a model needs the factor.",
    shown=(
        Shown("largest_weight", {"keys": 1024, "head_dim": (4, 16, 64, 256)}),
        Shown("entropy", {"keys": 1024, "head_dim": (4, 64, 256)}),
    ),
)
