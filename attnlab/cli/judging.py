"""``attnlab judge``: judges files that programs wrote, each in a sandbox, against one reference."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from attnlab.cli import options
from attnlab.cli.progress import progress
from attnlab.judge.candidates import read_candidate
from attnlab.judge.judging import Judge
from attnlab.judge.score import Record
from attnlab.report.render import fill, print_markdown
from attnlab.system import terminable

#: seconds until a watched folder is read again after no new file was found
_LOOK_SECONDS = 1.0
#: opened before anything is judged, so that a wrong path is reported at once
_APPENDED = click.File("ab", lazy=False)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(
    cls=options.Command,
    common=("reference", "length", "heads", "causal", "jsonl", "forbid", "watch", "trust"),
)
@click.argument("paths", nargs=-1, metavar="FILE...")
@click.option("--reference", default="torch_sdpa", metavar="NAME", help="A backend, or a file with a Model.")
@options.workload_options(grid=False)
@click.option("--jsonl", type=_APPENDED, metavar="FILE", help="Append records as JSON; - prints them.")
@click.option("--forbid", multiple=True, metavar="FUNCTION", help="What it may not call; repeatable.")
@click.option("--among", type=options.COUNT, metavar="N", help="How many candidates you choose from.")
@click.option("--watch", type=_FOLDER, metavar="DIR", help="Judge files as they appear there.")
@click.option("--trust", is_flag=True, help="No sandbox, for what you have read yourself.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of a record.")
@options.quiet
def judge(
    paths: tuple[str, ...],
    reference: str,
    jsonl: IO[bytes] | None,
    forbid: tuple[str, ...],
    among: int | None,
    watch: Path | None,
    trust: bool,
    schema: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Judge kernels that programs wrote: right, fast, and no cheat?

    A candidate is a Python file: a backend, a function of q, k and v, or a class ModelNew. Each runs in a separate
    sandbox (bubblewrap). Exits with 1 if a file holds no candidate, otherwise with 0.
    """
    if schema:
        click.echo(json.dumps(msgspec.json.schema(Record), indent=2))
        return 0
    if not paths and watch is None:
        raise ValueError("judge expects Python files with candidates, got none; name them, or --watch DIR")
    # None: the default workload, or the shapes that a reference in KernelBench's form sets
    workload = options.read_workload(given)[0] if any(given.values()) else None
    how: dict[str, Any] = {"among": among, "forbid": forbid, "trust": trust}
    records: list[Record] = []
    named = str(getattr(jsonl, "name", "<stdout>")) if jsonl else os.devnull
    printed = named == "<stdout>"
    shown = progress(quiet=quiet or printed)
    try:
        with shown as bar, terminable(), Judge(reference, workload, **how) as one:
            bar.detail(f"judging against {reference}")
            for record in _watched(one, paths, watch, _known(named)):
                records.append(record)  # first: it is printed even if the disk is full
                if jsonl:
                    jsonl.write(msgspec.json.encode(record) + b"\n")
                    jsonl.flush()
                bar.detail(f"{record.name}: {record.status}")
                if watch is not None and not printed:
                    row = fill("judge.md.j2", records=[record], asked=one.asked, reference=reference)
                    print_markdown(row)
    finally:  # after Ctrl-C too
        if records and watch is None and not printed:
            print_markdown(fill("judge.md.j2", records=records, asked=one.asked, reference=reference))
    return int(any(record.status == "refused" for record in records))


def _watched(one: Judge, paths: tuple[str, ...], folder: Path | None, known: set[str]) -> Iterator[Record]:
    """Yield records of the files, then of new or changed files in the folder, unless `known`, until an interrupt."""
    yield from one.judge(paths)
    tried = dict[Path, float]()
    with suppress(KeyboardInterrupt):
        while folder is not None:
            new = list[Path]()
            for file in sorted(folder.glob("*.py")):
                with suppress(OSError):
                    changed = file.stat().st_mtime
                    if tried.get(file) == changed:
                        continue
                    tried[file] = changed
                with suppress(ValueError):  # `judge` yields a record for an invalid file too
                    digest = read_candidate(file).digest
                    if digest in known:
                        continue
                    known.add(digest)
                new.append(file)
            yield from one.judge(new)
            time.sleep(0 if new else _LOOK_SECONDS)


def _known(jsonl: str) -> set[str]:
    """The digests of the candidates that have a record in the file."""
    found = set[str]()
    with suppress(OSError), Path(jsonl).open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValueError, AttributeError):
                found.add(json.loads(line).get("digest", ""))
    return found - {""}
