"""One value says who is first at a workload: it agrees with the ranking that it is made of, whatever was measured."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.judge.pairing import Kind
from attnlab.judge.ranking import Sure, rank, winner
from attnlab.problem.result import Measurement, Outcome, Result
from attnlab.problem.workload import Workload

WORKLOAD = Workload(heads=1, queries=8, keys=8, head_dim=4)


def measured(name: str, samples: np.ndarray, kernel: str | None = None, processes: int = 5) -> Result:
    """A result whose rounds are shared by so many processes."""
    rounds = np.arange(len(samples))
    columns = {
        "round": tuple(map(float, rounds)),
        "process": tuple(map(float, rounds * processes // len(samples))),
    }
    latency = Measurement("latency", "s", tuple(map(float, samples)), columns)
    return Result(
        name,
        WORKLOAD,
        Outcome.MEASURED,
        kernel=kernel,
        measurements=(latency,),
        library="torch" if kernel else None,
    )


def race(
    *times: float, noise: float = 0.001, processes: int = 5, kernels: tuple[str | None, ...] = ()
) -> dict:
    """Contenders a, b, c, ... with these times, over 15 rounds."""
    rng = np.random.default_rng(0)
    kernels = kernels or (None,) * len(times)
    return {
        name: measured(name, seconds * np.exp(rng.normal(0, noise, 15)), kernel, processes)
        for name, seconds, kernel in zip("abcdef", times, kernels, strict=False)
    }


def test_one_process_has_a_ratio_and_no_interval() -> None:
    found = winner(rank(race(2.0, 1.0, processes=1), baseline="a"))
    assert (found.sure, found.first) == (Sure.NO_INTERVAL, ("b",))
    assert math.isclose(found.ahead.ratio, 2.0, rel_tol=0.01) and found.ahead.low is found.ahead.high is None


def test_two_names_of_one_kernel_are_one_and_the_first_asked_for_stands_for_both() -> None:
    results = race(2.0, 1.0, 1.0, kernels=(None, "flash_attention", "flash_attention"))
    found = winner(rank(results, baseline="a"), ("a", "c", "b"))
    assert (found.sure, found.first, found.ahead.over) == (Sure.DECIDED, ("c",), "a")
    alone = winner(rank({name: results[name] for name in "bc"}, baseline="a"), ("a", "c", "b"))
    assert (alone.sure, alone.first, alone.ahead, alone.over_baseline) == (Sure.ALONE, ("c",), None, None)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.sampled_from([1.0, 1.005, 1.05, 1.5, 4.0]), min_size=1, max_size=5),
    st.sampled_from([0.0005, 0.02, 0.3]),
    st.integers(1, 5),
)
def test_it_agrees_with_the_ranking(times: list[float], noise: float, processes: int) -> None:
    ranking = rank(race(*times, noise=noise, processes=processes), baseline="a")
    found = winner(ranking)
    assert found.name == ranking.best.contender and found.seconds == ranking.best.seconds
    assert set(found.first) == {one.contender for one in ranking.first}
    assert (found.sure is Sure.ALONE) == (len(times) == 1)
    if found.sure is Sure.DECIDED:
        assert len(found.first) == 1 and found.ahead.low > 1
        assert all(one.against_best.kind is Kind.SLOWER for one in ranking.standings[1:] if one.against_best)
    if found.sure is Sure.TIE:
        assert len(found.first) > 1 and found.ahead.over in found.first
    if found.ahead is not None and found.ahead.low is not None:
        assert found.ahead.low <= found.ahead.ratio <= found.ahead.high
    assert (found.over_baseline is None) == (ranking.best.contender == "a")
