"""`attnlab.fastest`: who answers is who was fastest and right where it was measured, and the answer is PyTorch's."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from raced_runs import TENSORS, raced, sent, tensors, winner
from synthetic import synthetic
from torch.nn.functional import scaled_dot_product_attention as own_function

import attnlab
from attnlab.runs.store import read_run
from attnlab.text import counted


@pytest.mark.parametrize("name", TENSORS)
def test_the_fastest_answers(name: str, tmp_path: Path) -> None:
    """With the ratio to PyTorch's own, and where PyTorch's own is the fastest with that to the next."""
    run = raced(tmp_path, {one: 10.0 if one == name else 20.0 for one in TENSORS})
    found = winner(run)
    assert (found.backend, found.fell_back, found.distance) == (name, False, 1.0)
    assert found.workload is not None and found.workload.label == "b1 h2 n16 d64 float32 cpu"
    assert found.against in ({"torch_sdpa"} if name != "torch_sdpa" else {*TENSORS} - {name})
    assert found.verdict is not None and found.verdict.low < 2.0 < found.verdict.high
    assert found.verdict.ratio == pytest.approx(2.0, rel=0.01)
    assert "times as fast as" in found.why and "this very shape" in found.why and str(found).startswith(name)


def test_one_comparison_has_one_interval() -> None:
    """For every cell of the reference run `explain` says what the report says, and the best what its baseline does."""
    run = read_run(Path(__file__).parents[2] / "reports" / "reference")
    run.environment = {}
    found, same = attnlab.fastest(run), 0
    for cell in run.judged().cells:
        one = cell.workload
        assert cell.ranking is not None
        choice = found.explain(*tensors(one.queries, one.keys, heads=one.heads, dim=one.head_dim))
        assert choice.backend in cell.won.first and choice.verdict is not None
        for lead in (cell.won.ahead, cell.won.over_baseline):
            if lead is not None and lead.over == choice.against:
                told = choice.verdict.ratio, choice.verdict.low, choice.verdict.high
                assert told == pytest.approx((lead.ratio, lead.low, lead.high))
                same += 1
        slower = cell.ranking.of(cell.ranking.baseline or "")
        turned = cell.ranking.best.against_baseline
        if slower is not None and slower.against_best is not None and turned is not None:
            assert turned.low == pytest.approx(1 / slower.against_best.high)
    assert same >= len(run.judged().cells)


def test_the_arguments_are_those_of_pytorchs_own(tmp_path: Path) -> None:
    """In their order, with their names and defaults; six may be given by position, as no more may be to PyTorch's."""
    found = attnlab.fastest(raced(tmp_path, {"torch_eager": 10.0, "torch_sdpa": 20.0}))
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = (*tensors(), None, 0.0, False, None, False)
    for count in range(3, 7):
        rest = dict(zip(names[count:], given[count:], strict=True))
        for asked in ({}, rest):
            torch.testing.assert_close(found(*given[:count], **asked), own_function(*given[:count], **asked))
            assert found.explain(*given[:count], **asked).backend == "torch_eager"
    for function in (found, found.explain, own_function):
        with pytest.raises(TypeError):
            function(*given[:7])
    for function in (found, found.explain):
        parameters = inspect.signature(function).parameters.values()
        assert tuple(one.name for one in parameters) == names
        assert tuple(one.default for one in parameters)[3:] == given[3:]


def test_the_nearest_measured_shape_decides(tmp_path: Path) -> None:
    """By factors: 11 is nearer to 8 than to 16, 12 is not."""
    costs = {"torch_eager": lambda w: w.keys * 1e-6, "torch_sdpa": lambda w: 10e-6 + 0 * w.keys}
    run = synthetic(tmp_path, costs=costs, kernels={}, lengths=(8, 16), heads=(2,), noise=0.001, wander=0.0)
    run.environment = {}
    found = {n: winner(run, *tensors(n)) for n in (4, 8, 11, 12, 16, 32)}
    chosen = {n: one.backend for n, one in found.items()}
    assert chosen == {n: "torch_eager" if n < 12 else "torch_sdpa" for n in found}
    assert found[11].distance == pytest.approx(11 / 8) and found[12].distance == pytest.approx(16 / 12)
    assert not any(one.fell_back for one in found.values())


@pytest.mark.parametrize(
    ("other", "own", "chosen"), [(1000.0, 1000.0, "torch_sdpa"), (1000.0, 1100.0, "torch_eager")]
)
def test_ties_go_to_the_least_memory(other: float, own: float, chosen: str, tmp_path: Path) -> None:
    """Those decidedly slower are no tie."""
    run = raced(tmp_path, {"torch_eager": other, "torch_sdpa": own}, memory=True, lengths=(256,))
    assert winner(run, *tensors(256)).backend == chosen


