"""What does `attnlab.fastest` add to a call of PyTorch's ``scaled_dot_product_attention``?

``python benchmarks/fastest_overhead.py [RUN] [--repeats 21] [--calls 20000] [--out FILE.md]``, on a machine that does
nothing else. RUN is a folder in which torch_sdpa was measured, by default the reference run. Told are, in microseconds:
the time by which a call grows where PyTorch's own answers (the same call directly and through the function, by turns,
so that both see the same machine; the median of the differences and their least and greatest), what choosing alone
takes, with nothing computed, and the choice for a shape that comes for the first time. One thread: with more, waiting
for them would hide what is asked for.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import attnlab
from attnlab.environment import environment
from attnlab.report.sentences import machine
from attnlab.routing.dispatch import Fastest, _Found, _question
from attnlab.units import number_text

#: what is promised, in seconds a call
PROMISED = 5e-6
REFERENCE = Path(__file__).parents[1] / "reports" / "reference"


def seconds(call: Callable[..., Any], arguments: tuple[Any, ...], calls: int) -> float:
    """Seconds a call, the mean over so many."""
    started = time.perf_counter()
    for _ in range(calls):
        call(*arguments)
    return (time.perf_counter() - started) / calls


def added(found: Fastest, arrays: tuple[Any, ...], repeats: int, calls: int) -> list[float]:
    """By how much a call grows, a figure a repeat; which of the two goes first changes with every repeat."""
    both: list[Callable[..., Any]] = [scaled_dot_product_attention, found]
    differences = []
    for repeat in range(repeats):
        order = both if repeat % 2 else both[::-1]
        took = {one: seconds(one, arrays, calls) for one in order}
        differences.append(took[found] - took[scaled_dot_product_attention])
    return differences


def choosing(found: Fastest, arrays: tuple[Any, ...], repeats: int, calls: int) -> list[float]:
    """The same with a backend that computes nothing: the time of choosing and of the call itself."""
    question = _question(arrays[0], arrays[1], arrays[2], None, 0.0, False, None, False)
    kept = found._remembered.get(question)
    found._remembered[question] = _Found(lambda query, key, value, attn_mask: query, "nobody", "")
    try:
        return [seconds(found, arrays, calls) for _ in range(repeats)]
    finally:
        del found._remembered[question]
        if kept is not None:
            found._remembered[question] = kept


def at_first(found: Fastest, lengths: Sequence[int]) -> list[float]:
    """Seconds of the choice for shapes that come for the first time."""
    took = []
    for length in lengths:
        arrays = (torch.zeros(1, 4, length, 64),) * 3
        started = time.perf_counter()
        found.explain(*arrays)
        took.append(time.perf_counter() - started)
    return took


def main() -> int:
    """Measure and tell. Exits with 1 where the promise is not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, default=REFERENCE)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = attnlab.fastest(options.run, elsewhere=True)
    found._measured_threads = None  # of the run; here there is one
    torch.set_num_threads(1)
    arrays = (torch.randn(1, 4, 16, 64),) * 3
    rows = {
        "added to a call that PyTorch's own answers": added(found, arrays, options.repeats, options.calls),
        "choosing alone, and a call of a function": choosing(found, arrays, options.repeats, options.calls),
        "a shape that comes for the first time": at_first(found, range(65, 65 + options.repeats)),
    }
    page = [
        "# What `attnlab.fastest` adds to a call",
        "",
        f"{date.today()}, {machine(environment())}. Made by `python benchmarks/fastest_overhead.py`; one thread.",
        "",
        "| what | median | least | greatest |",
        "|---|---:|---:|---:|",
    ]
    for what, took in rows.items():
        shown = (number_text(1e6 * one) for one in (statistics.median(took), min(took), max(took)))
        page.append(f"| {what} | " + " | ".join(f"{one} µs" for one in shown) + " |")
    kept = statistics.median(rows["choosing alone, and a call of a function"]) < PROMISED
    page.append(
        f"\nUnder {number_text(1e6 * PROMISED)} µs a call: {'yes' if kept else 'no'}. PyTorch {torch.__version__}."
    )
    text = "\n".join(page)
    print(text)
    if options.out:
        options.out.write_text(f"{text}\n", encoding="utf-8")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
