"""``attnlab numerics`` and ``attnlab diagnose``: theory against measurement, and a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from attnlab.cli import options


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", type=options.Name(options.experiments))
@click.option("--list", "listing", is_flag=True, help="List the experiments; with --claims the claims.")
@click.option(
    "--claims", is_flag=True, help="Measure what is often claimed about attention; NAME is a claim."
)
@options.chosen_backends("Backends to measure through; all that are there by default.")
@click.option("--seed", default=0, help="Seed of every draw.")
@options.folders
@options.out("A new folder; reports/numerics by default.")
@options.as_json
@options.quiet
def numerics(
    names: tuple[str, ...],
    listing: bool,
    claims: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> int:
    """Run numerical experiments and write their page.

    Those called NAME; by default all, with the claims ledger. Exits with 1 where a measurement misses its prediction.
    A claim that is refuted is no failure.
    """
    from attnlab.cli.progress import progress
    from attnlab.cli.tables import Fitted, show
    from attnlab.environment import environment
    from attnlab.lab import (
        EXPERIMENTS,
        check_request,
        chosen_experiments,
        experiment,
        run_experiment,
    )
    from attnlab.lab.claims import run_claims
    from attnlab.report import experiments_page
    from attnlab.runs.store import claim

    if claims:
        return _claims(names, listing, as_json, **how)
    if listing:
        rows = [(name, experiment(name).question) for name in EXPERIMENTS]
        show(Fitted(["experiment", "question"], rows, prose=["question"]))
        return 0
    chosen = chosen_experiments(names or ("all",))
    check_request(**how)
    place = claim(out, Path("reports/numerics"), experiments_page.STORE)
    found = []
    with progress(quiet=quiet) as shown:
        for done, name in enumerate(chosen):
            shown.stage(name.replace("_", " "), done=done, total=len(chosen))
            found.append(run_experiment(name, **how))
        ledger = None
        if not names:
            shown.stage("claims", done=len(chosen), total=len(chosen))
            ledger = run_claims(findings=found, **how)
    page = experiments_page.write(
        found, place, environment=environment(), command=options.typed(), ledger=ledger
    )
    if as_json:
        click.echo(json.dumps([one.to_dict() for one in found]))
    else:
        for one in found:
            passed = sum(row.passed for row in one.rows)
            show(f"{one.experiment}: {passed} of {len(one.rows)} passed. {one.conclusion}")
        if not quiet:
            click.echo(f"\nThe page: {page}")
    return 0 if all(one.passed for one in found) else 1


def _claims(ids: tuple[str, ...], listing: bool, as_json: bool, **how: Any) -> int:
    """Measure these claims, or all, and print the ledger; or list them."""
    from attnlab.cli.progress import progress
    from attnlab.cli.tables import claims_table, ledger_table, show
    from attnlab.lab.claims import chosen, run_claims

    if listing:
        listed = [(one.id, one.theme, one.says) for one in chosen(ids)]
        if as_json:
            click.echo(json.dumps([dict(zip(("id", "theme", "says"), one, strict=True)) for one in listed]))
        else:
            show(claims_table(listed))
        return 0
    with progress(quiet=as_json) as shown:
        found = run_claims(ids, on_event=shown.detail, **how)
    if as_json:
        click.echo(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False))
    else:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items() if count)
        show(f"{counts}; seed {how['seed']}, {found.facts['seconds']} s", ledger_table(found))
    return 0


@click.command()
@click.argument("model", type=options.PATH)
@click.option(
    "--text",
    "text_files",
    required=True,
    multiple=True,
    type=options.PATH,
    metavar="FILE",
    help="What it reads, UTF-8. Given again: further texts, for the errors of the comparison with untrained models.",
)
@click.option(
    "--length",
    type=int,
    metavar="N",
    help="The first N tokens of the text. [default: 512, or as many as the model takes]",
)
@options.chosen_backends("Whose errors to measure; all by default that set up fast.")
@click.option("--race/--no-race", default=True, help="Race the quickest backends on its inputs.")
@click.option(
    "--where",
    is_flag=True,
    help="Say what share of a forward pass attention takes, and stop: no page is written.",
)
@click.option(
    "--save-inputs",
    type=options.PATH,
    metavar="FILE.safetensors",
    help="Keep query, key and value of every layer, for --inputs of run and compare.",
)
@options.folders
@options.out("A new folder; reports/diagnosis by default.")
@options.as_json
def diagnose(model: Path, text_files: tuple[Path, ...], out: Path | None, as_json: bool, **how: Any) -> int:
    """Say what attention does in a trained model, head by head.

    And what follows for number formats and backends. MODEL is a folder with a model of transformers: config.json,
    *.safetensors, a tokenizer. Nothing is downloaded, and no code of the model's is run. --save-inputs writes tensors
    layer0.query, layer0.key, layer0.value, ...; any safetensors file with such tensors, or with query, key and value
    alone, may be given to run and compare as --inputs.
    """
    from attnlab.cli.progress import progress
    from attnlab.lab.diagnosis import diagnose as examined
    from attnlab.lab.trained_model import read_text
    from attnlab.report import diagnosis_page as page
    from attnlab.runs.store import claim
    from attnlab.text import without_home

    texts = [read_text(one) for one in text_files]
    if how.pop("where"):
        if out or how["save_inputs"] or how["backends"]:
            raise ValueError("--where tells the share alone: leave out --out, --save-inputs and --backends")
        from attnlab.lab.share import attention_share

        with progress(quiet=as_json) as shown:
            share = attention_share(model, texts, length=how["length"], on_event=shown.detail)
        click.echo(json.dumps(share.to_json()) if as_json else "\n".join(share.sentences()))
        return 0
    place = None if as_json and out is None else claim(out, Path("reports/diagnosis"), page.STORE)
    with progress(quiet=as_json) as shown:
        names = [without_home(str(one)) for one in text_files]
        found = examined(model, texts, text_name=names, command=options.typed(), on_event=shown.detail, **how)
    written = None if place is None else page.write(found, place)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
        return 0
    for line in page.summary(found):
        click.echo(line)
    click.echo(f"\nThe page: {written}")
    return 0
