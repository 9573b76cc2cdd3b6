"""``attnlab claims``: what is often said of attention, and what a measurement makes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from attnlab.commands import options
from attnlab.contract.fields import split_names

if TYPE_CHECKING:
    from rich.table import Table

    from attnlab.claims.ledger import Ledger


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--list", "as_list", is_flag=True, help="List the claims and measure nothing.")
@click.option("--backends", metavar="A,B", help="Measure through these; all that are there by default.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of every random number.")
@options.folders
@options.as_json
def claims(
    ids: tuple[str, ...],
    as_list: bool,
    backends: str | None,
    seed: int,
    folders: tuple[str, ...],
    as_json: bool,
) -> int:
    """Measure what is often claimed about attention: all claims, or those named.

    Runs the experiments of `attnlab numerics` that decide them, each once.

    A verdict is no failure: the exit status is 0 whatever they are.
    """
    from attnlab.claims.claim import chosen
    from attnlab.claims.ledger import run_claims
    from attnlab.commands.progress import note
    from attnlab.commands.tables import show

    if as_list:
        listed = [(one.id, one.theme, one.says) for one in chosen(ids)]
        if as_json:
            click.echo(json.dumps([dict(zip(("id", "theme", "says"), one, strict=True)) for one in listed]))
        else:
            show(_list_table(listed))
        return 0
    names = None if backends is None else split_names(backends)
    with note(quiet=as_json) as on_event:
        found = run_claims(ids, seed=seed, backends=names, folders=folders, on_event=on_event)
    if as_json:
        click.echo(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False))
        return 0
    show(_ledger_table(found))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items() if count)
    click.echo(f"{counts}; seed {seed}, {found.facts['seconds']} s, through {found.facts['backends']}")
    return 0


def _list_table(listed: list[tuple[str, str, str]]) -> Table:
    from rich.table import Table

    table = Table(title="claims", title_justify="left")
    for column in ("id", "theme", "claim"):
        table.add_column(column, overflow="fold")
    for row in listed:
        table.add_row(*row)
    return table


def _ledger_table(found: Ledger) -> Table:
    """A row a claim: verdict, claim, right statement, the deciding figure."""
    from rich.markup import escape
    from rich.table import Table

    from attnlab.claims.claim import ClaimVerdict
    from attnlab.claims.page import deciding_figure, verdict_of

    table = Table(title="what is claimed", title_justify="left", show_lines=True)
    for column in ("id", "verdict", "claim", "what is so", "deciding figure"):
        table.add_column(column, overflow="fold")
    for entry in found.entries:
        verdict = verdict_of(entry, {one: str(one) for one in ClaimVerdict})
        cells = (entry.id, verdict, entry.says, entry.truth, deciding_figure(entry))
        table.add_row(*(escape(cell) for cell in cells))
    return table
