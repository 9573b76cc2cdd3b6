"""Each statement of the laboratory that was found too wide, with the figure that bounds it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from attnlab.experiments import (
    anisotropy,
    depth,
    error_growth,
    float8,
    formula,
    gradient_growth,
    length,
    multihead,
    overflow,
    query_gradient,
    saturation,
    thermodynamics,
    vanishing_gradient,
    variance_scaling,
)
from attnlab.experiments.catalogue import figure, run_experiments
from attnlab.experiments.finding import Finding, Row, pick
from attnlab.experiments.jacobian_sampling import quantile, share_below
from attnlab.experiments.score_sampling import FAMILIES, sample_pairs
from attnlab.experiments.survey import Measure, Survey, agreement, generator
from attnlab.figures import new_figure, points
from attnlab.report.chapters import CHAPTERS
from attnlab.report.laboratory import compared
from attnlab.theory import (
    attention_under_random_inputs,
    critical_beta,
    float_format,
    jacobian_norm_squared,
    overflow_threshold,
    random_energy,
)


def rows_of(
    *measures: Measure, backends: tuple[str, ...] = ("torch_sdpa",), dtype: str = "float64"
) -> list[Row]:
    """What the measures find through the backends; every row must pass."""
    survey = Survey(backends)
    survey.each(*measures, dtype=dtype)
    assert survey.rows and all(row.passed for row in survey.rows), survey.rows
    return survey.rows


def test_small_values_shrink_the_gradients_of_queries_and_keys_alone() -> None:
    rows = rows_of(
        partial(vanishing_gradient.small_values, folders=()), backends=("torch_sdpa", "torch_eager")
    )
    ratio = {str(row.where["of"]): row.measured for row in rows}
    assert ratio == pytest.approx({"query": 1e-3, "key": 1e-3, "value": 1.0}, rel=1e-10)


@pytest.mark.parametrize(
    ("dtype", "of_1024", "of_one"),
    [("float16", 4.16, 11.09), ("float32", 81.79, 88.72), ("float64", 702.85, 709.78)],
)
def test_the_sum_of_exponentials_overflows_before_they_do_and_gives_zeros(
    dtype: str, of_1024: float, of_one: float
) -> None:
    rows = list(overflow.textbook_overflow(dtype))
    assert all(row.passed for row in rows), rows
    limits = {row.where["keys"]: row.measured for row in pick(rows, "unshifted softmax overflows above")}
    assert limits == pytest.approx({1: of_one, 1024: of_1024}, abs=0.01)
    zero, nan = (pick(rows, f"share of unshifted weights that are {what}") for what in ("0", "NaN"))
    assert [row.measured for row in zero] == [1, 0] and [row.measured for row in nan] == [0, 1]


@pytest.mark.parametrize(
    ("head_dim", "percent"), [(64, 2.6), (128, 8.4), (256, 18.5), (1024, 45), (1600, 53), (4096, 67.5)]
)
def test_the_share_of_rows_without_a_gradient_grows_with_the_head_dimension(
    head_dim: int, percent: float
) -> None:
    share = share_below(1e-3, 1024, head_dim, 1.0)
    assert 100 * share.value == pytest.approx(percent, abs=1.0 if percent > 10 else 0.15)
    assert share.error < 3e-4
    median = quantile(0.5, 1024, head_dim, 1.0)
    assert (median.value < 1e-3) == (head_dim >= 1600)


def test_the_sampled_law_of_the_jacobian_norm_is_that_of_plain_rows() -> None:
    keys, head_dim, count = 64, 16, 40_000
    rng = np.random.default_rng(8)
    logits = np.sqrt(rng.chisquare(head_dim, (count, 1))) * rng.standard_normal((count, keys))
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    norms = np.sqrt(jacobian_norm_squared(weights / weights.sum(axis=1, keepdims=True)))
    for threshold in (1e-2, 1e-1, 0.3):
        share, plain = share_below(threshold, keys, head_dim, 1.0), float(np.mean(norms < threshold))
        error = math.sqrt(plain * (1 - plain) / count)
        assert abs(share.value - plain) < 5 * math.hypot(share.error, error)
        assert share.error < error  # from half as many logits
    plain = float(np.median(norms))
    assert quantile(0.5, keys, head_dim, 1.0).value == pytest.approx(plain, rel=0.03)


def test_scaled_gradients_shrink_with_the_length() -> None:
    for keys in (1024, 65_536):
        median, error = quantile(0.5, keys, 64, 1 / 8)
        root = math.sqrt(attention_under_random_inputs(keys, 64, 1 / 8).jacobian_norm_squared)
        assert root == pytest.approx(math.sqrt(math.e / keys), rel=0.02)
        assert 0.95 * root < median < root and error < 0.01 * root


def test_one_head_is_cheaper_all_of_them_are_not_and_no_time_is_judged() -> None:
    (finding,) = run_experiments(["multihead"], ["torch_sdpa"])
    for heads in multihead.HEAD_COUNTS:
        (alone,) = pick(finding.rows, "FLOPs of one head / (4 n² d_model)", heads=heads)
        (together,) = pick(finding.rows, "FLOPs / (4 n² d_model)", heads=heads)
        assert (alone.measured, together.measured) == (1 / heads, 1.0)
    times = pick(finding.rows, "time / time of one head")
    assert times and not any(row.compared for row in times)
    slow = [replace(row, measured=0.01) for row in times]
    assert agreement([*finding.rows, *slow], "x") == agreement(finding.rows, "x")


def test_every_head_sees_the_whole_embedding_and_branches_before_the_softmax() -> None:
    rows = rows_of(multihead.projected_heads)
    (seen,) = pick(rows, "heads changed by one coordinate of the embedding")
    assert seen.measured == 8
    (other,) = [row for row in rows if row is not seen]
    assert other.measured > 0.5


def test_the_sum_of_the_weights_is_off_by_more_than_independent_roundings_and_less_than_the_bound(
    tmp_path: Path,
) -> None:
    # numbers added one after the other: equal terms are rounded the same way again and again
    (tmp_path / "one_by_one.py").write_text(
        'LIBRARY = "numpy"\nimport numpy as np\ndef attend(query, key, value, *, causal, scale):\n'
        "    s = scale * (query @ key.swapaxes(-1, -2))\n    p = np.exp(s - s.max(axis=-1, keepdims=True))\n"
        "    p = p / p.sum(axis=-1, keepdims=True)\n"
        "    return np.cumsum(p[..., None] * value[..., None, :, :], axis=-2, dtype=query.dtype)[..., -1, :]\n"
    )
    survey = Survey(("one_by_one", "numpy_vectorized"), folders=[tmp_path])
    survey.each(thermodynamics.long_sums, dtype="float32")
    assert all(row.passed for row in survey.rows), survey.rows
    (equal,) = pick(survey.rows, "|Σp − 1| / √n·u in float32", backend="one_by_one", logits="equal")
    assert equal.measured > 1 and not equal.compared
    (bounded,) = pick(survey.rows, "|Σp − 1| in float32", backend="one_by_one", logits="equal")
    assert 0 < bounded.measured < bounded.predicted < 0.01


def test_a_soft_cap_hinders_long_sequences_only_where_it_is_small() -> None:
    rows = pick(rows_of(length.bounds), "weight at the gap of a soft cap", keys=131_072)
    weights = {row.where["cap"]: row.measured for row in rows}
    assert weights[2.0] < 0.001 and weights[5.0] == pytest.approx(0.144, abs=0.001)
    assert weights[8.0] > 0.9
    for cap, most in ((2.0, 7), (5.0, 2_448), (8.0, 987_346)):
        assert math.floor(1 + math.exp(2 * cap) / 9) == most


def test_a_product_of_normal_numbers_and_signs_is_normal_at_every_dimension() -> None:
    family = FAMILIES["normal × Rademacher"]
    for head_dim in (1, 4):
        assert family.moments(head_dim).kurtosis == 3
        scores = np.sort(sample_pairs(family, head_dim, 50_000, generator(3, head_dim))) / math.sqrt(head_dim)
        below = np.arange(1, 50_001) / 50_000
        assert np.abs(below - ndtr(scores)).max() * math.sqrt(50_000) < 2.0  # exceeded once in 1500 draws


def test_comparisons_on_the_same_draws_are_counted_as_one_question() -> None:
    backends = ("numpy_blocked", "numpy_vectorized", "torch_sdpa")
    rows = rows_of(length.bounds, backends=backends)
    each = len(rows) // len(backends)
    text = compared([Finding("length", "", "", "", tuple(rows))])
    assert text.startswith(f"{len(rows)} comparisons on {each} questions")


def test_scores_without_a_softmax_make_an_output_that_grows_with_the_length() -> None:
    rows = pick(rows_of(formula.without_softmax), "rms of Σ s v / rms of Σ p v")
    assert [row.where["keys"] for row in rows] == [16, 128]
    assert rows[0].measured > 5 and rows[1].measured > 50


def test_a_table_of_scores_costs_memory_that_a_fused_kernel_does_not_need() -> None:
    backends = ("torch_eager", "torch_sdpa")
    rows = rows_of(partial(multihead.memory, folders=()), backends=backends, dtype="float32")
    peaks = {str(row.where["backend"]): row.measured for row in pick(rows, "peak memory, MiB")}
    table = 4 * 16 * 2048**2 / 2**20
    assert peaks["torch_eager"] > table > 10 * peaks["torch_sdpa"]


def test_an_error_is_predicted_on_both_sides_in_16_bits_and_bounded_in_float32() -> None:
    (finding,) = run_experiments(["error_growth"], ["torch_sdpa_math", "torch_sdpa", "torch_eager"])
    errors = pick(finding.rows, "relative error")
    assert finding.passed
    relations = {(row.where["dtype"] in error_growth.PREDICTED, row.relation) for row in errors}
    assert relations == {(True, "="), (False, "≤")}
    # a weight near 1 makes the output a value, which bfloat16 holds already: no rounding, and none is predicted
    (sharp,) = pick(errors, dtype="bfloat16", axis="logit_std", value=16.0, backend="torch_sdpa_math")
    assert sharp.measured == pytest.approx(sharp.predicted, rel=0.03)
    too_good = replace(sharp, measured=0.5 * sharp.predicted)
    assert not Row.compare("", {}, too_good.predicted, too_good.measured, slack=too_good.slack).passed


def test_figures_show_what_can_be_and_all_that_they_compare() -> None:
    assert list(error_growth.budget_lines("float32", "keys", 0)) == [error_growth.BOUND, error_growth.WORST]
    assert len(error_growth.budget_lines("bfloat16", "head_dim", 0)) == 4
    one, (panel,) = new_figure()
    points(panel, [1.0, 2.0], [0.5, 0.98], [0.01, 0.01], "black", within=(0.0, 1.0))
    one.canvas.draw()
    assert panel.dataLim.y1 == 1.0 and panel.dataLim.y0 == pytest.approx(0.45)


def test_a_few_keys_keep_a_fixed_share_at_a_fixed_distance_from_freezing_and_lose_it_at_a_fixed_spread() -> (
    None
):
    lengths = [2**power for power in (10, 14, 18, 22)]
    at_ratio = [random_energy(n, 2.0 * critical_beta(n)).largest_weight for n in lengths]
    at_spread = [random_energy(n, 8.0).largest_weight for n in lengths]
    assert max(at_ratio) - min(at_ratio) < 0.04
    assert all(later < earlier - 0.03 for earlier, later in pairwise(at_spread))
    assert "at a fixed β/β_c" in " ".join(CHAPTERS["saturation"].theory.split())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_flushed_tells_where_a_weight_is_lost(dtype: str) -> None:
    for keys in overflow.KEYS:
        gaps, least = overflow.vanishing_gaps(dtype, keys), float_format(dtype).smallest_normal
        assert math.exp(-gaps[overflow.FLUSHED_EXPONENTIAL]) == pytest.approx(least, rel=1e-9)
        assert math.exp(-gaps[overflow.FLUSHED_WEIGHT]) / (keys - 1) == pytest.approx(least, rel=1e-9)


def test_a_kernel_that_flushes_its_weights_is_told_from_one_that_flushes_exponentials(tmp_path: Path) -> None:
    flush = "np.where(np.abs({0}) < np.finfo(np.float32).tiny, 0, {0}).astype(np.float32)"
    for name, exponential, weight in (
        ("exponentials", flush.format("e"), "w"),
        ("weights", "e", flush.format("w")),
        ("both_too_early", "np.where(e < 1e-30, 0, e)", "w"),
    ):
        (tmp_path / f"{name}.py").write_text(
            'LIBRARY = "numpy"\nimport numpy as np\ndef attend(query, key, value, *, causal, scale):\n'
            "    s = scale * (query @ key.swapaxes(-1, -2))\n    e = np.exp(s - s.max(axis=-1, keepdims=True))\n"
            f"    e = {exponential}\n    w = e / e.sum(axis=-1, keepdims=True)\n    w = {weight}\n"
            "    return (w @ value).astype(query.dtype)\n"
        )
    survey = Survey(("exponentials", "weights", "both_too_early"), folders=[tmp_path])
    survey.each(partial(overflow.thresholds, dtype="float32"), dtype="float32")
    found = {
        str(row.where["backend"]): row
        for row in pick(survey.rows, "gap at which a weight becomes 0", keys=64)
    }
    assert found["exponentials"].where["subnormals"] == overflow.FLUSHED_EXPONENTIAL
    assert found["weights"].where["subnormals"] == overflow.FLUSHED_WEIGHT
    assert found["exponentials"].passed and found["weights"].passed and not found["both_too_early"].passed


def test_no_caption_names_a_backend_and_every_legend_names_what_is_drawn() -> None:
    for chapter in CHAPTERS.values():
        assert not any(name in chapter.caption for name in ("numpy", "torch", "NumPy", "PyTorch"))
    (finding,) = run_experiments(["formula"], ["naive_loop", "torch_sdpa"])
    named = {label.get_text() for label in figure(finding).axes[0].get_yticklabels()}
    assert named == {str(row.where["backend"]) for row in pick(finding.rows, "error / error budget")}


def test_names_of_backends_cover_no_curve() -> None:
    names = [f"a_backend_with_a_long_name_{number}" for number in range(17)]
    found = rows_of(saturation._through, dtype=saturation.DTYPE)
    measured = [row for row in found if row.where["head_dim"] in (4, 256)]
    rows = tuple(replace(row, where={**row.where, "backend": name}) for row in measured for name in names)
    drawn = figure(Finding("saturation", "", "", "", rows))
    drawn.canvas.draw()
    (legend,) = drawn.legends
    assert len(legend.get_texts()) == len(names)
    assert not any(legend.get_window_extent().overlaps(panel.get_window_extent()) for panel in drawn.axes)


def test_every_curve_of_the_law_of_a_score_is_named_and_its_kinks_are_explained() -> None:
    survey = Survey(("torch_sdpa",))
    variance_scaling.measure(survey)
    drawn = figure(Finding("variance_scaling", "", "", "", tuple(survey.rows)))
    _, kurtosis, *laws = drawn.axes
    assert "linear" in kurtosis.get_ylabel()
    for panel in laws:
        legend = panel.get_legend()
        words = [text.get_text() for text in (*panel.texts, *(legend.get_texts() if legend else ()))]
        for head_dim in (1, 4, 16, 64):
            assert {f"d_k = {head_dim}", f"{head_dim}"} & set(words), words


def test_in_bfloat16_the_line_of_64_keys_shows_under_that_of_overflow() -> None:
    (finding,) = run_experiments(["overflow"], ["torch_sdpa"])
    (panel,) = [one for one in figure(finding).axes if one.get_title(loc="left") == "bfloat16"]
    at = overflow_threshold("bfloat16")
    widths = {
        line.get_linewidth()
        for line in panel.get_lines()
        if np.ptp(places := np.asarray(line.get_xdata(), float)) == 0
        and abs(places[0] - at) < 0.1
        and line.get_marker() == "None"
    }
    assert max(widths) > 3 * min(widths)


def test_the_marks_on_the_curve_of_the_gradient_say_their_head_dimension() -> None:
    # scaled rows of few dimensions lie off the curve of β = 1, which is drawn for equally long queries
    few, many = (attention_under_random_inputs(1024, d, d**-0.5).jacobian_norm_squared for d in (4, 64))
    assert few > 1.15 * many
    survey = Survey(("torch_sdpa",))
    survey.one(vanishing_gradient._sweep)
    drawn = figure(Finding("vanishing_gradient", "", "", "", tuple(survey.rows)))
    labels = [text.get_text() for text in drawn.axes[0].texts if "scaled" in text.get_text()]
    assert len(labels) == 2 and all("d_k = 64" in label for label in labels)


def test_every_circle_lies_on_the_curve_of_its_gap() -> None:
    (finding,) = run_experiments(["length"], ["torch_sdpa"])
    curves = [line for line in figure(finding).axes[2].get_lines() if line.get_linestyle() == "--"]
    circles = pick(finding.rows, "weight at the gap that .9 needs")
    assert len(curves) == len(circles) == 3
    for row, curve in zip(circles, curves, strict=True):
        gaps, weights = map(np.asarray, curve.get_data())
        at = np.interp(float(row.where["keys"]), gaps, weights)
        assert at == pytest.approx(row.measured, abs=0.01)


def test_depth_enters_only_without_a_norm() -> None:
    rows = rows_of(depth.by_layer)

    def sizes(norm: str, scaling: str) -> list[float]:
        return [row.measured for row in pick(rows, depth.SIZE, norm=norm, scaling=scaling)]

    for scaling in ("unscaled", "scaled"):
        assert sizes("pre-norm", scaling) == pytest.approx([1.0] * depth.LAYERS, abs=0.5)
    unscaled, scaled = sizes("none", "unscaled"), sizes("none", "scaled")
    assert all(later > 1.5 * earlier for earlier, later in pairwise(unscaled))
    assert unscaled[-1] > 100 and unscaled[-1] > 10 * scaled[-1] > 10


def test_the_gradient_of_a_query_is_shown_with_the_scale_in_it() -> None:
    rows = rows_of(partial(query_gradient.whole, folders=()))
    mean, median = (
        {row.where["head_dim"]: row for row in pick(rows, query_gradient.quantity(name))}
        for name in query_gradient.STATISTICS
    )
    assert mean[64].predicted == pytest.approx(45, abs=2) and mean[1024].predicted == pytest.approx(
        110, abs=6
    )
    assert median[64].predicted == pytest.approx(26, abs=2) and 0.7 < median[1024].predicted < 1.4
    # the Jacobian alone says 6
    assert all(row.measured > 15 for row in mean.values())


def test_a_shared_direction_counts_over_the_weights_and_not_within_a_row() -> None:
    rows = rows_of(anisotropy.shared_direction)
    for share in anisotropy.SHARES:
        (over,), (within,) = (
            pick(rows, quantity, shared=share) for quantity in (anisotropy.OVER_WEIGHTS, anisotropy.IN_ROW)
        )
        assert (over.predicted, within.predicted) == (1.0, 1 - share)
    assert within.measured < 0.1 < 0.4 < over.measured


def test_the_error_of_gradients_is_within_the_budget_of_what_is_rounded() -> None:
    survey = Survey(("torch_sdpa", "torch_eager"))
    for dtype in gradient_growth.FORMATS:
        asked = gradient_growth.with_budgets(dtype, 0)
        survey.each(partial(gradient_growth.through, dtype=dtype, asked=asked, folders=()), dtype=dtype)
    assert len(survey.rows) == 2 * 2 * 3 * 6 and all(row.passed for row in survey.rows), survey.rows
    coarse, fine = (
        pick(survey.rows, dtype=dtype, of="query", axis="keys") for dtype in ("bfloat16", "float32")
    )
    assert all(one.measured > 1000 * other.measured for one, other in zip(coarse, fine, strict=True))


def test_normalised_weights_are_0_in_float8_and_a_sum_of_ones_stops() -> None:
    rows = list(float8.measured(5))
    assert all(row.passed for row in rows), [row for row in rows if not row.passed]
    (lost,) = pick(rows, float8.ZERO, dtype="float8 E4M3", keys=4096, stored="normalised")
    (kept,) = pick(rows, float8.ZERO, dtype="float8 E4M3", keys=4096, stored="unnormalised")
    assert lost.measured > 0.95 and kept.measured < 0.01
    assert {row.where["dtype"]: row.measured for row in pick(rows, float8.LARGEST)} == {
        "float8 E4M3": 16,
        "float8 E5M2": 8,
    }
