"""``attnlab compare``: race contenders on one workload and say who is faster, by how much, how surely."""

from __future__ import annotations

import json

import click

from attnlab.commands import options


@click.command()
@click.argument("contenders", nargs=-1, required=True, metavar="CONTENDER CONTENDER...")
@click.option("--length", default=512, show_default=True, help="Queries and keys.")
@click.option("--keys", type=int, help="Keys, where they differ from the queries.")
@click.option("--heads", default=8, show_default=True, help="Heads.")
@click.option("--head-dim", default=64, show_default=True, help="Dimension of one head.")
@click.option("--batch", default=1, show_default=True, help="Batch size.")
@click.option("--dtype", default="float32", show_default=True, help="float32, bfloat16, float16 or float64.")
@options.device
@click.option("--causal", is_flag=True, help="Mask later keys.")
@click.option("--seconds", default=5.0, show_default=True, help="Time for one set of processes.")
@options.folders
@options.as_json
def compare(
    contenders: tuple[str, ...],
    length: int,
    keys: int | None,
    heads: int,
    head_dim: int,
    batch: int,
    dtype: str,
    device: str,
    causal: bool,
    seconds: float,
    folders: tuple[str, ...],
    as_json: bool,
) -> int:
    """Race contenders on one workload; the first is the baseline.

    Prints ratios with intervals, and a verdict in a sentence. Exits with 1 where fewer than two could be measured.
    """
    from attnlab.commands.progress import note
    from attnlab.contract.result import Outcome
    from attnlab.contract.workload import Workload
    from attnlab.measuring.limits import Limits
    from attnlab.program.compare import compare as race

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
        found = race(
            contenders,
            workload,
            folders=folders,
            limits=Limits(workload_seconds=seconds),
            on_event=on_event,
        )
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        from attnlab.commands.tables import comparison_table, show

        show(comparison_table(found))
        for line in found.sentences():
            click.echo(line)
    measured = [result for result in found.results if result.outcome is Outcome.MEASURED]
    return 0 if len(measured) > 1 else 1
