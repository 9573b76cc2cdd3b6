"""The commands in their groups, each imported when it is called, and what replaces commands that were removed."""

from __future__ import annotations

import importlib
import importlib.metadata

import click

#: by group and command: the module of the command, and its summary
GROUPS = {
    "Measure": {
        "compare": ("runs", "Race backends on one workload; the first is the baseline."),
        "run": ("runs", "Measure a plan and write its report."),
        "gate": ("runs", "Race two versions: did it become slower, bigger or wrong?"),
        "judge": ("judging", "Judge kernels that programs wrote: right, fast, and no cheat?"),
    },
    "Check and understand": {
        "backends": ("checking", "List the backends: which can run here, which cannot, and why."),
        "check": ("checking", "Check answers and gradients of backends against float64."),
        "numerics": ("checking", "Run numerical experiments and write their page."),
        "diagnose": ("checking", "Say what attention does in a trained model, head by head."),
    },
    "Read what is stored": {
        "show": ("runs", "Print the verdict and the table of a stored run."),
        "report": ("runs", "Write the report of a stored run again."),
        "diff": ("runs", "Show two stored runs side by side."),
        "collect": ("runs", "Write the results of many runs into one table."),
    },
}
HOMES = {name: home for commands in GROUPS.values() for name, (home, _) in commands.items()}
#: by removed command or option: what to do instead; an entry is kept for one release
REMOVED = {
    "claims": "type: attnlab numerics --claims",
    "doctor": "attnlab show RUN and attnlab report RUN report damage",
    "explore": "attnlab report RUN writes the page to explore too",
    "history": "type: attnlab show RUN --format bmf, and give the file to Bencher or Otava",
    "plans": "type: attnlab run --list-presets",
    "query": "type: attnlab collect RUN... -o results.parquet, and ask DuckDB or pandas",
    "selftest": "every run races its baseline twice (the A/A control): see its report",
    "sweep": "type: attnlab run --plan FILE --shards 16 --cluster slurm --out FOLDER",
    "tune": "race the settings: attnlab compare torch_eager 'torch_eager[threads=1]' 'torch_eager[pages=huge]'",
    **dict.fromkeys(("compare --processes", "run --processes", "gate --processes"), "type: --visits N"),
    "compare --threads": "type: attnlab compare A 'B[threads=2]'",
    "compare --with": "type: attnlab compare A 'A[with=torch==2.12.0]'",
    "compare --predict": "measure the length that you need: attnlab compare A B --length N",
    **dict.fromkeys(("compare --splits", "run --splits"), "leave it out: keys are no longer cut into parts"),
    **dict.fromkeys(
        ("compare --rotary", "run --rotary", "gate --rotary"), "leave it out: a block has no positions"
    ),
    "collect --into": "type: attnlab collect RUN... -o results.parquet",
    "diagnose --backends": "leave it out: attnlab compare A B --inputs FILE.safetensors has errors and times",
    "diagnose --no-race": "leave it out: diagnose races nothing",
    "diagnose --where": "profile the model with torch.profiler",
    "diagnose --save-inputs": "save query, key and value with safetensors, and give the file as --inputs",
    "report --page": "leave it out: the page is always written",
    "report --format": "type: attnlab show RUN --json, or --format md",
    "report --summary": "type: attnlab show RUN --format md",
}
#: package names of the libraries that attnlab's own backends use
_LIBRARIES = ("torch", "numpy", "numba", "jax", "onnxruntime", "openvino", "keras", "mlx")


class _Group(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(HOMES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command; None if it is unknown. Raises ValueError for a command that was removed."""
        if name in REMOVED:
            raise ValueError(f"attnlab {name} is gone; {REMOVED[name]}")
        if name not in HOMES:
            return None
        found: click.Command = getattr(importlib.import_module(f"attnlab.cli.{HOMES[name]}"), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])


@click.group(
    cls=_Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="attnlab", message="attnlab %(version)s")
@click.pass_context
def app(context: click.Context) -> None:
    """Which attention should I run here, how fast, how big, and is it right?

    To complete names in bash, add this to ~/.bashrc (in zsh or fish, with zsh_source or fish_source):

    \b
    eval "$(_ATTNLAB_COMPLETE=bash_source attnlab)"
    """
    if context.invoked_subcommand is None:
        there = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
        here = ", ".join(f"{name} {there[name]}" for name in _LIBRARIES if name in there)
        click.echo(
            f"attnlab {there.get('attnlab', '')}: which attention should I run here, how fast, and is it right?\n"
            "Compare two backends, 10 s:          attnlab compare torch_sdpa torch_eager\n"
            "Measure many sizes, with a report:   attnlab run\n"
            f"Libraries installed here:            {here}\n"
            "All commands:                        attnlab --help"
        )