def test_it_is_pickled_before_and_after_a_call(tmp_path: Path) -> None:
    """For another process; loaded, it looks at its machine again."""
    found = attnlab.fastest(raced(tmp_path, {"torch_eager": 10.0, "torch_sdpa": 20.0}))
    found._run.save()
    of_folder = attnlab.fastest(tmp_path)  # which is as good as a run
    assert of_folder.explain(*tensors()).backend == "torch_eager"
    for _ in range(2):
        again = pickle.loads(pickle.dumps(found))
        assert sent(again, *tensors()) == "torch_eager"
        found(*tensors())


def test_who_may_not_answer_is_left_out_with_the_reason(tmp_path: Path) -> None:
    """Wrong answers, other libraries, settings of processes, lower precision, compilers: though they were faster."""
    names = {"numpy_blocked": 5.0, "torch_eager[threads=1]": 6.0, "torch_flex": 7.0, "torch_sdpa_math": 8.0}
    names |= {"torch_sdpa_flash": 9.0, "torch_eager": 10.0, "torch_sdpa": 20.0}
    run = raced(tmp_path, names, wrong=("torch_sdpa_flash",))
    run.results = [
        replace(one, computes_in="bfloat16") if one.contender == "torch_sdpa_math" else one
        for one in run.results
    ]
    found = winner(run)
    assert found.backend == "torch_eager" and "torch_sdpa_flash" not in found.left_out
    for name, said in {
        "numpy_blocked": "arrays of numpy",
        "torch_eager[threads=1]": "leave out threads",
        "torch_flex": "compiles for seconds",
        "torch_sdpa_math": "computes in bfloat16",
    }.items():
        assert said in found.left_out[name]
    again = attnlab.fastest(run, compiled=True).explain(*tensors())
    assert "compiles for seconds" not in again.left_out.get("torch_flex", "")


def test_scores_in_float16_never_answer(tmp_path: Path) -> None:
    """They would be infinite where PyTorch's own are not."""
    run = raced(tmp_path, {"torch_eager": 10.0, "torch_sdpa": 20.0}, dtypes=("float16",))
    rounded = [(one, one.accuracy) for one in run.results if one.accuracy is not None]
    run.results = [replace(one, accuracy=replace(found, kind="scores rounded")) for one, found in rounded]
    query, key, value = tensors(dtype="float16")
    found = attnlab.fastest(run)
    assert "65504" in found.explain(query, key, value).left_out["torch_eager"]
    assert found(300 * query, 300 * key, value).isfinite().all()


@pytest.mark.parametrize(
    ("seconds", "processes", "why"),
    [
        ({"torch_eager": 10.0, "torch_sdpa_math": 20.0}, 5, "did not race"),
        ({"torch_eager": 10.0, "torch_sdpa": 20.0}, 1, "too few"),
    ],
)
def test_what_does_not_say_who_is_faster_falls_back(
    seconds: dict[str, float], processes: int, why: str, tmp_path: Path
) -> None:
    found = winner(raced(tmp_path, seconds, processes=processes))
    assert (found.backend, found.fell_back) == ("torch_sdpa", True) and why in found.why


def test_a_run_without_a_speed_is_refused(tmp_path: Path) -> None:
    run = raced(tmp_path, {"torch_eager": 10.0, "torch_sdpa": 20.0}, wrong=("torch_eager", "torch_sdpa"))
    with pytest.raises(ValueError, match="holds no measured speed"):
        attnlab.fastest(run)
    with pytest.raises(ValueError, match="holds no run"):
        attnlab.fastest(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"factor must be 1 or more, got 0\.5"):
        attnlab.fastest(raced(tmp_path / "other", {"torch_sdpa": 20.0}), factor=0.5)


def test_another_machine_is_told_once_and_nothing_is_sent(tmp_path: Path) -> None:
    run = raced(tmp_path, {"torch_eager": 10.0, "torch_sdpa": 20.0})
    for environment, said in (
        ({"cpu": "Another CPU"}, r"another machine \(Another CPU; other cpu\)"),
        ({"contenders": {"torch_sdpa": {"versions": {"torch": "1.0"}}}}, r"with PyTorch 1\.0"),
    ):
        run.environment = environment
        with pytest.warns(UserWarning, match=said):
            found = attnlab.fastest(run)
        assert found.explain(*tensors()).fell_back
        assert attnlab.fastest(run, elsewhere=True).explain(*tensors()).backend == "torch_eager"


def test_other_threads_are_outside(tmp_path: Path) -> None:
    """Also when they are changed after the call was first made."""
    run = raced(tmp_path, {"torch_eager": 10.0, "torch_sdpa": 20.0})
    threads = torch.get_num_threads()
    pools = [{"user_api": "openmp", "num_threads": threads}, {"user_api": "blas", "num_threads": 64}]
    run.environment = {"contenders": {"torch_sdpa": {"pools": pools}}}
    found = attnlab.fastest(run)
    assert sent(found, *tensors()) == "torch_eager"
    torch.set_num_threads(threads + 1)
    try:
        assert sent(found, *tensors()) == "torch_sdpa"
        said = f"measured with {counted(threads, 'thread')}, and {threads + 1} threads are set"
        assert said in found.explain(*tensors()).why
    finally:
        torch.set_num_threads(threads)
    assert sent(found, *tensors()) == "torch_eager"
