"""A plan file says what to measure; a slip in it is named with the file and the mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnlab.race.limits import Limits
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan, read_plan


def written(folder: Path, text: str) -> Path:
    """A plan file."""
    file = folder / "plan.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_plan_file_becomes_a_plan(tmp_path: Path) -> None:
    """Folders in it are meant from where it lies; limits that are not named keep their values."""
    text = """
        lengths = [64, 128]
        heads = [2]
        dtypes = ["float64"]
        causal = true
        queries = 8
        window = [16, -1]
        scale = 1
        backends = ["numpy_blocked", "numpy_vectorized[OMP_NUM_THREADS=1]"]
        baseline = "numpy_blocked"
        implementations = ["mine"]
        memory = false
        [limits]
        min_rounds = 10
        call_seconds = 1
    """
    plan = Plan.grid(**read_plan(written(tmp_path, text)))
    assert [one.label for one in plan.workloads] == [
        "b1 h2 n8x64 d64 float64 cpu causal window=16,-1 scale=1",
        "b1 h2 n8x128 d64 float64 cpu causal window=16,-1 scale=1",
    ]
    assert plan.contenders == ("numpy_blocked", "numpy_vectorized[OMP_NUM_THREADS=1]")
    assert plan.folders == (str(tmp_path / "mine"),)
    assert plan.limits == Limits(min_rounds=10, call_seconds=1)
    assert not plan.memory and plan.self_test
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("length = [64]", "unknown key 'length'; did you mean lengths"),
        ("colour = 1", "unknown key 'colour'; known: backends, "),
        ("lengths = 64", "lengths must be a list, got 64"),
        ("lengths = []", "lengths must be a list of length >= 1, got []"),
        ("lengths = [8, 64.0]", "lengths[1] must be int, got 64.0"),
        ("lengths = [true]", "lengths[0] must be int, got True"),
        ("dtypes = [32]", "dtypes[0] must be str, got 32"),
        ("batch = '2'", "batch must be int, got '2'"),
        ("batch = true", "batch must be int, got True"),
        ("causal = 1", "causal must be bool | str, got 1"),
        ("window = [1]", "window must be a list of length 2, got [1]"),
        ("backends = []", "backends must be a list of length >= 1, got []"),
        ("limits = 3", "limits must be a table, got 3"),
        ("[limits]\nrounds = 3", "limits: unknown key 'rounds'; did you mean min_rounds or max_rounds?"),
        ("[limits]\nmin_rounds = 2.5", "limits.min_rounds must be int, got 2.5"),
        ("[limits]\ncall_seconds = 0", "limits.call_seconds must be float > 0.0, got 0"),
        ("[limits]\ncall_seconds = '1'", "limits.call_seconds must be float, got '1'"),
        ("lengths = ", "is not valid TOML: "),
    ],
)
def test_a_slip_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    """One line: the file, the key, what was expected and what came."""
    file = written(tmp_path, text)
    with pytest.raises(ValueError) as refusal:
        read_plan(file)
    assert message in str(refusal.value)
    assert str(file) in str(refusal.value)


def test_a_grid_is_over_lengths_heads_and_dtypes_and_the_rest_holds_for_all() -> None:
    """Decoding: one query on caches of several lengths. Small to large, the dtype last."""
    plan = Plan.grid(lengths=(64, 128), heads=(4,), dtypes=("float32", "float64"), queries=1, kv_heads=2)
    assert [one.label for one in plan.workloads] == [
        "b1 h4/2 n1x64 d64 float32 cpu",
        "b1 h4/2 n1x128 d64 float32 cpu",
        "b1 h4/2 n1x64 d64 float64 cpu",
        "b1 h4/2 n1x128 d64 float64 cpu",
    ]
    with pytest.raises(TypeError, match="colour"):
        Plan.grid(colour=1)


def test_what_a_grid_asks_twice_is_measured_once() -> None:
    """Queries and keys that are both given leave nothing of the lengths."""
    (decoding,) = Plan.grid(heads=(8,), queries=1, keys=4096).workloads
    assert (decoding.queries, decoding.keys) == (1, 4096)
    assert len(Plan.grid(lengths=(8, 16, 8), heads=(1,)).workloads) == 2


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    """Not with a traceback."""
    with pytest.raises(ValueError, match=r"the plan file .*none\.toml cannot be read"):
        read_plan(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot be read"):
        read_plan(tmp_path / "binary.toml")


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    """Whoever names a device, or a file of another kind, is told so; the memory is not filled with it."""
    endless = tmp_path / "endless.toml"
    with endless.open("wb") as file:
        file.truncate(2**43)  # a hole, which takes no room
    with pytest.raises(
        ValueError, match=r"endless\.toml is not a plan: it holds more than the 33,554,432 bytes"
    ):
        read_plan(endless)


def test_an_empty_plan_and_an_unknown_baseline_are_refused() -> None:
    """Before anything is started."""
    with pytest.raises(ValueError, match="at least one workload"):
        Plan(workloads=())
    with pytest.raises(ValueError, match="the baseline must be one of the contenders a, b, got 'c'"):
        Plan.grid(contenders=("a", "b"), baseline="c")
    with pytest.raises(ValueError, match="queries must be a whole number of at least 1, got 0"):
        Plan.grid(lengths=[0])


def test_who_asks_to_be_named_races_only_then(tmp_path: Path) -> None:
    """A backend that takes long to set up; and one of blocks alone where no block is asked for."""
    right = "LIBRARY = 'numpy'\ndef attend(query, key, value, *, causal, scale): return query\n"
    (tmp_path / "slow.py").write_text(right + 'ON_REQUEST = "it compiles for a minute"\n', encoding="utf-8")
    (tmp_path / "whole.py").write_text(
        "LIBRARY = 'numpy'\ndef block(parameters, heads): ...\n", encoding="utf-8"
    )
    few: dict[str, Any] = {"lengths": (8,), "heads": (1,), "folders": (str(tmp_path),)}

    def raced(**more: Any) -> set[str]:
        return {one.backend for one in resolve(Plan.grid(**few, **more))[1]}

    assert not {"slow", "whole"} & raced()
    assert "slow" in raced(contenders=("all",)) and "whole" not in raced(contenders=("all",))
    assert "whole" in raced(d_model=32) and "slow" not in raced(d_model=32)
    assert raced(contenders=("slow", "numpy_vectorized")) == {"slow", "numpy_vectorized"}
    assert "numpy_vectorized" in raced(contenders=("all",), baseline="numpy_vectorized")
