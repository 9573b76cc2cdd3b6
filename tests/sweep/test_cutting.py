"""A plan cut into shards holds what the plan holds, each workload once, in parts of nearly equal cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import workloads

from attnlab.problem.workload import Workload
from attnlab.race.limits import Limits
from attnlab.runs.plan import Plan, plan_text, read_plan
from attnlab.runs.sweep_cutting import cut, joined, shards_of, side_by_side
from attnlab.runs.sweep_folder import new_sweep, read_sweep


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
    count = data.draw(st.integers(1, 50))
    costs = data.draw(
        st.lists(st.floats(1e-3, 1e3), min_size=len(plan.workloads), max_size=len(plan.workloads))
    )
    parts = cut(plan, count, costs)
    assert sorted(one.label for part in parts for one in part.workloads) == sorted(
        one.label for one in plan.workloads
    )
    assert 1 <= len(parts) <= count
    cost = dict(zip(plan.workloads, costs, strict=True))
    for part in parts:
        spent = [cost[one] for one in part.workloads]
        assert sum(spent) <= (sum(costs) / count + max(costs)) * (1 + 1e-9)
        assert part.contenders == plan.contenders


def test_equal_workloads_make_as_many_shards_as_are_asked_for() -> None:
    """Sizes differ by one at most."""
    for count in range(1, 11):
        sizes = [len(one.workloads) for one in cut(many(10), count)]
        assert len(sizes) == count and max(sizes) - min(sizes) <= 1


def test_lengths_of_one_kind_stand_together() -> None:
    """So that growth with length is seen on one machine."""
    plan = many(10)
    heads = [plan.workloads[place].heads for place in side_by_side(plan.workloads)]
    assert heads == [1] * 5 + [2] * 5
    assert all(len({one.heads for one in part.workloads}) == 1 for part in cut(plan, 2))


def test_the_numerical_chapter_is_done_once() -> None:
    """By the first shard; origins go with their workloads."""
    plan = many(4, experiments=("formula",), origins=("a", "b", "c", "d"))
    parts = cut(plan, 2)
    assert [one.experiments for one in parts] == [("formula",), ()]
    origin = dict(zip(plan.workloads, plan.origins, strict=True))
    assert all(part.origins == tuple(origin[one] for one in part.workloads) for part in parts)


def test_several_plans_make_one_of_all_their_workloads() -> None:
    """Each once, with what asks for it; whatever else differs is named."""
    forward, twice = many(4), many(6, origins=tuple("abcdef"))
    training = dataclasses.replace(
        forward, workloads=tuple(dataclasses.replace(one, direction="training") for one in forward.workloads)
    )
    assert joined({"a": forward}) == forward
    both = joined({"a": forward, "b": training, "c": twice})
    assert both.workloads == (*forward.workloads, *training.workloads, *twice.workloads[4:])
    assert both.origins == ("",) * 8 + ("e", "f") and both.contenders == forward.contenders
    with pytest.raises(ValueError, match="and b has other contenders than a: make them alike, or two sweeps"):
        joined({"a": forward, "b": many(4, contenders=("torch_sdpa",))})


def test_what_cannot_be_cut_is_refused() -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match="one shard or more, got 0"):
        cut(many(4), 0)
    with pytest.raises(ValueError, match="seconds must be 4 numbers above 0"):
        cut(many(4), 2, [1.0, 2.0])
    with pytest.raises(ValueError, match="--hours-per-shard must be above 0, got 0"):
        shards_of([1.0], 0)
    assert shards_of([3600.0] * 10, 2.5) == 4


@given(st.lists(workloads(), min_size=1, max_size=4, unique=True), st.data())
def test_a_plan_survives_as_a_plan_file(
    tmp_path_factory: pytest.TempPathFactory, found: list[Workload], data: st.DataObject
) -> None:
    """Every field of every workload, whatever it holds."""
    plan = Plan(
        workloads=tuple(found),
        origins=tuple(data.draw(st.text(st.characters(exclude_categories=["Cs"]))) for _ in found),
        contenders=("numpy_vectorized[OMP_NUM_THREADS=1]", "torch_sdpa"),
        baseline="torch_sdpa",
        folders=("/somewhere/my backends",),
        memory=data.draw(st.booleans()),
        experiments=data.draw(st.sampled_from([(), ("formula",)])),
        limits=Limits(workload_seconds=data.draw(st.floats(1e-3, 1e3)), processes=3),
    )
    file = tmp_path_factory.mktemp("plan") / "plan.toml"
    file.write_text(plan_text(plan), encoding="utf-8")
    assert Plan.grid(**read_plan(file)) == plan


def test_a_plan_of_a_great_sweep_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Of more than a megabyte: whoever has the sweep's plan can repeat it."""
    plan, file = many(20_000), tmp_path / "plan.toml"
    file.write_text(plan_text(plan), encoding="utf-8")
    assert file.stat().st_size > 2**20
    assert Plan.grid(**read_plan(file)) == plan


def test_a_listed_plan_has_no_grid_beside_it(tmp_path: Path) -> None:
    """What is meant twice is refused, as is a workload that is none."""
    listed = plan_text(many(2))
    for line, message in (
        ("lengths = [8]\n", "takes no lengths beside them"),
        ('preset = "gpt2"\n', "takes no preset beside them"),
        ("head_dim = 8\n", "takes no head_dim beside them"),
    ):
        file = tmp_path / "plan.toml"
        file.write_text(line + listed, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            Plan.grid(**read_plan(file))
    file.write_text(listed.replace("queries", "querys"), encoding="utf-8")
    with pytest.raises(ValueError, match="unknown workload field 'querys'"):
        Plan.grid(**read_plan(file))


def test_a_sweep_is_read_back_as_it_was_cut(tmp_path: Path) -> None:
    """Contenders spelt out as a run does, the second entry of the baseline included."""
    sweep = new_sweep(many(10), tmp_path / "sweep", 3, [float(one) for one in range(1, 11)])
    assert read_sweep(tmp_path / "sweep") == sweep
    assert sweep.told.contenders == 3 and sum(sweep.told.seconds) == 55
    assert sum(sweep.told.sizes) == sum(len(one.plan.workloads) for one in sweep.shards) == 10
    assert {one.plan.contenders for one in sweep.shards} == {("torch_eager", "torch_eager", "torch_sdpa")}
    whole = Plan.grid(**read_plan(tmp_path / "sweep" / "plan.toml"))
    assert whole.workloads == many(10).workloads


def test_folders_that_are_no_sweep_or_not_empty_are_refused(tmp_path: Path) -> None:
    """One line with the mend."""
    with pytest.raises(ValueError, match=r"holds no sweep: there is no sweep\.json in it"):
        read_sweep(tmp_path)
    new_sweep(many(2), tmp_path / "sweep", 1)
    with pytest.raises(ValueError, match="already holds something; go on with --resume"):
        new_sweep(many(2), tmp_path / "sweep", 1)
    file = tmp_path / "sweep" / "sweep.json"
    for text, message in (
        ("{", "cannot be read"),
        ('{"format": 9}', "not of format 1"),
        ('{"format": 1}', "sweep.json"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_sweep(tmp_path / "sweep")
    with pytest.raises(ValueError, match="has shards 0 to 0, got 1"):
        new_sweep(many(2), tmp_path / "other", 1).shard(1)


def test_every_setting_of_a_plan_stands_in_its_file() -> None:
    """A field that is added to a plan must be written too."""
    known = {"workloads", "origins", "contenders", "baseline", "folders", "self_test", "memory", "ceilings"}
    assert {one.name for one in dataclasses.fields(Plan)} == known | {"experiments", "limits"}
