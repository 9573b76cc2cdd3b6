"""``attnlab claims``: what is often said of attention, and what a measurement makes of it."""

from __future__ import annotations

import json
from typing import Any

import click

from attnlab.cli import options


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...", type=options.Name(options.claims))
@click.option("--list", "as_list", is_flag=True, help="List the claims and measure nothing.")
@options.chosen_backends("Measure through these; all that are there by default.")
@click.option("--seed", type=int, default=0, help="Of every random number.")
@options.folders
@options.as_json
def claims(ids: tuple[str, ...], as_list: bool, as_json: bool, **how: Any) -> int:
    """Measure what is often claimed about attention: all claims, or those named.

    Runs the experiments of `attnlab numerics` that decide them, each once.

    A verdict is no failure: the exit status is 0 whatever they are.
    """
    from attnlab.cli.progress import note
    from attnlab.cli.tables import claims_table, ledger_table, show
    from attnlab.experiments.claims import chosen, run_claims

    if as_list:
        listed = [(one.id, one.theme, one.says) for one in chosen(ids)]
        if as_json:
            click.echo(json.dumps([dict(zip(("id", "theme", "says"), one, strict=True)) for one in listed]))
        else:
            show(claims_table(listed))
        return 0
    with note(quiet=as_json) as on_event:
        found = run_claims(ids, on_event=on_event, **how)
    if as_json:
        click.echo(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False))
        return 0
    show(ledger_table(found))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items() if count)
    click.echo(f"{counts}; seed {how['seed']}, {found.facts['seconds']} s, through {found.facts['backends']}")
    return 0
