"""What runs in a process of its own: ``python -m peer_tools.child WHAT SECONDS``, the pair in the variable PEER_PAIR.

Prints one line of JSON, the last of its output.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from peer_tools.pairs import Pair, bound, long_run


def asked() -> Pair:
    """The pair that the environment names."""
    return Pair(**json.loads(os.environ["PEER_PAIR"]))


def calls() -> tuple[Any, Any]:
    """Both calls of the pair, ready for a clock."""
    pair = asked()
    return bound(pair.first, pair), bound(pair.second, pair)


def torch_timer(seconds: float) -> dict[str, Any]:
    """Timer.blocked_autorange for each, as the recipe does, with the threads that a call outside would have."""
    import torch
    from torch.utils.benchmark import Timer

    found = []
    for call in calls():
        timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        told = timer.blocked_autorange(min_run_time=seconds / 2)
        quarter, three_quarters = (
            float(torch.tensor(told.times, dtype=torch.float64).quantile(part)) for part in (0.25, 0.75)
        )
        found.append(
            {
                "median": told.median,
                "q1": quarter,
                "q3": three_quarters,
                "significant_figures": told.significant_figures,
                "warned": told.has_warnings,
                "blocks": len(told.times),
            }
        )
    return {"first": found[0], "second": found[1], "ratio": found[1]["median"] / found[0]["median"]}


def perfplot_bench(seconds: float) -> dict[str, Any]:
    """perfplot.bench over one n; it keeps the least time of each."""
    import perfplot

    first, second = calls()
    told = perfplot.bench(
        setup=lambda n: n,
        kernels=[lambda _: first(), lambda _: second()],
        labels=["first", "second"],
        n_range=[asked().length],
        target_time_per_measurement=seconds / 2,
        equality_check=None,
        show_progress=False,
    )
    least = [float(times[0]) for times in told.timings_s]
    return {"first": {"least": least[0]}, "second": {"least": least[1]}, "ratio": least[1] / least[0]}


def reference(seconds: float) -> dict[str, Any]:
    """One bare process's median time of the contender that PEER_SIDE names; `seconds` are for one placement."""
    pair = asked()
    return {"seconds": long_run(getattr(pair, os.environ["PEER_SIDE"]), pair, seconds)}


WHAT = {"torch": torch_timer, "perfplot": perfplot_bench, "reference": reference}

if __name__ == "__main__":
    print(json.dumps(WHAT[sys.argv[1]](float(sys.argv[2]))))
