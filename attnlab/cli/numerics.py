"""``attnlab numerics``: hold theory against measurement, through the backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from attnlab.cli import options


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", type=options.Name(options.experiments))
@click.option("--list", "listing", is_flag=True, help="List the experiments and leave.")
@options.chosen_backends("Backends to measure through; all that are there by default.")
@click.option("--seed", default=0, help="Seed of every draw.")
@options.folders
@options.out("A new folder; reports/numerics by default.")
@options.as_json
@options.quiet
def numerics(
    names: tuple[str, ...], listing: bool, out: Path | None, as_json: bool, quiet: bool, **how: Any
) -> int:
    """Run the experiments called NAME and write their page; by default all, with the claims ledger.

    Exits with 1 where a measurement misses its prediction.
    """
    from attnlab.cli.progress import live_progress
    from attnlab.environment import environment
    from attnlab.experiments import (
        EXPERIMENTS,
        check_request,
        chosen_experiments,
        experiment,
        run_experiments,
    )
    from attnlab.experiments.claims import run_claims
    from attnlab.report import experiments_page
    from attnlab.runs.store import claim

    if listing:
        for name in EXPERIMENTS:
            click.echo(f"{name:20} {experiment(name).question}")
        return 0
    chosen = chosen_experiments(names or ("all",))
    check_request(**how)
    place = claim(out, Path("reports/numerics"), experiments_page.STORE)
    found = []
    with live_progress(quiet=quiet) as progress:
        for done, name in enumerate(chosen):
            progress.stage(name.replace("_", " "), done=done, total=len(chosen))
            found += run_experiments([name], **how)
        ledger = None
        if not names:
            progress.stage("claims", done=len(chosen), total=len(chosen))
            ledger = run_claims(findings=found, **how)
    page = experiments_page.write(
        found, place, environment=environment(), command=options.typed(), ledger=ledger
    )
    if as_json:
        click.echo(json.dumps([one.to_dict() for one in found]))
    else:
        for one in found:
            passed = sum(row.passed for row in one.rows)
            click.echo(f"{one.experiment}: {passed} of {len(one.rows)} passed. {one.conclusion}")
        if not quiet:
            click.echo(f"\nThe page: {page}")
    return 0 if all(one.passed for one in found) else 1
