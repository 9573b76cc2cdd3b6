"""How fast does a dataset answer, and how long does collecting take?

``python benchmarks dataset [--runs 1000]`` writes ``benchmarks/dataset.md``, on a machine that does nothing else. The
results of reports/reference-all are written under new names, as of many runs, on a hundred machines and ten days. Then
each question is put in a fresh process, five times, with the files in the system's cache; the median counts. Collecting
is timed on the same run under new names.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from common import HOME, REPOSITORY, command_line, publish, table, yes

from attnlab.runs.dataset import collect
from attnlab.runs.dataset_folder import collecting, write
from attnlab.runs.dataset_schema import TABLES
from attnlab.runs.store import read_run

MACHINES, DAYS = 100, 10
LIMIT = 2.0
REFERENCE = REPOSITORY / "reports" / "reference-all"
QUESTIONS = {
    "who wins where, per machine": (
        "select machine, label, race, contender, standing, against, ratio, ratio_low, ratio_high from verdicts "
        "where standing in ('wins', 'tied')"
    ),
    "how many races each contender wins, per machine": (
        "select machine, contender, count(*) filter (standing = 'wins') as won, "
        "count(*) filter (standing = 'tied') as tied from verdicts group by all"
    ),
    "who wins where on one machine": (
        "select label, contender, standing, ratio, ratio_low, ratio_high from verdicts "
        "where machine = 'made-up-00000007' and standing in ('wins', 'tied')"
    ),
    "the median peak of memory of each contender": (
        "select contender, label, median(peak_memory) from results group by all"
    ),
}


def make(folder: Path, runs: int) -> int:
    """The dataset, of the committed run's results under new names; how many measurements it holds."""
    with collecting(folder) as dataset, tempfile.TemporaryDirectory() as place:
        collect([REFERENCE], place)
        results, states = (pq.ParquetFile(next(Path(place, one).rglob("*.parquet"))).read() for one in TABLES)
        for index in range(runs):
            run, day = f"{index:016x}", date(2026, 1, 1) + timedelta(days=index // MACHINES % DAYS)
            races = [f"{run[:8]}{one.as_py()[8:]}" for one in results["race"]]
            for name, one in (("results", changed(results, "race", races)), ("runs", states)):
                where = f"{name}/machine=made-up-{index % MACHINES:08x}/date={day}/{run}-0001.parquet"
                write(changed(one, "run", [run] * len(one)), dataset.path / where)
    return runs * int(pc.sum(pc.list_value_length(results["measurements"])).as_py())


def changed(table: pa.Table, name: str, values: list[str]) -> pa.Table:
    """The table with another column of that name."""
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values))


ASK = """
import json, sys, time
from attnlab.runs.dataset import query
started = time.perf_counter()
rows = sum(1 for _ in query(sys.argv[1], sys.argv[2]).rows)
print(json.dumps({"seconds": time.perf_counter() - started, "rows": rows}))
"""


def collected(folder: Path) -> float:
    """Milliseconds a workload: twenty runs of reports/reference-all, each with an id of its own.

    One more is collected before the clock starts, which loads the libraries.
    """
    run = read_run(REFERENCE)
    made = []
    for index in range(21):
        run.folder, run.id = folder / f"run{index}", f"{index:016x}"
        run.folder.mkdir()
        shutil.copy(REFERENCE / "results.jsonl", run.folder)
        run.save()
        made.append(run.folder)
    collect(made[:1], folder / "dataset")
    started = time.perf_counter()
    found = collect(made[1:], folder / "dataset")
    return (time.perf_counter() - started) / sum(one.added for one in found) * 1e3


def main() -> None:
    """Make the dataset, ask it, and write what was asked beside what was measured."""
    parser = command_line(__doc__, out=HOME / "dataset.md")
    parser.add_argument("--runs", type=int, default=1000)
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "all"
        measurements = make(folder, chosen.runs)
        sizes = [one.stat().st_size for one in folder.rglob("*.parquet")]
        for what, sql in QUESTIONS.items():
            command = [sys.executable, "-c", ASK, str(folder), sql]
            told = [json.loads(subprocess.check_output(command, text=True)) for _ in range(5)]
            seconds = [one["seconds"] for one in told]
            middle = statistics.median(seconds)
            spans = (f"{middle:.2f} s", f"{max(seconds):.2f} s", yes(middle < LIMIT))
            rows.append((what, f"{told[0]['rows']:,}", *spans))
        each = collected(Path(place))
    said = (
        f"{measurements:,} measurements, those of reports/reference-all in {chosen.runs:,} runs, {len(sizes):,} "
        f"files, {sum(sizes) / 2**30:.2f} GiB."
    )
    asked = table(("question", "rows", "median of 5", "slowest", f"under {LIMIT:g} s"), rows)
    ends = f"Collecting, verdicts included, took {each:.1f} ms a workload of 26 contenders (under 5 ms)."
    publish("How fast a dataset answers", "dataset", said, asked, ends, out=chosen.out)
