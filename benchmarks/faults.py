"""How good is the gate? Catch rates of faulty attentions, and false alarms on right ones, over many seeds.

``python benchmarks/faults.py [--fault-seeds 20] [--right-seeds 50] [--out docs/faults.md]`` with one thread
(``OMP_NUM_THREADS=1``); takes about half an hour. Every seed draws all inputs anew; no seed was chosen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "gate"))

from zoo import FAULTS
from zoo.right import RIGHT

from attnlab.discovery import backends, load
from attnlab.ground.dtypes import DTYPES
from attnlab.ground.errors import Unavailable
from attnlab.ground.workload import Workload
from attnlab.judging.gate import Ask, Examined, examine, function_asked
from attnlab.judging.posing import Specimen
from attnlab.judging.questions import Question

#: seeds begin here for the right ones, so that the two tables share none
_FIRST_RIGHT = 1000
_FAULT_DTYPES = ("float32", "float16", "bfloat16")


def backend_asked(name: str) -> Ask:
    """A backend of implementations/ in this process."""
    specimen = Specimen(load(name))

    def ask(question: Question) -> object:
        workload = Workload.of_arrays(
            question.q,
            question.k,
            question.v,
            causal=question.causal,
            scale=question.scale,
            dtype=question.dtype,
        )
        return specimen.ask(workload, (question.q, question.k, question.v), question.layout)

    return ask  # type: ignore[return-value]


def right_ones() -> dict[str, Callable[[str], Ask]]:
    """Backends that come with attnlab and run here, and the zoo's right variants."""
    found: dict[str, Callable[[str], Ask]] = {}
    for name in backends():
        try:
            load(name).open("cpu")
        except Unavailable:
            continue
        found[f"`{name}`"] = lambda dtype, name=name: backend_asked(name)
    for name, make in RIGHT.items():
        found[name] = lambda dtype, make=make: function_asked(make(dtype))
    return found


def catches(seeds: int) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], Counter[str]]]:
    """How often each fault was caught in each dtype, and by which questions."""
    caught: dict[tuple[str, str], int] = defaultdict(int)
    by: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for seed in range(seeds):
        for dtype in _FAULT_DTYPES:
            for name, fault in FAULTS.items():
                found = examine(function_asked(fault.make(dtype)), dtype, seed=seed)
                caught[name, dtype] += found.fault is not None
                if found.fault:
                    by[name, dtype][question_of(found.fault)] += 1
        print(f"faults: seed {seed + 1} of {seeds}", file=sys.stderr, flush=True)
    return caught, by


def alarms(seeds: int) -> dict[tuple[str, str], list[Examined]]:
    """What the gate found on right ones, by name and dtype."""
    found: dict[tuple[str, str], list[Examined]] = defaultdict(list)
    for seed in range(_FIRST_RIGHT, _FIRST_RIGHT + seeds):
        for dtype in DTYPES:
            for name, make in right_ones().items():
                one = examine(make(dtype), dtype, seed=seed)
                if one.asked:
                    found[name, dtype].append(one)
                if one.fault:
                    print(f"ALARM {name} {dtype} seed {seed}: {one.fault}", file=sys.stderr, flush=True)
        print(f"right ones: seed {seed - _FIRST_RIGHT + 1} of {seeds}", file=sys.stderr, flush=True)
    return found


def question_of(fault: str) -> str:
    """The question's name in a fault: "float32, NAME (sizes): …"."""
    return fault.partition(", ")[2].partition(" (")[0]


def catch_table(seeds: int) -> list[str]:
    """A row a fault."""
    caught, by = catches(seeds)
    lines = [
        "| fault | " + " | ".join(_FAULT_DTYPES) + " | first caught by |",
        "|---|" + "---|" * (len(_FAULT_DTYPES) + 1),
    ]
    for name, fault in FAULTS.items():
        cells = []
        for dtype in _FAULT_DTYPES:
            rate = f"{caught[name, dtype]}/{seeds}"
            cells.append(rate if dtype in fault.dtypes else f"({rate})")
        first = sum((by[name, dtype] for dtype in fault.dtypes), Counter())
        lines.append(
            f"| {name} | " + " | ".join(cells) + f" | {first.most_common(1)[0][0] if first else ''} |"
        )
    missed = [
        (name, dtype)
        for name, fault in FAULTS.items()
        for dtype in fault.dtypes
        if caught[name, dtype] < seeds
    ]
    total = sum(len(fault.dtypes) for fault in FAULTS.values())
    said = f"{total - len(missed)} of {total} pairs of fault and dtype are caught with every one of {seeds} seeds."
    if missed:
        said += " Not always: " + ", ".join(f"{name} in {dtype}" for name, dtype in missed) + "."
    return [said, "", *lines]


