"""A plan, from a grid and from a file, and the contenders that take part in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnlab.race.admission import Limits
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan, read_plan

PLAN = """
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
rounds = 10
call_seconds = 1
run_delay = 0
"""


def test_a_plan_file_becomes_a_plan(tmp_path: Path) -> None:
    """Folders in the file are relative to its own folder. Limits that are not named keep their defaults."""
    file = tmp_path / "plan.toml"
    file.write_text(PLAN, encoding="utf-8")
    plan = Plan.grid(**read_plan(file))
    assert [one.label for one in plan.workloads] == [
        f"b1 h2 n8x{keys} d64 float64 cpu causal window=16,-1 scale=1" for keys in (64, 128)
    ]
    assert plan.contenders == ("numpy_blocked", "numpy_vectorized[OMP_NUM_THREADS=1]")
    assert plan.folders == (str(tmp_path / "mine"),)
    assert plan.limits == Limits(rounds=10, call_seconds=1, run_delay=0)
    assert not plan.memory and plan.control
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    documented = Path(__file__).parents[2] / "docs" / "plans" / "multi-head-block.toml"
    assert Plan.grid(**read_plan(documented)).workloads


def test_a_grid_is_over_lengths_heads_and_dtypes_and_the_rest_holds_for_all() -> None:
    """Decoding is one query with caches of several lengths. The order is by dtype, then size; nothing is repeated."""
    plan = Plan.grid(lengths=(64, 128, 64), heads=(4,), dtypes=("float32", "float64"), queries=1, kv_heads=2)
    assert [one.label for one in plan.workloads] == [
        f"b1 h4/2 n1x{keys} d64 {dtype} cpu" for dtype in ("float32", "float64") for keys in (64, 128)
    ]
    (decoding,) = Plan.grid(heads=(8,), queries=1, keys=4096).workloads
    assert (decoding.queries, decoding.keys) == (1, 4096)
    assert {one.dtype for one in Plan.grid(device="cuda").workloads} == {"float32", "bfloat16"}
    with pytest.raises(ValueError, match=r"lengths must be several values, as .* got 64"):
        Plan.grid(lengths=64)  # type: ignore[arg-type]


def test_who_takes_part(tmp_path: Path) -> None:
    """A backend with a long set-up only if it, or "all", is named; a backend of blocks only if a block is asked for."""
    right = "LIBRARY = 'numpy'\ndef attend(query, key, value, *, causal, scale): return query\n"
    (tmp_path / "slow.py").write_text(right + 'ON_REQUEST = "it compiles for a minute"\n')
    (tmp_path / "whole.py").write_text("LIBRARY = 'numpy'\ndef block(parameters, heads): ...\n")
    few: dict[str, Any] = {"lengths": (8,), "heads": (1,), "folders": (str(tmp_path),)}

    def raced(**more: Any) -> set[str]:
        return {one.backend for one in resolve(Plan.grid(**few, **more))[1]}

    assert not {"slow", "whole"} & raced()
    assert "slow" in raced(contenders=("all",)) and "whole" not in raced(contenders=("all",))
    assert "whole" in raced(d_model=32) and "slow" not in raced(d_model=32)
    assert raced(contenders=("slow", "numpy_vectorized")) == {"slow", "numpy_vectorized"}


def test_the_baseline_is_entered_twice_as_an_a_a_control() -> None:
    """The entries are neighbours, unless two are given. The default is the first named contender, or torch_eager."""
    two = ("numpy_blocked", "torch_eager")
    spelt, contenders = resolve(Plan.grid(contenders=two))
    assert [one.name for one in contenders] == ["numpy_blocked", "numpy_blocked#2", "torch_eager"]
    assert spelt.baseline == "numpy_blocked"
    assert resolve(Plan.grid(contenders=two * 2))[0].contenders == two * 2
    assert resolve(Plan.grid(contenders=two, baseline="torch_eager"))[0].contenders == (*two, "torch_eager")
    assert resolve(Plan.grid())[0].baseline == "torch_eager"


def test_shards_part_a_plan_and_each_is_the_same_every_time() -> None:
    """Every workload is in exactly one shard."""
    whole = Plan.grid(preset="llama3-8b/decode,mistral-7b/decode")
    parts = [whole.shard(f"{number}/3") for number in (1, 2, 3)]
    assert sorted(map(repr, whole.workloads)) == sorted(repr(one) for part in parts for one in part.workloads)
    assert whole.shard("2/3") == parts[1] and all(len(one.origins) == len(one.workloads) for one in parts)
    for number, count in ((0, 3), (4, 3), (1, len(whole.workloads) + 1)):
        with pytest.raises(ValueError, match=f"got '{number}/{count}'"):
            whole.shard(f"{number}/{count}")
