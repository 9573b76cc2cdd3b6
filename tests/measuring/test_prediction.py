"""What a call will cost is predicted before it is made, and linear memory is not mistaken for quadratic."""

from __future__ import annotations

from itertools import pairwise

import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from attnlab.problem.inputs import problem_of
from attnlab.problem.workload import Workload
from attnlab.race import prediction
from attnlab.race.prediction import REACH, History, extrapolated, rungs, smaller, sort_of

lengths = st.integers(1, 20_000)
#: many heads of great lengths, and any mask, bias and direction
workloads = strategies.workloads(longest=700) | st.builds(
    Workload,
    batch=st.integers(1, 64),
    heads=st.integers(1, 64),
    queries=lengths,
    keys=lengths,
    causal=st.booleans(),
)


@given(workloads)
def test_rungs_end_can_be_drawn_and_have_work(workload: Workload) -> None:
    """One head of keys each, and its query heads. What does not fit a smaller length is cut or left out."""
    ladder = list(rungs(workload))
    assert len(ladder) <= 6
    for rung in ladder:
        assert 0 < rung.flops < workload.flops
        assert (rung.kv_heads, rung.batch, rung.direction) == (1, 1, workload.direction)
        assert rung.heads == workload.heads // workload.kv_heads
        assert rung.queries <= workload.queries and rung.keys <= workload.keys
    if ladder:
        assert problem_of(ladder[0].with_(distribution="normal")).kv_heads == 1
    assert sort_of(sort_of(workload)) == sort_of(workload)


@given(lengths, lengths, st.booleans(), st.integers(1, 64))
def test_rungs_climb_in_steps_that_predict_the_next(
    queries: int, keys: int, causal: bool, heads: int
) -> None:
    """To one head of the question, so that many heads of a short length are not tried blindly."""
    workload = Workload(heads=heads, queries=queries, keys=keys, causal=causal)
    ladder = list(rungs(workload))
    for lower, upper in pairwise(ladder):
        assert lower.flops <= upper.flops <= 1.01 * REACH * lower.flops
    if heads > 1:
        assert (ladder[-1].queries, ladder[-1].keys) == (queries, keys)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"window": (256, 0)}, {"window": (64, 0)}),
        ({"window": (-1, 3)}, {"window": (-1, 3)}),
        ({"key_lengths": (500, 20)}, {"key_lengths": (64,)}),
        ({"key_lengths": (50, 20)}, {"key_lengths": (50,)}),
        ({"mask": "prefix(100) & causal"}, {"mask": "", "causal": "top_left"}),
        ({"mask": "prefix(100) & random(0.5)"}, {"mask": "random(0.5,0)"}),
        ({"mask": "prefix(10)"}, {"mask": "prefix(10)"}),
    ],
)
def test_a_smaller_workload_keeps_of_its_mask_what_fits(
    given_: dict[str, object], expected: dict[str, object]
) -> None:
    """A window is cut to the keys; a prefix as long as the keys would hide none of them."""
    found = smaller(Workload(batch=2, heads=6, kv_heads=2, **given_), 64, 64)  # type: ignore[arg-type]
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.batch, found.heads, found.kv_heads, found.queries, found.keys) == (1, 3, 1, 64, 64)


def test_time_is_predicted_from_the_nearest_size_within_reach() -> None:
    """In proportion to the FLOPs; out of reach nothing is claimed."""
    history = History()
    small, large = Workload(queries=64, keys=64), Workload(queries=2048, keys=2048)
    assert history.predict_seconds(small) is None
    history.saw_seconds(small, 1.0)
    assert history.predict_seconds(small.with_(keys=128)) == 2.0
    assert history.predict_seconds(large) is None
    history.saw_seconds(large.with_(keys=1024), 3.0)
    assert history.predict_seconds(large) == 6.0


def test_few_pairs_of_a_long_sequence_are_not_predicted_from_a_short_one() -> None:
    """A backend that computes the whole score matrix takes its time for all of it, whatever a window hides."""
    history, windowed = History(), Workload(queries=16384, keys=16384, window=(15, 0))
    history.saw_seconds(Workload(queries=512, keys=512), 0.1)
    assert windowed.flops < Workload(queries=512, keys=512).flops
    assert history.predict_seconds(windowed) is None


def test_a_workload_whose_mask_keeps_nothing_is_predicted_without_a_fault() -> None:
    """It has no work that a time could be in proportion to."""
    empty, history = Workload(key_lengths=(0,)), History()
    assert list(rungs(empty)) == []
    history.saw_seconds(empty, 0.5)
    assert history.predict_seconds(empty) == 0.5


def test_a_slow_first_call_does_not_speak_for_the_size() -> None:
    """It starts threads, or compiles."""
    history, workload = History(), Workload()
    history.saw_seconds(workload, 9.0)
    history.saw_seconds(workload, 0.5)
    history.saw_seconds(workload, 0.7)
    assert history.predict_seconds(workload) == 0.5


@given(st.floats(0, 10), st.floats(1e-12, 1e-6), st.integers(1, 10**6), st.integers(2, 10**6))
def test_overhead_and_growth_are_told_apart(overhead: float, rate: float, least: int, factor: int) -> None:
    """Exactly, where a call costs so much and so much a FLOP; from one size, in proportion."""
    size, flops = least * 16, least * 16 * factor

    def cost(flops: int) -> float:
        return overhead + rate * flops

    found = extrapolated((least, cost(least)), (size, cost(size)), flops)
    assert found == pytest.approx(cost(flops), rel=1e-3, abs=1e-3)
    assert extrapolated((least, 0.5), (least, 0.5), flops) == pytest.approx(0.5 * 16 * factor)


def seen(scores: float, output: float, constant: float, *sizes: int) -> History:
    """The history of a backend whose peak is scores·S + output·O + constant."""
    history = History()
    for size in sizes:
        one = Workload(heads=1, queries=size, keys=size)
        history.saw_peak(one, int(scores * one.score_bytes + output * one.output_bytes + constant))
    return history


def test_peaks_are_predicted_from_three_small_sizes() -> None:
    """Quadratic, linear, and mixed."""
    large = Workload(heads=16, queries=8192, keys=8192)
    for scores, output in ((2.0, 1.0), (3.0, 0.0), (0.0, 1.0), (0.0, 3.0)):
        predicted = seen(scores, output, 0.0, 256, 512, 1024).predict_peak(large)
        exact = scores * large.score_bytes + output * large.output_bytes
        assert predicted is not None and abs(predicted / exact - 1) < 0.05


def test_a_backend_with_linear_memory_and_a_fixed_workspace_stays_linear() -> None:
    """A prediction with any share of the score matrix would refuse it at long lengths."""
    large = Workload(heads=16, queries=65536, keys=65536)
    predicted = seen(0.0, 2.0, 3e6, 256, 512, 1024).predict_peak(large)
    assert predicted is not None and predicted < 4 * large.output_bytes < large.score_bytes / 100


def test_two_sizes_predict_no_peak() -> None:
    """They cannot tell a linear backend from a quadratic one with a workspace, and would refuse it."""
    assert seen(2.0, 1.0, 0.0, 256, 512, 512).predict_peak(Workload()) is None


@given(workloads)
def test_bounds_enclose_what_implementations_hold(workload: Workload) -> None:
    """Inputs and output at least; a dozen score matrices at most, and as many again for a backward pass."""
    least = prediction.least_peak_bytes(workload)
    textbook = (6 if workload.backward else 3) * workload.score_bytes + least
    assert least < textbook < prediction.worst_peak_bytes(workload)