def alarm_table(seeds: int) -> list[str]:
    """A row a right implementation: alarms, class, and the error's ratio to the class's budget."""
    found = alarms(seeds)
    names = list(dict.fromkeys(name for name, _ in found))
    lines = ["| right | " + " | ".join(DTYPES) + " |", "|---|" + "---|" * len(DTYPES)]
    for name in names:
        cells = []
        for dtype in DTYPES:
            ones = found.get((name, dtype), [])
            if not ones:
                cells.append("declined")
                continue
            kinds = Counter(one.precision.kind for one in ones if one.precision)
            ratios = sorted(one.precision.budget_ratio for one in ones if one.precision)
            kind = f", {kinds.most_common(1)[0][0]}, {ratios[len(ratios) // 2]:.2f}" if ratios else ""
            cells.append(f"{sum(one.fault is not None for one in ones)}/{len(ones)}{kind}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    runs = sum(map(len, found.values()))
    questions = sum(one.asked for ones in found.values() for one in ones)
    wrong = sum(one.fault is not None for ones in found.values() for one in ones)
    said = f"{wrong} false alarms in {runs} examinations with {questions:,} answers."
    return [said, "", *lines]


def excuses() -> list[str]:
    """What no test at a precision can see, and why."""
    lines = []
    for name, fault in FAULTS.items():
        grouped: dict[str, list[str]] = defaultdict(list)
        for dtype, why in fault.harmless:
            grouped[why].append(dtype)
        lines += [f"- **{name}**, {' and '.join(dtypes)}: {why}." for why, dtypes in grouped.items()]
    return lines


_INTRODUCTION = """# What the gate catches, and what it cannot

`attnlab check` puts some hundred questions a dtype to a backend and weighs each answer against float64 on the
inputs as cast. No tolerance is chosen for a dtype, a shape or a regime: what an honest error may be follows from
its roundings (`attnlab/theory/error_budget.py`), and the few constants that are left, named below, are the same
everywhere. This page says how that works out; it is made by `python benchmarks/faults.py`, from the zoo in
`tests/gate/zoo/`.

How an answer is weighed (`attnlab/judging/evidence.py`):

- **Facts**, without exception: finite; between the least and the greatest value that the row sees; no component
  further off than the worst case of rounding; inputs unchanged, output in memory of its own, earlier outputs left
  alone.
- **Size**: relative Frobenius error at most 1.25 budgets and six standard deviations of what few roundings
  scatter; no component further off than 7.5 predicted standard deviations.
- **Direction**: the error must not line up with the output (a gain) nor with its derivative in the scale (a wrong
  scale). z is normalised by the error's own scatter, so that for independent errors P(|z| > 8) <= 3e-14 whatever
  their size, and it finds a shift that is a small part of the error. Excused are 4 float32 roundings (constants
  like the scale and log2 e are rounded once for all rows) and an eighth of the dtype's unit roundoff.
- **Questions without roundings**: whole-number scores and weights of 1/2, 1/n, or 0 and 1, where even an eager
  bfloat16 backend may round its output only.
"""

_HOW_TO_READ = """Alarms, the class most often told, and the median error in units of the class told. A fused kernel
that stores weights unnormalised lies between two classes: its largest weights are near 1, where less is lost."""


def main() -> None:
    """Run both tables and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fault-seeds", type=int, default=20)
    parser.add_argument("--right-seeds", type=int, default=50)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    started = time.monotonic()
    page = [_INTRODUCTION]
    page += [f"## Faults: caught in how many of {chosen.fault_seeds} seeds", ""]
    page += ["In brackets: no fault in that dtype, or below any test's sight; see the end.", ""]
    page += catch_table(chosen.fault_seeds)
    page += ["", f"## Right implementations: false alarms in {chosen.right_seeds} seeds", ""]
    page += [_HOW_TO_READ, ""]
    page += alarm_table(chosen.right_seeds)
    page += ["", "## Below sight, with the arithmetic", "", *excuses(), ""]
    text = "\n".join(page)
    if chosen.out:
        chosen.out.write_text(text, encoding="utf-8")
    print(text)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
