"""How fast does a dataset answer, and how long does collecting take?

``python benchmarks/dataset.py [--measurements 10000000] [--runs 1000] [--folder DIR] [--keep] [--out FILE.md]``, on a
machine that does nothing else. A dataset of made-up results is written: as many runs as asked for, on a hundred
machines and ten days, ten contenders a race, three measurements a result, ten rounds each. Then each question is put
in a fresh process, five times, with the files in the system's cache; the median counts. Collecting is timed on real
results, those of reports/reference-all under new names, once the
libraries are loaded. With `--keep` the folder stays, and a later call asks it again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from attnlab.problem.workload import Workload
from attnlab.race.environment import environment
from attnlab.runs.dataset import collect
from attnlab.runs.dataset_folder import Dataset, claim_dataset, write
from attnlab.runs.dataset_rows import race_columns, race_id, row_of
from attnlab.runs.dataset_schema import arrow
from attnlab.runs.store import read_run

CONTENDERS, MEASUREMENTS, ROUNDS, MACHINES, DAYS = 10, 3, 10, 100, 10
LIMIT = 2.0
ROOT = Path(__file__).parents[1]
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


def workloads(count: int) -> list[Workload]:
    """So many different ones."""
    sizes = [(heads, 64 * (1 + index)) for index in range(-(-count // 8)) for heads in range(1, 9)]
    return [Workload(heads=heads, queries=length, keys=length) for heads, length in sizes[:count]]


def template(asked: list[Workload]) -> pa.Table:
    """The results of one run of all workloads, with one sample a measurement."""
    real = next(one for one in read_run(ROOT / "reports" / "reference-all").results if one.measurements)
    rows: list[dict[str, Any]] = []
    for workload in asked:
        for number in range(CONTENDERS):
            one = replace(real, workload=workload, contender=f"backend_{number}")
            standing = "tied" if number < 2 and workload.heads % 2 else "wins" if number == 0 else "slower"
            verdict = {"standing": standing, "against": f"backend_{int(number == 0)}", "verdict": "slower"}
            rows.append(
                row_of(one, race_columns("0" * 16, workload), len(rows))
                | verdict
                | {"ratio": 1.2, "margin": 0.01}
            )
    return pa.Table.from_pylist(rows, schema=arrow("results"))


def measured(rows: int, generator: np.random.Generator) -> pa.Array:
    """The column of measurements: latency, setup and peak_memory of each row, with all that is noted beside a round."""
    count = rows * MEASUREMENTS
    kind = arrow("results").field("measurements").type.value_type
    seconds = generator.lognormal(-7, 1, count * ROUNDS)
    index = np.tile(np.arange(ROUNDS, dtype=np.float64), count)
    noted = {"round": index, "process": index // 2, "placement": index % 2, "disturbed": index * 0}
    by_name = np.stack([one.reshape(count, ROUNDS) for one in noted.values()], axis=1).reshape(-1)
    lists = offsets(count * len(noted), ROUNDS)
    columns = pa.MapArray.from_arrays(
        offsets(count, len(noted)), pa.array(list(noted) * count), pa.ListArray.from_arrays(lists, by_name)
    )
    facts = pa.MapArray.from_arrays(
        offsets(count, 1), pa.array(["cache"] * count), pa.array(["warm"] * count)
    )
    arrays = [
        pa.array(["latency", "setup", "peak_memory"] * rows),
        pa.array(["s", "s", "B"] * rows),
        pa.array(np.median(seconds.reshape(count, ROUNDS), axis=1)),
        pa.ListArray.from_arrays(offsets(count, ROUNDS), seconds),
        columns,
        facts,
    ]
    return pa.ListArray.from_arrays(
        offsets(rows, MEASUREMENTS), pa.StructArray.from_arrays(arrays, fields=list(kind))
    )


def offsets(count: int, each: int) -> pa.Array:
    """Where `count` lists of `each` begin and end."""
    return pa.array(np.arange(count + 1, dtype=np.int32) * each)


def changed(table: pa.Table, **columns: Any) -> pa.Table:
    """The table with these columns in place of its own."""
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), values)
    return table


def make(folder: Path, measurements: int, runs: int) -> None:
    """The made-up dataset: its results are random numbers, its verdicts too."""
    claim_dataset(folder)
    asked = workloads(max(1, round(measurements / runs / CONTENDERS / MEASUREMENTS)))
    plain, dataset, generator = template(asked), Dataset(folder), np.random.default_rng(0)
    rows = plain.num_rows
    state = dict.fromkeys(arrow("runs").names) | {"part": 1, "complete": True, "raced": len(asked)}
    for index in range(runs):
        run, machine = f"{index:016x}", f"made-up-{index % MACHINES:08x}"
        day = (date(2026, 1, 1) + timedelta(days=index // MACHINES % DAYS)).isoformat()
        races = [race_id(run, one) for one in asked for _ in range(CONTENDERS)]
        ratio = 1 + generator.exponential(0.3, rows)
        table = changed(
            plain,
            run=pa.array([run] * rows),
            race=pa.array(races),
            latency=pa.array(generator.lognormal(-7, 1, rows)),
            peak_memory=pa.array(generator.lognormal(15, 1, rows)),
            ratio=pa.array(ratio),
            ratio_low=pa.array(ratio * 0.97),
            ratio_high=pa.array(ratio * 1.03),
            measurements=measured(rows, generator),
        )
        write(table, dataset.place("results", machine, day, run, 1))
        told = pa.Table.from_pylist([state | {"run": run}], schema=arrow("runs"))
        write(told, dataset.place("runs", machine, day, run, 1))


ASK = """
import json, sys, time
from attnlab.runs.dataset import query
started = time.perf_counter()
rows = sum(1 for _ in query(sys.argv[1], sys.argv[2]).rows)
print(json.dumps([time.perf_counter() - started, rows]))
"""


def ask(folder: Path, sql: str) -> tuple[float, int]:
    """Seconds from the question to the last row, in a fresh process, and how many rows there are."""
    told = subprocess.run(
        [sys.executable, "-c", ASK, str(folder), sql], check=True, capture_output=True, text=True
    )
    seconds, rows = json.loads(told.stdout)
    return float(seconds), int(rows)


def collecting(folder: Path) -> float:
    """Milliseconds a workload: twenty runs of reports/reference-all, each with an id of its own.

    One more is collected before the clock starts, which loads the libraries.
    """
    run = read_run(ROOT / "reports" / "reference-all")
    made = []
    for index in range(21):
        run.folder, run.id = folder / f"run{index}", f"{index:016x}"
        run.folder.mkdir()
        shutil.copy(ROOT / "reports" / "reference-all" / "results.jsonl", run.folder)
        run.save()
        made.append(run.folder)
    collect(made[:1], folder / "dataset")
    started = time.perf_counter()
    found = collect(made[1:], folder / "dataset")
    return (time.perf_counter() - started) / sum(one.added for one in found) * 1e3


def page(folder: Path, arguments: argparse.Namespace) -> str:
    """What was asked beside what was measured."""
    sizes = [one.stat().st_size for one in folder.rglob("*.parquet")]
    where = environment()
    lines = [
        "# How fast a dataset answers",
        "",
        f"{where['cpu']}, {where['cores']['logical']} cores, {datetime.now(UTC):%Y-%m-%d}. "
        f"{arguments.measurements:,} made-up measurements of {ROUNDS} rounds in {arguments.runs:,} runs, "
        f"{len(sizes):,} files, {sum(sizes) / 2**30:.2f} GiB. Made by `python benchmarks/dataset.py`.",
        "",
        "| question | rows | median of 5 | slowest | met (under 2 s) |",
        "|---|--:|--:|--:|---|",
    ]
    for told, sql in QUESTIONS.items():
        times = [ask(folder, sql) for _ in range(5)]
        seconds, rows = [one[0] for one in times], times[0][1]
        middle = statistics.median(seconds)
        met = "yes" if middle < LIMIT else "no"
        lines.append(f"| {told} | {rows:,} | {middle:.2f} s | {max(seconds):.2f} s | {met} |")
    with tempfile.TemporaryDirectory() as place:
        each = collecting(Path(place))
    lines += [
        "",
        f"Collecting, verdicts included, took {each:.1f} ms a workload of 26 contenders (asked for: under 5 ms).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make the dataset, unless it stands there already, and ask it."""
    told = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    told.add_argument("--measurements", type=int, default=10_000_000)
    told.add_argument("--runs", type=int, default=1000)
    told.add_argument("--folder", type=Path, default=Path("reports/made-up-dataset"))
    told.add_argument("--keep", action="store_true")
    told.add_argument("--out", type=Path)
    arguments = told.parse_args()
    if not arguments.folder.exists():
        make(arguments.folder, arguments.measurements, arguments.runs)
    text = page(arguments.folder, arguments)
    print(text)
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    if not arguments.keep:
        shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    main()
