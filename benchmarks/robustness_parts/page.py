"""What was measured, in words and tables: ``docs/robustness.md``."""

from __future__ import annotations

from collections.abc import Iterator

from robustness_parts import Figures

from attnlab.environment import environment


def page(store: Figures) -> str:
    """All that is stored, in words and tables."""
    where = environment()
    parts = [
        "# What survives",
        f"{where['cpu']}, {where['cores']['logical']} cores, {where['python']}. Made by `python "
        "benchmarks/robustness.py`; "
        "`tests/robustness` holds the same faults as tests.",
    ]
    for name, told in (
        ("matrix", _matrix_page),
        ("soak", _soak_page),
        ("fuzz", _fuzz_page),
        ("leaks", _leaks_page),
        ("store", _store_page),
    ):
        if name in store:
            parts += [*told(store[name]), f"Measured {store[name]['at']}."]
    return "\n\n".join(parts) + "\n"


def _matrix_page(found: Figures) -> Iterator[str]:
    cells = [cell for row in found["rows"].values() for cell in row.values()]
    wrong = sum("**" in cell for cell in cells)
    phases = list(next(iter(found["rows"].values())))
    yield "## A worker that fails, in every phase"
    yield (
        f"{len(cells)} cells, {len(cells) - wrong} with the outcome that is expected. Each phase is one "
        "race of all faults "
        f"beside two good backends, whose results were whole in {'all' if not found['harmed'] else 'not all'} of them; "
        f"{found['left']} processes were left. A fault while memory is measured leaves the speed, with a "
        "note. Deadline "
        f"{found['deadline_s']:g} s."
    )
    lines = [f"| fault | {' | '.join(phases)} |", "|---" * (len(phases) + 1) + "|"]
    for fault, row in found["rows"].items():
        lines.append(f"| {fault.replace('_', ' ')} | {' | '.join(row[phase] for phase in phases)} |")
    yield "\n".join(lines)


def _soak_page(found: Figures) -> Iterator[str]:
    kills = ", ".join(f"{count} of a {who}" for who, count in sorted(found["kills"].items()))
    yield "## Killed at random, and gone on with"
    yield (
        f"{sum(found['kills'].values())} times SIGKILL ({kills}) at random moments of {found['runs']} runs of "
        f"{found['cells']} results each, gone on with by `attnlab run --resume` until complete. Against an "
        "unbroken run: "
        f"{found['lost']} results lost, {found['doubled']} doubled, {found['different']} that it does not have; "
        f"{found['broken']} runs in which `attnlab doctor` found something broken; {found['left']} processes left."
    )


def _fuzz_page(found: Figures) -> Iterator[str]:
    told = found["told"]
    crashes = sum(count for name, count in told.items() if name.startswith("crash"))
    yield "## Malformed input"
    yield (
        f"{sum(told.values())} damaged result lines, workloads, run files, plan files, contenders and frames: "
        f"{told.get('taken', 0)} were still readable, {told.get('refused', 0)} were refused in a line, "
        f"{crashes} crashed. The "
        f"longest took {found['longest_s']:g} s; memory grew by {found['grown_mib']:g} MiB."
    )


def _leaks_page(found: Figures) -> Iterator[str]:
    (memory, files, children), (late_memory, late_files, late_children) = found["early"], found["late"]
    yield "## Many workloads in one run"
    yield (
        f"After {found['workloads'] // 10} of {found['workloads']} workloads the conductor held "
        f"{memory:.1f} MiB, {files} open "
        f"files and {children} processes; after all of them {late_memory:.1f} MiB, {late_files} and {late_children} "
        f"({found['seconds']} s)."
    )


def _store_page(found: Figures) -> Iterator[str]:
    yield "## What keeping costs"
    yield (
        f"A run with {found['results']:,} results is locked, read, checked and told what is left of it in "
        f"{found['resume_s']:g} s: so much later `--resume` starts. Appending the results of one workload, flushed to "
        f"the disk, takes {found['append_ms']:.1f} ms; with the files that are replaced at the stages of a run that is "
        f"{found['share']:.2%} of the {found['measuring_s']} s of the reference run."
    )
