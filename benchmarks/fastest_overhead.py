"""What does `attnlab.fastest` add to a call of PyTorch's ``scaled_dot_product_attention``?

``python benchmarks fastest_overhead [RUN] [--repeats 21] [--calls 20000] [--out FILE.md]``, on a machine that does
nothing else. RUN is a folder in which torch_sdpa was measured, by default the reference run. Told are, in microseconds:
the time by which a call grows where PyTorch's own answers (the same call directly and through the function, by turns,
so that both see the same machine; the median of the differences and their least and greatest), what choosing alone
takes, with nothing computed, and the choice for a shape that comes for the first time. One thread: with more, waiting
for them would hide what is asked for.
"""

from __future__ import annotations

import statistics
import timeit
from pathlib import Path
from typing import Any

import torch
from common import REPOSITORY, command_line, publish, table, yes
from torch.nn.functional import scaled_dot_product_attention

import attnlab
from attnlab.fastest import Choice
from attnlab.text import number_text

#: what is promised, in seconds a call
PROMISED = 5e-6


def main() -> int:
    """Measure and tell. Exits with 1 where the promise is not kept."""
    parser = command_line(__doc__)
    parser.add_argument("run", nargs="?", type=Path, default=REPOSITORY / "reports" / "reference")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--calls", type=int, default=20_000)
    chosen = parser.parse_args()
    found = attnlab.fastest(chosen.run, elsewhere=True)
    found._threads = None  # of the run; here there is one
    torch.set_num_threads(1)
    arrays = (torch.randn(1, 4, 16, 64),) * 3

    def seconds(call: Any) -> float:
        return timeit.timeit(lambda: call(*arrays), number=chosen.calls) / chosen.calls

    added = []
    for repeat in range(chosen.repeats):
        order = [scaled_dot_product_attention, found][:: 1 if repeat % 2 else -1]
        took = {call: seconds(call) for call in order}
        added.append(took[found] - took[scaled_dot_product_attention])
    first = []
    for number in range(chosen.repeats):
        other = (torch.zeros(1, 4, 65 + number, 64),) * 3
        first.append(timeit.timeit(lambda asked=other: found.explain(*asked), number=1))
    # a backend that computes nothing leaves the time of choosing and of the call itself
    nothing = Choice("nothing", ""), lambda query, key, value: query
    found._remembered = dict.fromkeys(found._remembered, nothing)
    alone = [seconds(found) for _ in range(chosen.repeats)]
    rows = {
        "added to a call that PyTorch's own answers": added,
        "choosing alone, and a call of a function": alone,
        "a shape that comes for the first time": first,
    }
    kept = statistics.median(alone) < PROMISED
    spans = (statistics.median, min, max)
    shown = [(what, *(f"{number_text(1e6 * of(took))} µs" for of in spans)) for what, took in rows.items()]
    said = f"Under {1e6 * PROMISED:.2f} µs a call: {yes(kept)}. PyTorch {torch.__version__}, one thread."
    times = table(("what", "median", "least", "greatest"), shown)
    publish("What `attnlab.fastest` adds to a call", "fastest_overhead", times, said, out=chosen.out)
    return int(not kept)
