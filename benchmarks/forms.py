"""What does a mask cost that hides nothing, what the same mask as an array, and is the fused kernel faster here?

``python benchmarks forms [--seconds 150] [--rows FILE.jsonl] [--out FILE.md]``, on a machine that does nothing else.
Each row is a race of a backend with itself, its mask handed over as a boolean array (``mask=array``), or of a plain
graph with the fused kernel of the same library, by `attnlab.race.compare`. Rows are kept as they come: a call begins
no race after so many seconds, and the next one goes on. Backends that are not installed are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import HOME, Store, command_line, publish, table

from attnlab.environment import environment
from attnlab.race.compare import compare
from attnlab.runs.support import listed
from attnlab.text import seconds_text
from attnlab.workload.workload import Workload

BACKENDS = (
    "torch_eager",
    "torch_sdpa",
    "torch_sdpa_flash",
    "torch_sdpa_math",
    "numpy_vectorized",
    "onnxruntime",
    "onnxruntime_contrib",
    "ggml_flash",
)
SAID = {
    "no mask": Workload(heads=8, queries=1024, keys=1024, head_dim=64),
    "causal": Workload(heads=8, queries=1024, keys=1024, head_dim=64, causal="top_left"),
    "no mask, decoding": Workload(heads=8, queries=1, keys=4096, head_dim=64),
}
_SMALL = Workload(heads=4, queries=512, keys=512, head_dim=32)
_LLAMA = Workload(heads=12, kv_heads=2, queries=512, keys=512, head_dim=128, causal="top_left")
#: the fused kernel, the plain graph, and the shape that a user found it slower at
GRAPHS = (
    ("onnxruntime_contrib", "onnxruntime_unfused", _SMALL.with_(mask="random(0.9)")),
    ("onnxruntime_contrib", "onnxruntime_unfused", _SMALL),
    ("onnxruntime", "onnxruntime_unfused", _SMALL.with_(mask="random(0.9)")),
    ("onnxruntime", "onnxruntime_unfused", _SMALL),
    ("ggml_flash", "ggml_unfused", _LLAMA),
)


def races() -> Iterator[tuple[str, str, str, Workload]]:
    """(what is asked, the baseline, the other one, the workload) of each race."""
    for fused, plain, workload in GRAPHS:
        yield "plain graph", fused, plain, workload
    for said, workload in SAID.items():
        for name in BACKENDS:
            yield said, name, f"{name}[mask=array]", workload


def cells(row: Mapping[str, Any]) -> list[str]:
    """The median of the baseline, and the ratio of the other one's time to it with its interval."""
    if row["ratio"] is None:
        return ["", str(row["reason"])]
    return [seconds_text(row["seconds"]), f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"]


def main() -> None:
    """Race what is not in the rows yet, and write the page of all of them."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--rows", type=Path, default=HOME / "forms.jsonl")
    chosen = parser.parse_args()
    store, started = Store(chosen.rows), time.monotonic()
    names = sorted({name for _, *pair, _ in races() for name in (one.partition("[")[0] for one in pair)})
    here = {one.name for one in listed("cpu", names=names) if one.reason is None}
    for asked, one, other, workload in races():
        key = {"asked": asked, "one": one, "other": other, "workload": workload.label}
        late = time.monotonic() - started > chosen.seconds
        if late or not {one, other.partition("[")[0]} <= here or not store.lacks(**key):
            continue
        found = compare([one, other], workload).to_json()["contenders"]
        first, second = found
        store.add(
            **key,
            seconds=first["seconds_median"],
            ratio=second["ratio"],
            low=second["ratio_low"],
            high=second["ratio_high"],
            reason=next((each["reason"] for each in found if each["reason"]), "no interval"),
        )
    by_form = [row for row in store.rows if row["asked"] in SAID]
    graphs = [row for row in store.rows if row["asked"] not in SAID]
    forms = table(
        ("workload", "backend", "as its keywords say", "mask=array / that"),
        [(f"{row['asked']}, `{row['workload']}`", f"`{row['one']}`", *cells(row)) for row in by_form],
    )
    plain = table(
        ("workload", "fused", "plain graph", "fused takes", "plain / fused"),
        [(f"`{row['workload']}`", f"`{row['one']}`", f"`{row['other']}`", *cells(row)) for row in graphs],
    )
    publish(
        "Masks in another form, and plain graphs beside fused kernels",
        "forms",
        "## The same mask as an array",
        "Ratio of times, 95 % interval. An array of ones hides nothing.",
        forms,
        "## The plain graph beside the fused kernel",
        plain,
        out=chosen.out,
        at=(time.strftime("%Y-%m-%d", time.gmtime()), environment()),
    )


if __name__ == "__main__":
    main()
