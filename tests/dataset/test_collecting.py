"""What runs hold gets into a dataset once and whole, and comes back as it was."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import ROOT, script
from strategies import blocks, workloads
from typed import status

from attnlab.environment import fingerprint
from attnlab.runs.store import Run, read_run
from attnlab.workload.result import Accuracy, Measurement, Outcome, Result

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: attnlab[dataset]")

import pyarrow.parquet as pq  # noqa: E402

from attnlab.runs import dataset, dataset_folder  # noqa: E402
from attnlab.runs.dataset_schema import arrow, race_columns, result_of, row_of, run_id  # noqa: E402

Made = Callable[..., Run]


def there(path: Path) -> list[str]:
    """The Parquet files of a dataset, by table and name."""
    return sorted(f"{one.relative_to(path).parts[0]}/{one.name}" for one in path.rglob("*.parquet"))


def back(path: Path) -> dict[str, Run]:
    """The runs of a dataset by their ids."""
    return {run_id(run): run for run in dataset.runs(path)}


def same(one: Run, other: Run) -> bool:
    """Whether two runs are equal, wherever they lie."""
    return repr(replace(one, folder=Path(), torn=False)) == repr(replace(other, folder=Path(), torn=False))


# -- there and back ----------------------------------------------------------------------------------


def test_runs_come_back_as_they_were(made: Made, tmp_path: Path) -> None:
    """Of two machines, with findings, ceilings, account and every sample; each where its machine and day say."""
    one, other = made(), made(dtypes=("float64",))
    other.environment = {**other.environment, "cpu": "Another CPU"}
    other.save()
    found = dataset.collect([one.folder, other.folder], tmp_path / "all")
    assert [(each.added, each.known, each.left, each.fault) for each in found] == [(4, 0, 0, None)] * 2
    assert found[0].machine != found[1].machine
    stored = back(tmp_path / "all")
    assert set(stored) == {one.id, other.id}
    for run in (one, other):
        assert same(stored[run.id], read_run(run.folder))
    place = tmp_path / "all" / "results" / f"machine={fingerprint(one.environment)}" / "date=2026-03-01"
    assert [file.name for file in place.iterdir()] == [f"{one.id}-0001.parquet"]


NUMBERS = st.floats() | st.sampled_from([0.0, -0.0, math.inf, math.nan])
TEXT = st.text(st.characters(categories=("L", "N", "P")), min_size=1)


@st.composite
def results(draw: st.DrawFn) -> Result:
    """Any result that was measured, with any numbers and texts."""
    count = draw(st.integers(1, 3))
    numbers = st.lists(NUMBERS, min_size=count, max_size=count).map(tuple)
    samples = tuple(draw(st.lists(st.floats(1e-9, 1e9), min_size=count, max_size=count)))
    rounds = tuple(map(float, range(count)))
    columns = {**draw(st.dictionaries(TEXT, numbers, max_size=2)), "round": rounds}
    measured = Measurement("latency", "s", samples, columns, draw(st.dictionaries(TEXT, TEXT, max_size=2)))
    accuracy = Accuracy(*draw(st.tuples(NUMBERS, NUMBERS, NUMBERS)), 8, 9, True, kind=draw(st.none() | TEXT))
    names = ("kernel", "library", "asked_kernel", "computes_in", "tail")
    told = {name: draw(st.none() | TEXT) for name in names}
    workload = draw(workloads() | blocks())
    return Result(draw(TEXT), workload, Outcome.MEASURED, None, accuracy, measurements=(measured,), **told)  # type: ignore[arg-type]


@settings(deadline=None)
@given(results())
def test_every_result_survives_the_way_through_arrow(result: Result) -> None:
    """Bit for bit, whatever its workload, its numbers (NaN and infinity too) and its texts."""
    rows: list[dict[str, Any]] = [row_of(result, race_columns("0" * 16, result.workload), 0)]
    (stored,) = pa.Table.from_pylist(rows, schema=arrow("results")).to_pylist()
    assert repr(result_of(stored)) == repr(result)


# -- nothing twice, nothing half ---------------------------------------------------------------------


def test_collecting_twice_adds_nothing(made: Made, tmp_path: Path) -> None:
    """Also from another folder, under any order, and where one folder is named twice."""
    run, into = made(), tmp_path / "all"
    dataset.collect([run.folder, run.folder], into)
    before = {file: file.read_bytes() for file in into.rglob("*.parquet")}
    moved = shutil.copytree(run.folder, tmp_path / "copy")
    (found,) = dataset.collect([moved], into)
    assert (found.added, found.known) == (0, 4)
    assert {file: file.read_bytes() for file in into.rglob("*.parquet")} == before


def test_a_run_that_went_on_adds_only_what_is_new(made: Made, tmp_path: Path) -> None:
    """In a part of its own; what was there stays untouched, and the run comes back complete."""
    whole, into = made(), tmp_path / "all"
    half = shutil.copytree(whole.folder, tmp_path / "half")
    run = read_run(half)  # as it was when one workload was done: interrupted
    run.complete = False
    lines = (half / "results.jsonl").read_bytes().splitlines(keepends=True)
    (half / "results.jsonl").write_bytes(b"".join(lines[: len(run.contenders)]))
    run.save()
    dataset.collect([half], into)
    assert not back(into)[whole.id].complete
    first = {file: file.read_bytes() for file in into.rglob("*.parquet")}
    (found,) = dataset.collect([whole.folder], into)
    assert (found.added, found.known) == (3, 1)
    assert first.items() <= {file: file.read_bytes() for file in into.rglob("*.parquet")}.items()
    assert there(into) == sorted(
        f"{t}/{whole.id}-000{n}.parquet" for t in ("results", "runs") for n in (1, 2)
    )
    assert same(back(into)[whole.id], whole)


@pytest.mark.parametrize("killed_at", ["results", "runs"])
def test_a_crash_at_any_file_loses_and_doubles_nothing(
    killed_at: str, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the file of the runs is there the part does not count; the next collection writes it again."""
    run, into = made(), tmp_path / "all"
    dataset.collect([], into)

    def crash(file: Path, target: Path) -> None:
        if target.relative_to(into).parts[0] == killed_at:
            raise KeyboardInterrupt
        rename(file, target)

    rename = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(dataset_folder.Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            dataset.collect([run.folder], into)
    assert back(into) == {}
    (found,) = dataset.collect([run.folder], into)
    assert found.added == 4
    assert same(back(into)[run.id], run)
    assert len(there(into)) == 2


def test_a_folder_that_is_no_run_does_not_keep_others_out(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, empty, into = made(), tmp_path / "empty", tmp_path / "all"
    empty.mkdir()
    assert status("collect", str(empty), str(run.folder), "--into", str(into)) == 1
    said = capsys.readouterr()
    assert said.err == f"attnlab: {empty} holds no run: there is no run.json in it\n"
    assert said.out.startswith(f"{run.folder}: 4 workloads added, 0 known (run {run.id}, ")
    assert same(back(into)[run.id], run)


@pytest.mark.parametrize("how", ["gone", "cut off"])
def test_a_damaged_file_is_told_and_its_run_collected_anew(
    how: str, made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are read; a run of which results are gone is not read as an empty one."""
    first, second, into = made(), made(), tmp_path / "all"
    dataset.collect([first.folder, second.folder], into)
    file = next((into / "results").rglob(f"{first.id}*.parquet"))
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-100])
    assert status("report", str(into), "--summary") == 2
    told = capsys.readouterr()
    assert told.out.startswith(f"Run {second.id}, ") and told.out.count("\n") == 1
    assert f"holds 0 of the 4 races that it had of run {first.id}: a file of it" in told.err
    if how != "gone":
        (found,) = dataset.collect([first.folder], into)
        assert f"{file} is damaged" in str(found.fault) and "remove it, and collect" in str(found.fault)
    file.unlink(missing_ok=True)
    dataset.collect([first.folder], into)
    assert same(back(into)[first.id], first)


def test_a_flipped_bit_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    """Pages have checksums; nothing is read as what it was not."""
    run, into, refused = made(), tmp_path / "all", list[str]()
    dataset.collect([run.folder], into)
    (file,) = (into / "results").rglob("*.parquet")
    good, footer = file.read_bytes(), 8 + int.from_bytes(file.read_bytes()[-8:-4], "little")
    for place in np.linspace(4, len(good) - footer - 1, 20, dtype=int):
        flipped = bytearray(good)
        flipped[place] ^= 1
        file.write_bytes(flipped)
        try:
            assert same(back(into)[run.id], run), f"byte {place}"
        except ValueError as fault:
            refused.append(str(fault))
    assert len(refused) >= 10, "most places hold data, and not headers of pages"
    assert all(one.startswith(f"{file} is damaged: ") for one in refused)


def test_a_newer_dataset_asks_for_an_upgrade(made: Made, tmp_path: Path) -> None:
    """Whether the folder says so, a file of it, or a column that nobody here knows."""
    run, into = made(), tmp_path / "all"
    dataset.collect([run.folder], into)
    marker, (file,) = into / "dataset.json", (into / "runs").rglob("*.parquet")
    table, told = pq.read_table(file, partitioning=None), marker.read_text(encoding="utf-8")
    newer = table.replace_schema_metadata({**table.schema.metadata, b"attnlab.dataset": b"2"})
    for made_newer in (newer, table.append_column("weather", pa.array(["fine"]))):
        pq.write_table(made_newer, file)
        with pytest.raises(ValueError, match=f"^{file} .*upgrade attnlab to read it"):
            back(into)
    marker.write_text(told.replace("1", "2"), encoding="utf-8")
    for refused in (back, lambda path: dataset.query(path, "select 1"), partial(dataset.collect, [])):
        with pytest.raises(ValueError, match=f"^{into} is of version 2 of .*: upgrade attnlab to read it"):
            refused(into)


def test_the_page_of_the_columns_is_current() -> None:
    page = ROOT / "docs" / "dataset.md"
    text, written_again = page.read_text(encoding="utf-8"), script(page.with_suffix(".py")).written_again
    assert written_again(text) == text, "run python docs/dataset.py"
    assert written_again(text.replace("|`contender`|", "|`contestant`|", 1)) == text
