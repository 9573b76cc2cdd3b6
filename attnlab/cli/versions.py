"""``attnlab gate`` and ``attnlab diff``: two versions raced, and two stored runs side by side."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from attnlab.cli import options
from attnlab.cli.racing import plan_of
from attnlab.system import without_garbage_collection
from attnlab.text import finite

#: what is raced where nothing is said
_GRID = {"lengths": "128,512,1024", "heads": "8"}


def _percent(context: click.Context, param: click.Parameter, text: str) -> float:
    """``3%`` or ``3`` as 0.03."""
    try:
        part = float(text.removesuffix("%")) / 100
    except ValueError:
        part = -1.0
    if not 0 <= part <= 100:
        raise ValueError(f"{param.opts[0]} must be a percentage, as 3%, got {text!r}")
    return part


_margin = partial(click.option, callback=_percent, metavar="%")


@click.command(
    cls=options.Command,
    common=("backends", "lengths", "heads", "folders", "slower", "unseen", "summary", "as_json"),
)
@click.argument("base")
@click.argument("head")
@click.option("--plan", "file", type=options.PATH, metavar="FILE.toml", help="A plan file: its workloads.")
@options.preset
@options.chosen_backends("What is raced; the backends of --implementations by default.")
@options.workload_options(grid=True, defaults=_GRID)
@options.folders
@_margin("--margin", "slower", default="3%", help="A smaller slowdown is no regression.")
@_margin("--memory-margin", "memory", default="5%", help="The same for peak memory.")
@_margin("--setup-margin", "setup", default="50%", help="The same for set-up.")
@_margin("--unseen", default="5%", help="No verdict if a larger slowdown could be missed.")
@click.option("--allow-kernel-change", "kernel_may_change", is_flag=True, help="Another kernel is allowed.")
@click.option("--seconds", type=options.AMOUNT, default=20.0, help="Time for one race.")
@click.option("--visits", type=options.VISITS, metavar="N", default=8, help="To each workload, at most.")
@click.option("--summary", type=options.PATH, metavar="FILE", help="Append the verdict in Markdown.")
@options.as_json
@options.quiet
def gate(
    base: str,
    head: str,
    seconds: float,
    visits: int,
    summary: Path | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Race two versions: did it become slower, bigger or wrong?

    Each side is a commit, branch or tag of the git repository here (. is the working tree as it is), the path of an
    interpreter or virtual environment, or a requirement such as torch==2.11.0, which is installed over this
    environment's packages. By default at 8 heads and lengths 128, 512 and 1024.

    Exits with 0 where nothing regressed, and says which slow-down it could not have seen; with 1 for a regression that
    two races agree on; with 3 where there is no verdict, so that a pipeline can try again.
    """
    from attnlab.backends.discovery import backends as known
    from attnlab.backends.side import require_two, setting_of
    from attnlab.cli.progress import progress
    from attnlab.report import fill, show
    from attnlab.runs import gate as regression

    sides = setting_of(base), setting_of(head)
    require_two(*sides)
    margins = regression.Margins(**{one.name: given.pop(one.name) for one in fields(regression.Margins)})
    if not given["file"] and not given["preset"]:
        given |= {name: given[name] or text for name, text in _GRID.items()}
    plan = plan_of(**given)
    raced = plan.contenders or tuple(sorted({*known(plan.folders)} - {*known()}))
    if not raced:
        raise ValueError("name what is raced: --backends A,B, or --implementations DIR with backend files")
    if visits < regression.LEAST_VISITS:
        raise ValueError(f"--visits must be at least {regression.LEAST_VISITS} for a gate, got {visits}")
    limits = replace(
        regression.LIMITS,
        workload_seconds=seconds,
        visits=min(regression.LIMITS.visits, visits),
        most_visits=visits,
    )
    with progress(quiet=as_json or quiet) as shown:
        found = regression.gate(
            *sides,
            raced,
            plan.workloads,
            folders=plan.folders,
            margins=margins,
            limits=limits,
            on_event=shown.detail,
        )
    if summary:
        with summary.open("a", encoding="utf-8") as file:
            file.write(fill("gate.md.j2", found=found, quiet=False))
    if as_json:
        click.echo(msgspec.json.encode(found.to_json()))  # which writes null for nan
    else:
        show(fill("gate.md.j2", found=found, quiet=quiet))
    return regression.STATUS[found.found]


@click.command()
@click.argument("first", metavar="RUN", type=options.PATH)
@click.argument("second", metavar="RUN", type=options.PATH)
@click.option(
    "--anyway", is_flag=True, help="Show runs of different conditions too; nothing is called changed then."
)
@options.as_json
@without_garbage_collection(last=True)
def diff(first: Path, second: Path, anyway: bool, as_json: bool) -> int:
    """Show two stored runs side by side.

    They are of one machine and one plan, as of two versions of a library. Their seconds did not race, so that their
    ratio has no interval and no verdict. What did race is each contender and its run's baseline: "changed" says that
    the intervals of that ratio are disjoint in the two runs.
    """
    from attnlab.report import differences, fill, show
    from attnlab.runs import diff as two
    from attnlab.runs.store import read_run

    found = two.diff(read_run(first), read_run(second), anyway=anyway)
    if as_json:
        click.echo(json.dumps(finite(asdict(found))))
        return 0
    show(fill("diff.md.j2", found=found, rows=differences(found)))
    return 0
