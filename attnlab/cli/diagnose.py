"""``attnlab diagnose``: what attention does in a trained model, on a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from attnlab.cli import options


@click.command()
@click.argument("model", type=options.PATH)
@click.option(
    "--text",
    "text_file",
    required=True,
    type=options.PATH,
    metavar="FILE",
    help="What it reads, UTF-8.",
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
    "--save-inputs",
    type=options.PATH,
    metavar="FILE.safetensors",
    help="Keep query, key and value of every layer, for --inputs of run and compare.",
)
@options.folders
@options.out("A new folder; reports/diagnosis by default.")
@options.as_json
def diagnose(model: Path, text_file: Path, out: Path | None, as_json: bool, **how: Any) -> int:
    """Say what attention does in MODEL, head by head, and what follows for number formats and backends.

    MODEL is a folder with a model of transformers: config.json, *.safetensors, a tokenizer. Nothing is downloaded,
    and no code of the model's is run. --save-inputs writes tensors layer0.query, layer0.key, layer0.value, ...; any
    safetensors file with such tensors, or with query, key and value alone, may be given to run and compare as --inputs.
    """
    from attnlab.cli.progress import note
    from attnlab.experiments.diagnosis import diagnose as examined
    from attnlab.experiments.trained_model import read_text
    from attnlab.report import diagnosis_page as page
    from attnlab.runs.store import claim
    from attnlab.text import without_home

    text = read_text(text_file)
    place = None if as_json and out is None else claim(out, Path("reports/diagnosis"), page.STORE)
    with note(quiet=as_json) as on_event:
        name = without_home(str(text_file))
        found = examined(model, text, text_name=name, command=options.typed(), on_event=on_event, **how)
    written = None if place is None else page.write(found, place)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
        return 0
    for line in page.summary(found):
        click.echo(line)
    click.echo(f"\nThe page: {written}")
    return 0
