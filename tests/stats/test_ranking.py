"""Rankings, winners, self-tests and ceilings on samples whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.stats.analysis import rate
from attnlab.stats.ranking import Sure, implementation_of, rank, winner
from attnlab.workload.result import Ceiling, Measurement, Outcome, Result
from attnlab.workload.workload import Workload

WORKLOAD = Workload(heads=4, queries=256, keys=256)


def measured(name, samples, kernel=None, workload=WORKLOAD, library="torch"):
    rounds = range(len(samples))
    columns = {
        "round": tuple(rounds),
        "process": tuple(index // 6 for index in rounds),
        "calibration_s": (1e-3,) * len(samples),
    }
    latency = Measurement("latency", "s", tuple(map(float, samples)), columns, {"cache": "warm"})
    return Result(name, workload, Outcome.MEASURED, kernel=kernel, measurements=(latency,), library=library)


def test_first_place_leaves_out_the_truly_fastest_in_at_most_one_run_in_twenty():
    """Six contenders that differ by less than the noise: the hardest case for choosing a winner."""
    generator = np.random.default_rng(1)
    truth = 1e-3 * np.exp(0.004 * np.arange(6))
    lost = 0
    for _ in range(300):
        samples = truth[:, None] * np.exp(generator.normal(0, 0.02, (6, 31)))
        ranking = rank({f"c{i}": measured(f"c{i}", row) for i, row in enumerate(samples)}, baseline="c5")
        lost += "c0" not in {one.contender for one in ranking.first}
    assert lost / 300 <= 0.05


def test_who_is_ahead_pair_by_pair_stands_first_though_its_median_is_not_the_least():
    """`a` has the least median, in three processes of five; in the two others `b` takes a third of its time."""
    a = measured("a", np.repeat([1.0, 1.0, 1.0, 3.0, 3.0], 6))
    b = measured("b", np.full(30, 1.1))
    found = winner(rank({"a": a, "b": b}, baseline="a"))
    assert found.sure is Sure.TIE and found.name == "b"
    assert found.ahead.over == "a" and found.ahead.low < 1 < found.ahead.ratio < found.ahead.high


def test_one_kernel_of_one_library_is_one_implementation_and_settings_make_another():
    def ran(name, kernel="flash_attention", library="torch"):
        return implementation_of(measured(name, [1.0], kernel, library=library))

    # a user's file may have any name: what counts is the library that it is written for
    assert ran("torch_a") == ran("my_sdpa") == ran("torch_a#2")
    assert ran("torch_a") != ran("torch_b", library="jax")
    assert ran("torch_a") != ran("torch_a[threads=1]")
    assert ran("torch_a", "openblas Haswell") != ran("torch_b", "openblas Haswell")
    assert ran("torch_a", None) != ran("torch_b", None)
    # two ways to spread one kernel over ranks send different parts
    assert ran("torch_ring[processes=2]", library="torch_ranks") != ran(
        "torch_ring[processes=3]", library="torch_ranks"
    )
    # stored before libraries were: each backend is an implementation of its own
    assert ran("torch_a", library=None) != ran("torch_b", library=None)


def test_nothing_above_a_ceiling_is_believed_unless_a_cache_explains_it():
    ceiling = Ceiling("cpu", "float32", WORKLOAD.flops * 2.0, "x", WORKLOAD.least_bytes * 0.5, "x")
    # a better kernel than the libraries' product: OpenVINO's attention ran at three times the rate of NumPy's
    assert rate(WORKLOAD, 0.16, ceiling, cold=False).fault is None
    assert rate(WORKLOAD, 0.05, ceiling, cold=False).fault.startswith(
        "1,000 % of the best matrix-multiply rate"
    )
    on_cuda = replace(ceiling, device="cuda")
    assert rate(WORKLOAD, 0.4, on_cuda, cold=False).fault.startswith("125 % of the best matrix-multiply rate")
    assert rate(WORKLOAD, 1.0, ceiling, cold=False).fault is None
    assert rate(WORKLOAD, 1.0, ceiling, cold=True).fault.startswith("200 % of the copy bandwidth")


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.sampled_from([1.0, 1.005, 1.05, 1.5, 4.0]), min_size=1, max_size=5),
    st.sampled_from([0.0005, 0.02, 0.3]),
    st.integers(1, 5),
)
def test_the_winner_agrees_with_the_ranking(times, noise, processes):
    draw = np.random.default_rng(0).normal
    race = {
        name: measured(name, seconds * np.exp(draw(0, noise, 6 * processes)))
        for name, seconds in zip("abcde", times, strict=False)
    }
    ranking = rank(race, baseline="a")
    found = winner(ranking)
    assert found.name == ranking.best.contender and found.seconds == ranking.best.seconds
    assert set(found.first) == {one.contender for one in ranking.first}
    assert (found.sure is Sure.ALONE) == (len(times) == 1)
    assert (found.sure is Sure.NO_INTERVAL) == (processes == 1 < len(times))
    if found.sure is Sure.DECIDED:
        assert len(found.first) == 1 and found.ahead.low > 1
    if found.sure in (Sure.CLOSE, Sure.TIE):
        assert len(found.first) > 1 and found.ahead.over in found.first
        near = all(one.against_best.apart <= 0.05 for one in ranking.first if one is not ranking.best)
        assert near == (found.sure is Sure.CLOSE)
    if found.ahead is not None and found.ahead.low is not None:
        assert found.ahead.low <= found.ahead.ratio <= found.ahead.high
    assert (found.over_baseline is None) == (ranking.best.contender == "a")
