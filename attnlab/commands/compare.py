"""``attnlab compare``: race contenders on one workload and say who is faster, by how much, how surely."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from attnlab.commands.options import Device, Folders, Json


def command(
    contenders: Annotated[list[str], typer.Argument(help="Two or more; the first is the baseline.")],
    length: Annotated[int, typer.Option(help="Queries and keys.")] = 512,
    keys: Annotated[int | None, typer.Option(help="Keys, where they differ from the queries.")] = None,
    heads: Annotated[int, typer.Option(help="Heads.")] = 8,
    head_dim: Annotated[int, typer.Option(help="Dimension of one head.")] = 64,
    batch: Annotated[int, typer.Option(help="Batch size.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
    device: Device = "cpu",
    causal: Annotated[bool, typer.Option("--causal", help="Mask later keys.")] = False,
    seconds: Annotated[float, typer.Option(help="Time for the rounds of one set of processes.")] = 6.0,
    implementations: Folders = None,
    as_json: Json = False,
) -> int:
    """Race contenders on one workload; ratios with intervals, and a verdict in a sentence.

    Exits with 1 where fewer than two could be measured.
    """
    from attnlab.commands.progress import note
    from attnlab.comparing import compare
    from attnlab.ground.result import Outcome
    from attnlab.ground.workload import Workload
    from attnlab.plan import Limits

    if not seconds > 0:
        raise ValueError(f"--seconds must be above 0, got {seconds:g}")
    workload = Workload(
        batch=batch,
        heads=heads,
        queries=length,
        keys=length if keys is None else keys,
        head_dim=head_dim,
        dtype=dtype,
        device=device,
        causal=causal,
    )
    with note(quiet=as_json) as on_event:
        found = compare(
            contenders,
            workload,
            folders=implementations or [],
            limits=Limits(workload_seconds=seconds),
            on_event=on_event,
        )
    if as_json:
        typer.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        from attnlab.commands.tables import comparison_table, show

        show(comparison_table(found))
        for line in found.sentences():
            typer.echo(line)
    measured = [result for result in found.results if result.outcome is Outcome.MEASURED]
    return 0 if len(measured) > 1 else 1
