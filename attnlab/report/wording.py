"""Words for sets of workloads and names: ranges, lists, conditions."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from attnlab.contract.workload import Workload


def listed(items: Sequence[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def named(names: Iterable[str], last: str = "and") -> str:
    """Contender names as code, listed."""
    return listed([f"`{name}`" for name in names], last)


def counted(count: int, noun: str) -> str:
    """``1 head``, ``4 heads``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def heads(counts: Sequence[int]) -> str:
    """``1 head``, ``4 and 16 heads``."""
    noun = "head" if list(counts) == [1] else "heads"
    return f"{listed([str(one) for one in counts])} {noun}"


def lengths(wanted: Collection[int], measured: Sequence[int]) -> str:
    """`wanted` as ranges over the lengths `measured`: ``64 ≤ n ≤ 256 and n = 1024``."""
    runs: list[list[int]] = []
    previous = None
    for position, n in enumerate(measured):
        if n not in wanted:
            continue
        if previous is not None and position == previous + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
        previous = position
    return listed([f"n = {run[0]}" if len(run) == 1 else f"{run[0]} ≤ n ≤ {run[-1]}" for run in runs])


def where(cells: Iterable[tuple[int, int]], grid: Mapping[int, Sequence[int]]) -> str:
    """Where (heads, length) pairs lie in what was measured: ``64 ≤ n ≤ 256 at 1 and 4 heads``.

    Head counts with the same lengths are named together.
    """
    by_heads: dict[int, set[int]] = {}
    for count, n in cells:
        by_heads.setdefault(count, set()).add(n)
    by_text: dict[str, list[int]] = {}
    for count in sorted(by_heads):
        by_text.setdefault(lengths(by_heads[count], grid[count]), []).append(count)
    return "; ".join(f"{text} at {heads(counts)}" for text, counts in by_text.items())


def conditions(shared: Workload) -> str:
    """What a family of workloads has in common, in words: see `attnlab.report.evidence.Family`."""
    parts = [shared.dtype, {"cpu": "CPU", "cuda": "CUDA"}[shared.device], f"batch {shared.batch}"]
    parts.append(f"head_dim {shared.head_dim}")
    if shared.value_dim != shared.head_dim:
        parts.append(f"value_dim {shared.value_dim}")
    if shared.queries > 1:
        parts.append(f"{counted(shared.queries - 1, 'query').replace('querys', 'queries')} over n keys")
    if shared.causal:
        parts.append("causal")
    if shared.scale != 1 / math.sqrt(shared.head_dim):
        parts.append(f"scale {shared.scale:g}")
    if shared.distribution != "normal":
        parts.append(f"{shared.distribution} inputs")
    if shared.seed:
        parts.append(f"seed {shared.seed}")
    return ", ".join(parts)


def compare_command(contenders: Iterable[str], workload: Workload) -> str:
    """The command that races `contenders` on `workload` again, in fresh processes."""
    words = [
        "attnlab",
        "compare",
        *contenders,
        "--length",
        str(workload.keys),
        "--heads",
        str(workload.heads),
    ]
    plain = Workload()
    for option, field in (("--head-dim", "head_dim"), ("--batch", "batch"), ("--dtype", "dtype")):
        if getattr(workload, field) != getattr(plain, field):
            words += [option, str(getattr(workload, field))]
    if workload.device != plain.device:
        words += ["--device", workload.device]
    if workload.causal:
        words.append("--causal")
    return shlex.join(words)


def in_cell(text: object) -> str:
    """`text` made safe for a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def plain(text: str) -> str:
    """A sentence without its Markdown, for a terminal."""
    return text.replace("**", "").replace("`", "")
