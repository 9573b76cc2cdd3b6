"""``attnlab plans``: the presets, with their shapes, their sources and what they cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from attnlab.cli import completion, options

if TYPE_CHECKING:
    from attnlab.runs.presets import Part


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME[/PHASE]]...", shell_complete=completion.presets)
@options.as_json
def plans(names: tuple[str, ...], as_json: bool) -> int:
    """List the presets of --preset: all of them, or those named, with the cost at each length.

    FLOPs are those of the matrix products over the pairs that the mask keeps; the score matrix is what an
    implementation holds that makes it whole; least bytes are the inputs read once and the results written once. In
    float32, as presets are measured on the CPU unless --dtypes says otherwise.
    """
    from attnlab.cli.tables import costs_table, presets_table, show
    from attnlab.runs.presets import chosen_parts, presets

    known = presets()
    parts = chosen_parts(",".join(names or known))
    asked = dict.fromkeys(one.preset for one in parts)
    if as_json:
        click.echo(json.dumps([_plain(name, parts) for name in asked], ensure_ascii=False))
        return 0
    if not names:
        show(presets_table(parts))
        click.echo(
            "Costs are in float32, from the shortest length to the longest. One preset in full, with its source:"
        )
        click.echo(
            "attnlab plans NAME. To measure it: attnlab run --preset NAME, or NAME/PHASE for a part of it."
        )
        return 0
    for name in asked:
        preset = known[name]
        click.echo(f"{preset.title}\nSource: {preset.source}.")
        if preset.note:
            click.echo(f"Note: {preset.note}")
        show(costs_table([one for one in parts if one.preset == name]))
    return 0


def _plain(name: str, parts: tuple[Part, ...]) -> dict[str, Any]:
    """A preset with these parts of it, ready for JSON."""
    from attnlab.runs.presets import cost, presets

    preset = presets()[name]
    mine = [
        {
            "name": one.path,
            "workloads": [{**workload.to_dict(), **cost(workload)} for workload in one.workloads()],
        }
        for one in parts
        if one.preset == name
    ]
    return {"name": name, "title": preset.title, "source": preset.source, "note": preset.note, "parts": mine}
