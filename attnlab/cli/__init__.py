"""The commands by name; each imports what it needs when it is called."""

from __future__ import annotations

import click

from attnlab.cli import backends, experiments, history, races, stored, sweep, tuning, versions


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="attnlab", message="attnlab %(version)s")
def app() -> None:
    """Which attention should I run here, how fast, how big, and is it right?

    For completion in a shell, in ~/.bashrc: eval "$(_ATTNLAB_COMPLETE=bash_source attnlab)"; zsh and fish alike.
    """


for _command in (
    races.run,
    sweep.sweep,
    races.compare,
    versions.gate,
    tuning.tune,
    backends.check,
    experiments.numerics,
    experiments.claims,
    experiments.diagnose,
    backends.backends,
    races.plans,
    stored.report,
    stored.explore,
    stored.show,
    history.diff,
    history.history,
    stored.collect,
    stored.query,
    races.selftest,
    stored.doctor,
):
    app.add_command(_command)
