"""A plan cut into shards holds what the plan holds, each workload once, in parts of nearly equal cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import workloads

from attnlab.race.limits import Limits
from attnlab.runs.plan import Plan, plan_text, read_plan
from attnlab.runs.sweep_cutting import cut, joined
from attnlab.runs.sweep_folder import new_sweep, read_sweep
from attnlab.workload.workload import Workload

DOCS = Path(__file__).parents[2] / "docs"


def many(count: int, **fields: object) -> Plan:
    """A plan of so many workloads, two contenders."""
    found = tuple(
        Workload(queries=one, keys=one, heads=heads) for one in range(1, count + 1) for heads in (1, 2)
    )
    chosen: dict[str, object] = {"contenders": ("torch_eager", "torch_sdpa"), **fields}
    return Plan(workloads=found[:count], **chosen)  # type: ignore[arg-type]


@given(st.data())
def test_every_workload_is_in_one_shard(data: st.DataObject) -> None:
    """Whatever they cost; no shard is empty, and none is longer than an equal part by more than a workload."""
    plan = many(data.draw(st.integers(1, 40)))
    count, size = data.draw(st.integers(1, 50)), len(plan.workloads)
    costs = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=size, max_size=size))
    parts = cut(plan, count, costs)
    spread = [one.label for part in parts for one in part.workloads]
    assert sorted(spread) == sorted(one.label for one in plan.workloads)
    assert 1 <= len(parts) <= count
    cost = dict(zip(plan.workloads, costs, strict=True))
    for part in parts:
        spent = [cost[one] for one in part.workloads]
        assert 0 < sum(spent) <= (sum(costs) / count + max(costs)) * (1 + 1e-9)
        assert part.contenders == plan.contenders


def test_lengths_of_one_kind_and_origins_stay_together_and_the_chapter_is_done_once() -> None:
    """So that growth with length is seen on one machine."""
    plan = many(10, experiments=("formula",), origins=tuple("abcdefghij"))
    parts = cut(plan, 2)
    assert [{one.heads for one in part.workloads} for part in parts] == [{1}, {2}]
    assert [one.experiments for one in parts] == [("formula",), ()]
    origin = dict(zip(plan.workloads, plan.origins, strict=True))
    assert all(part.origins == tuple(origin[one] for one in part.workloads) for part in parts)


def test_several_plans_make_one_of_all_their_workloads() -> None:
    """Each once, with what asks for it; whatever else differs is named."""
    forward, twice = many(4), many(6, origins=tuple("abcdef"))
    assert joined({"a": forward}) == forward
    both = joined({"a": forward, "c": twice})
    assert both.workloads == (*forward.workloads, *twice.workloads[4:])
    assert both.origins == ("",) * 4 + ("e", "f") and both.contenders == forward.contenders
    with pytest.raises(ValueError, match="and b has other contenders than a: make them alike, or two sweeps"):
        joined({"a": forward, "b": many(4, contenders=("torch_sdpa",))})
    files = (DOCS / "sweeps" / f"{one}.toml" for one in ("plan", "training"))
    assert len(joined({str(one): Plan.grid(**read_plan(one)) for one in files}).workloads) == 72


@given(st.lists(workloads(), min_size=1, max_size=4, unique=True), st.data())
def test_a_plan_survives_as_a_plan_file(
    tmp_path_factory: pytest.TempPathFactory, found: list[Workload], data: st.DataObject
) -> None:
    """Every field of every workload, whatever it holds, and every setting of the plan."""
    plan = Plan(
        workloads=tuple(found),
        origins=tuple(data.draw(st.text(st.characters(exclude_categories=["Cs"]))) for _ in found),
        contenders=("numpy_vectorized[OMP_NUM_THREADS=1]", "torch_sdpa"),
        baseline="torch_sdpa",
        folders=("/somewhere/my backends",),
        self_test=data.draw(st.booleans()),
        memory=data.draw(st.booleans()),
        ceilings=data.draw(st.booleans()),
        afresh=data.draw(st.booleans()),
        experiments=data.draw(st.sampled_from([(), ("formula",)])),
        limits=Limits(workload_seconds=data.draw(st.floats(1e-3, 1e3)), processes=3),
    )
    usual = {one.name: one.default for one in dataclasses.fields(Plan)}
    told = usual.keys() - {"experiments", "self_test", "memory", "ceilings", "afresh"}
    assert all(getattr(plan, name) != usual[name] for name in told), "a field that is added is written too"
    file = tmp_path_factory.mktemp("plan") / "plan.toml"
    file.write_text(plan_text(plan), encoding="utf-8")
    assert Plan.grid(**read_plan(file)) == plan


def test_a_sweep_is_read_back_as_it_was_cut(tmp_path: Path) -> None:
    """Contenders spelt out as a run does, the second entry of the baseline included."""
    sweep = new_sweep(many(10), tmp_path / "sweep", 3, [float(one) for one in range(1, 11)])
    assert read_sweep(tmp_path / "sweep") == sweep
    assert sweep.told.contenders == 3
    assert sum(sweep.told.sizes) == sum(len(one.plan.workloads) for one in sweep.shards) == 10
    assert {one.plan.contenders for one in sweep.shards} == {("torch_eager", "torch_eager", "torch_sdpa")}
    whole = Plan.grid(**read_plan(tmp_path / "sweep" / "plan.toml"))
    assert whole.workloads == many(10).workloads
