"""The commands by name; each lives in a file of its own and imports what it needs when it is called."""

from __future__ import annotations

import click

from attnlab.cli import (
    backends,
    check,
    claims,
    compare,
    completion,
    dataset,
    diagnose,
    doctor,
    explore,
    numerics,
    plans,
    report,
    run,
    selftest,
    show,
    sweep,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="attnlab", message="attnlab %(version)s")
def app() -> None:
    """Which attention should I run here, how fast, how big, and is it right?"""


for _command in (
    run.run,
    sweep.sweep,
    compare.compare,
    check.check,
    numerics.numerics,
    claims.claims,
    diagnose.diagnose,
    backends.backends,
    plans.plans,
    report.report,
    explore.explore,
    show.show,
    dataset.collect,
    dataset.query,
    selftest.selftest,
    doctor.doctor,
    completion.completion,
):
    app.add_command(_command)
