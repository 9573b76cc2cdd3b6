"""``attnlab backends`` and ``attnlab check``: what is there, what does it do, and is it right?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from attnlab.cli import options
from attnlab.workload.vocabulary import DTYPES


@click.command()
@options.backend_names
@options.device
@options.folders
@click.option("--matrix", is_flag=True, help="Ask for every feature and run each yes once; Markdown.")
@options.as_json
def backends(
    names: tuple[str, ...], device: str, folders: tuple[str, ...], matrix: bool, as_json: bool
) -> int:
    """List the backends: which can run here, which cannot, and why.

    All of them, or those named. With --matrix each of them is asked for every feature (masks, bias, soft cap, sinks,
    grouped heads, decoding, ...) in every direction and number format: yes, or the reason. Exits with 1 where one does
    not decline what it does not do.
    """
    from attnlab.backends.discovery import backends as there
    from attnlab.backends.discovery import require
    from attnlab.cli.progress import progress
    from attnlab.correctness.support import listed as found_here
    from attnlab.correctness.support import support
    from attnlab.report import fill, show
    from attnlab.report.experiments_page import support_text

    for name in names:
        require(name, folders)
    with progress(quiet=as_json) as shown:
        if matrix:
            found = [support(one, device, folders, on_event=shown.detail) for one in names or there(folders)]
        else:
            here = found_here(device, folders, names, on_event=shown.detail)
    if matrix:
        click.echo(json.dumps([asdict(one) for one in found]) if as_json else support_text(found))
        return 1 if any(one.faults for one in found) else 0
    here.sort(key=lambda one: bool(one.reason))
    if as_json:
        click.echo(json.dumps([asdict(one) for one in here]))
    else:
        show(fill("backends.md.j2", device=device, found=here))
    return 0


@click.command()
@options.backend_names
@options.names("--dtypes", "--dtype", known=DTYPES, metavar="A,B", help="Number formats (default: all).")
@click.option(
    "--everything", is_flag=True, help="Ask the large questions too, and for the same bits again: minutes."
)
@options.device
@options.folders
@options.as_json
@options.quiet
def check(names: tuple[str, ...], folders: tuple[str, ...], as_json: bool, quiet: bool, **how: Any) -> int:
    """Check answers and gradients of backends against float64.

    All backends, or those named: one line for each number format. Exits with 1 where one is wrong, cannot be loaded,
    or was named and could not be asked; with --quiet those alone are printed.
    """
    from attnlab.backends.contender import Contender
    from attnlab.backends.discovery import backends as there
    from attnlab.cli.progress import progress
    from attnlab.correctness.check import check as hold
    from attnlab.report import fill, show

    asked = names or there(folders)
    for name in asked:
        Contender.parse(name).require(folders)
    keep = len(asked) > 1
    with progress(quiet=as_json or quiet) as shown:
        found = [
            hold(one, folders, on_event=shown.detail, keep=keep, invariance=how["everything"], **how)
            for one in asked
        ]
    failed = [one for one in found if one.passed is False or not (one.loaded and (one.passed or not names))]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found]))
    elif quiet:
        for one in failed:
            click.echo(f"{one.name}: {one.reason}")
    else:
        show(fill("check.md.j2", found=found))
    return 1 if failed else 0
