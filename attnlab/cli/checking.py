"""The commands ``backends`` and ``check``, ``numerics`` (experiments) and ``diagnose`` (a trained model)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import msgspec

from attnlab import figure_style, lab
from attnlab.backends.contender import Contender
from attnlab.backends.discovery import backends as there
from attnlab.backends.discovery import require
from attnlab.cli import options
from attnlab.cli.progress import progress
from attnlab.correctness.check import Checked
from attnlab.correctness.check import check as hold
from attnlab.correctness.support import Support, listed, support
from attnlab.environment import environment
from attnlab.report import support_text
from attnlab.report.numerics import write_numerics
from attnlab.report.render import fill, print_markdown
from attnlab.runs.store import claimed
from attnlab.system import terminable
from attnlab.text import finite, read_text


@click.command(cls=options.Command)
@options.backend_names
@options.device
@options.folders
@click.option("--matrix", is_flag=True, help="Ask about every feature, run each supported once; Markdown.")
@options.as_json
def backends(
    names: tuple[str, ...], device: str, folders: tuple[str, ...], matrix: bool, as_json: bool
) -> int:
    """List the backends: which can run here, which cannot, and why.

    Lists all backends, or those that are named. With --matrix, shows for each backend whether it supports each feature,
    in every direction and number format: masks, bias, soft cap, sinks, grouped heads, decoding. The answer is yes, or
    the reason why not. With --matrix, exits with 1 if a backend fails on a feature that it does not decline.
    """
    for name in names:
        require(name, folders)
    found, every = list[Support](), names or there(folders)
    try:
        with progress(quiet=as_json) as shown, terminable():
            if matrix:
                found.extend(support(one, device, folders, on_event=shown.detail) for one in every)
            else:
                here = listed(device, folders, names, on_event=shown.detail)
    finally:  # after Ctrl-C too
        if found:
            click.echo(json.dumps([asdict(one) for one in found]) if as_json else support_text(found))
    if matrix:
        return 1 if any(one.faults for one in found) else 0
    if as_json:
        click.echo(json.dumps([asdict(one) for one in here]))
    else:
        print_markdown(fill("backends.md.j2", device=device, found=here))
    return 0


@click.command(cls=options.Command)
@options.backend_names
@options.names("--dtypes", "--dtype", metavar="A,B", help="Number formats (default: all).")
@click.option("--everything", is_flag=True, help="Large questions too, and whether bits repeat: minutes.")
@options.seed
@options.device
@options.folders
@options.as_json
@options.quiet
def check(names: tuple[str, ...], folders: tuple[str, ...], as_json: bool, quiet: bool, **how: Any) -> int:
    """Check answers and gradients of backends against float64.

    Checks all backends, or those that are named, in each number format. Exits with 1 if a backend is wrong or fails to
    load, or if a named backend cannot run. --quiet prints only failures.
    """
    asked, found = names or there(folders), list[Checked]()
    for name in asked:
        Contender.parse(name).require(folders)
    how |= {"keep": len(asked) > 1, "invariance": how["everything"]}
    try:
        with progress(quiet=as_json or quiet) as shown, terminable():
            found.extend(hold(one, folders, on_event=shown.detail, **how) for one in asked)
    finally:  # after Ctrl-C too
        failed = [
            one for one in found if one.passed is False or not (one.loaded and (one.passed or not names))
        ]
        if as_json and found:
            click.echo(json.dumps([asdict(one) for one in found]))
        elif quiet:
            for one in failed:
                click.echo(f"{one.name}: {one.reason}")
        elif found:
            print_markdown(fill("check.md.j2", found=found))
    return 1 if failed else 0


@click.command(cls=options.Command)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "listing", is_flag=True, help="List the experiments; with --claims the claims.")
@click.option("--claims", is_flag=True, help="Measure what is often claimed; NAME is a claim.")
@options.chosen_backends(help="Backends to measure through (default: those that race unnamed).")
@options.seed
@options.folders
@options.out(help="A new folder; reports/numerics by default.")
@options.as_json
@options.quiet
def numerics(names: tuple[str, ...], out: Path | None, as_json: bool, quiet: bool, **how: Any) -> int:
    """Run numerical experiments and write their page.

    Runs the named experiments; by default all of them, and the claims. Exits with 1 if a measurement misses its
    prediction, or if nothing was measured. A refuted claim is not a failure.
    """
    listing, claims = how.pop("listing"), how.pop("claims")
    lab.check_request(**how)
    said = lab.chosen_claims(names) if claims else []
    if listing:
        known = [
            (name, lab.load_experiment(name).texts[0]) for name in names or lab.EXPERIMENTS if not claims
        ]
        known += [(it.id, it.says) for it in said]
        if as_json:
            click.echo(json.dumps(dict(known), ensure_ascii=False))
        else:
            print_markdown(fill("listing.md.j2", rows=known))
        return 0
    if claims:
        if out is not None:
            raise ValueError("--claims prints the ledger and writes no files; leave out --out")
        return _claims(names, as_json, quiet, **how)
    chosen = lab.chosen_experiments(names or ("all",))
    folder = claimed(out, Path("reports/numerics"), lab.CHAPTER_FILE)
    place = click.get_current_context().with_resource(folder)
    try:
        with progress(quiet=as_json or quiet) as shown, terminable():
            lab.run_chapter(place, chosen, shown.stage, **how)
    finally:  # after Ctrl-C too: the page covers what was measured, which is on disk
        found = lab.read_chapter(place)
        if found:
            told: dict[str, Any] = {"environment": environment(), "command": options.typed()}
            page = write_numerics(found, place, claims=[] if names else lab.ledger((), found), **told)
        if as_json:
            click.echo(json.dumps(finite(msgspec.to_builtins(found))))
        elif found:
            print_markdown(fill("findings.md.j2", findings=found, page=page))
    if not any(one.rows for one in found):
        why = "; ".join(f"{name}: {reason}" for one in found[:1] for name, reason in one.missing.items())
        click.echo(f"attnlab: nothing was measured: {why or 'every backend asked is too slow'}", err=True)
        return 1
    return 0 if all(one.passed for one in found) else 1


def _claims(ids: tuple[str, ...], as_json: bool, quiet: bool, **how: Any) -> int:
    """Measure these claims, or all if none is named, and print the ledger."""
    findings = list[lab.Finding]()
    try:
        with progress(quiet=as_json or quiet) as shown, terminable():
            lab.judge(ids, findings, shown.stage, **how)
    finally:  # after Ctrl-C too
        found = lab.ledger(ids, findings)
        if as_json:
            click.echo(json.dumps([one.to_dict() for one in found], ensure_ascii=False, allow_nan=False))
        else:
            counts = Counter(str(one.verdict) for one in found)
            print_markdown(fill("claims.md.j2", claims=found, counts=counts, seed=how["seed"]))
    return 0


@click.command(cls=options.Command)
@click.argument("model", type=options.PATH)
@click.option("--text", "file", required=True, type=options.PATH, metavar="FILE", help="Its input, UTF-8.")
@click.option("--length", default=512, metavar="N", help="The first N tokens of the text.")
@click.option("--untrained", type=int, metavar="SEED", help="Random weights of this seed instead.")
@options.out(help="A new folder; reports/diagnosis by default.")
@options.as_json
def diagnose(
    model: Path, file: Path, length: int, untrained: int | None, out: Path | None, as_json: bool
) -> None:
    """Say what attention does in a trained model, head by head.

    MODEL is a folder with a transformers model: config.json, *.safetensors and a tokenizer. Nothing is downloaded, and
    code that comes with the model is not run. From Python, attnlab.diagnose(module, inputs) takes any torch module.
    """
    try:
        text = read_text(file, 2**26)
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or fault
        raise ValueError(f"the text {file} cannot be read: {reason}") from None
    asked, place = lab.read_model(model, text, length, untrained), None
    if out is not None or not as_json:
        folder = claimed(out, Path("reports/diagnosis"), "diagnosis.json")
        place = click.get_current_context().with_resource(folder)
    found = lab.diagnose(*asked)
    plain = json.dumps(asdict(found), indent=1)
    if place is not None:
        (place / "diagnosis.json").write_text(plain + "\n", encoding="utf-8")
        figure_style.save(found.figure(), place / "spread.png")
    if as_json:
        click.echo(plain)
    else:
        print_markdown(fill("diagnosis.md.j2", found=found, place=place))
