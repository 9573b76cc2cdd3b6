"""``attnlab run``: measure a plan, write the report, print the verdict."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from attnlab.commands.options import Folders, split_names, split_sizes


def command(
    plan: Annotated[Path | None, typer.Option(metavar="FILE.toml", help="A plan file.")] = None,
    backends: Annotated[
        str | None, typer.Option(help="Contenders, separated by commas; all that are there by default.")
    ] = None,
    lengths: Annotated[str | None, typer.Option(help="Sequence lengths, separated by commas.")] = None,
    heads: Annotated[str | None, typer.Option(help="Head counts, separated by commas.")] = None,
    dtypes: Annotated[str | None, typer.Option(help="float32, bfloat16, float16, float64.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu (default) or cuda.")] = None,
    baseline: Annotated[str | None, typer.Option(help="The contender the others are compared with.")] = None,
    implementations: Folders = None,
    numerics: Annotated[bool | None, typer.Option(help="Whether to run the numerical chapter.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time for the rounds of one workload, in seconds.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder for the run; reports/latest by default.")
    ] = None,
) -> int:
    """Measure a plan, write its report, and print the verdict.

    Options given here go before those of the plan file. Ctrl-C keeps what is done and still writes the report.
    """
    from attnlab import report
    from attnlab.commands.progress import live_progress
    from attnlab.plan import Limits, Plan, read_plan
    from attnlab.running import run

    chosen: dict[str, Any] = read_plan(plan) if plan else {}
    given = {
        "contenders": tuple(split_names(backends)) if backends is not None else None,
        "lengths": split_sizes("--lengths", lengths) if lengths is not None else None,
        "heads": split_sizes("--heads", heads) if heads is not None else None,
        "dtypes": split_names(dtypes) if dtypes is not None else None,
        "device": device,
        "baseline": baseline,
        "folders": tuple(implementations) if implementations else None,
        "numerics": numerics,
        "limits": Limits(workload_seconds=_positive("--seconds", seconds)) if seconds is not None else None,
    }
    chosen.update({name: value for name, value in given.items() if value is not None})
    started = time.monotonic()
    with live_progress() as progress:
        found = run(Plan.grid(**chosen), out, command=_again(), progress=progress)
        progress.detail("writing the report")
        drawing = time.monotonic()
        found.account["report"] = 0.0
        page = report.write(found)
    found.account["report"] = time.monotonic() - drawing
    found.save()
    typer.echo(report.verdict_text(found))
    typer.echo(f"\nThe report: {page}  ({time.monotonic() - started:.0f} s in all)")
    if not found.complete:
        typer.echo("Interrupted: the report covers what was measured until then.", err=True)
        return 130
    return 0


def _positive(option: str, number: float) -> float:
    if not number > 0:
        raise ValueError(f"{option} must be above 0, got {number:g}")
    return number


def _again() -> str:
    return shlex.join(["attnlab", *sys.argv[1:]])
