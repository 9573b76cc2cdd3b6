"""How good is the gate? Catch rates of faulty attentions, and false alarms on right ones, over many seeds.

``python benchmarks/faults.py [--fault-seeds 20] [--right-seeds 50] [--jobs 2] [--out docs/faults.md]``, with one
thread a process (``OMP_NUM_THREADS=1``); takes about an hour. Every seed draws all inputs anew; no seed was
chosen. Outputs first, then gradients.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "gate"))

from zoo import FAULTS
from zoo.backward_faults import BACKWARD_FAULTS
from zoo.backward_right import RIGHT_BACKWARD
from zoo.fault import Fault
from zoo.right import RIGHT

from attnlab.accuracy.gate import examine, function_asked
from attnlab.accuracy.gate_result import Examined
from attnlab.accuracy.gradient_gate import examine_gradients, gradients_asked
from attnlab.accuracy.gradient_questions import GradientQuestion
from attnlab.accuracy.questions import Question
from attnlab.contract.discovery import backends, load
from attnlab.contract.dtypes import DTYPES
from attnlab.contract.errors import Unavailable
from attnlab.contract.workload import Workload
from attnlab.measuring.probe import Gradients, Specimen

#: seeds begin here for the right ones, so that the two tables share none
_FIRST_RIGHT = 1000
_FAULT_DTYPES = ("float32", "float16", "bfloat16")


#: what the gate puts its questions to
BlackBox = Callable[[Any], Any]


@dataclass(frozen=True)
class Subject:
    """Outputs or gradients: their zoo, and how the gate examines them.

    of : what a heading says of it. faults, right : what is wrong and what is right, by name. asked : a function of
    the zoo as a black box; backend : a backend of implementations/ as one. examine : the gate.
    """

    of: str
    faults: dict[str, Fault]
    right: dict[str, Callable[[str], Callable[..., Any]]]
    asked: Callable[[Callable[..., Any]], BlackBox]
    backend: Callable[[Specimen], BlackBox]
    examine: Callable[..., Examined]


def workload_of(question: Question) -> Workload:
    """What a question asks of a backend."""
    q, k, v = question.q, question.k, question.v
    return Workload.of_arrays(q, k, v, causal=question.causal, scale=question.scale, dtype=question.dtype)


def outputs_of(specimen: Specimen) -> BlackBox:
    """A backend in this process, asked for its output."""

    def ask(question: Question) -> object:
        return specimen.ask(workload_of(question), (question.q, question.k, question.v), question.layout)

    return ask


def gradients_of(specimen: Specimen) -> BlackBox:
    """The same, asked for gradients as well."""

    def ask(question: GradientQuestion) -> Gradients:
        posed = question.question
        arrays = (posed.q, posed.k, posed.v)
        return specimen.gradients(
            workload_of(posed), arrays, question.upstream, posed.layout, question.upstream_layout
        )

    return ask


OUTPUTS = Subject("", FAULTS, RIGHT, function_asked, outputs_of, examine)
GRADIENTS = Subject(
    " of gradients", BACKWARD_FAULTS, RIGHT_BACKWARD, gradients_asked, gradients_of, examine_gradients
)
SUBJECTS = {"outputs": OUTPUTS, "gradients": GRADIENTS}


def right_ones(subject: Subject) -> dict[str, Callable[[str], BlackBox]]:
    """Backends that come with attnlab and run here, and the zoo's right variants."""
    found: dict[str, Callable[[str], BlackBox]] = {}
    for name in backends():
        try:
            load(name).open("cpu")
        except Unavailable:
            continue
        found[f"`{name}`"] = lambda dtype, name=name: subject.backend(Specimen(load(name)))
    for name, make in subject.right.items():
        found[name] = lambda dtype, make=make: subject.asked(make(dtype))
    return found


def caught_at(which: str, seed: int) -> list[tuple[str, str, str | None]]:
    """Fault, dtype and the question that caught it, or None, for every fault of a subject."""
    subject = SUBJECTS[which]
    found = []
    for dtype in _FAULT_DTYPES:
        for name, fault in subject.faults.items():
            one = subject.examine(subject.asked(fault.make(dtype)), dtype, seed=seed)
            found.append((name, dtype, one.fault and question_of(one.fault)))
    print(f"faults of {which}: seed {seed}", file=sys.stderr, flush=True)
    return found


def alarms_at(which: str, seed: int) -> list[tuple[str, str, Examined]]:
    """What the gate found on right ones, with name and dtype."""
    subject = SUBJECTS[which]
    found = []
    for dtype in DTYPES:
        for name, make in right_ones(subject).items():
            one = subject.examine(make(dtype), dtype, seed=seed)
            if one.asked or one.fault:
                found.append((name, dtype, one))
            if one.fault:
                print(f"ALARM {name} {dtype} seed {seed}: {one.fault}", file=sys.stderr, flush=True)
    print(f"right ones of {which}: seed {seed}", file=sys.stderr, flush=True)
    return found


def question_of(fault: str) -> str:
    """The question's name in a fault: "float32, NAME (sizes): …"."""
    return fault.partition(", ")[2].partition(" (")[0]


def catch_table(which: str, seeds: int, pool: Executor) -> list[str]:
    """A row a fault."""
    subject = SUBJECTS[which]
    caught: dict[tuple[str, str], int] = defaultdict(int)
    by: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for at_seed in pool.map(partial(caught_at, which), range(seeds)):
        for name, dtype, question in at_seed:
            caught[name, dtype] += question is not None
            by[name, dtype].update([question] if question else [])
    lines = [
        "| fault | " + " | ".join(_FAULT_DTYPES) + " | first caught by |",
        "|---|" + "---|" * (len(_FAULT_DTYPES) + 1),
    ]
    for name, fault in subject.faults.items():
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
        for name, fault in subject.faults.items()
        for dtype in fault.dtypes
        if caught[name, dtype] < seeds
    ]
    total = sum(len(fault.dtypes) for fault in subject.faults.values())
    said = f"{total - len(missed)} of {total} pairs of fault and dtype are caught with every one of {seeds} seeds."
    if missed:
        said += " Not always: " + ", ".join(f"{name} in {dtype}" for name, dtype in missed) + "."
    return [said, "", *lines]


def alarm_table(which: str, seeds: int, pool: Executor) -> list[str]:
    """A row a right implementation: alarms, class, and the error's ratio to the class's budget."""
    found: dict[tuple[str, str], list[Examined]] = defaultdict(list)
    for at_seed in pool.map(partial(alarms_at, which), range(_FIRST_RIGHT, _FIRST_RIGHT + seeds)):
        for name, dtype, one in at_seed:
            found[name, dtype].append(one)
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


def excuses(subject: Subject) -> list[str]:
    """What no test at a precision can see, and why."""
    lines = []
    for name, fault in subject.faults.items():
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


_GRADIENTS = """# Gradients

A backend that can be differentiated is asked some sixty questions more a dtype. It answers with its output and the
gradients of query, key and value, and all four are held against float64 on the inputs as cast. With P the weights,
g the gradient of the output, A = gvᵀ, D = Σ P∘A per row and T = P∘(A − D), they are scale·Tk, scale·Tᵀq and Pᵀg.

How a gradient is judged (`attnlab/judging/gradient_gate.py`):

- **Facts**: a gradient for each array, finite, in its shape, its dtype and memory of its own; no component further off
  than the worst case of rounding (`attnlab/theory/gradient_bound.py`), which is 0 for a key that no query sees; query,
  key, value and the output's gradient unchanged, earlier results left alone.
- **Size**: 1.25 budgets, and 7.5 predicted standard deviations, as for outputs. The budget follows the noise of each
  rounding through the chain rule to first order (`attnlab/theory/gradient_noise.py`, `gradient_budget.py`), by source:
  *output*, the gradients stored once; *weights*, what a fused kernel stores: P, T, and the output of which it makes D;
  *sums*, gradients that lie in memory in the dtype while block after block of 32 terms or more is added to them;
  *scores*, what an unfused one stores: scores, A, P, T once more, and the partial sums of D, or the steps of a
  softmax that is written out, whose maximum is differentiated too; *inner*, the arithmetic
  in float32 (float64 for float64). Their sums make four classes: full precision inside, weights rounded, partial sums
  rounded, scores rounded. The class that is printed is that of the least exact of the three gradients.
- **Direction**: the error must not line up with the gradient (a factor) nor with its derivative in the scale. All
  components of a head share the roundings of its weights, so that a head counts as one error; heads all shifted alike
  have z = √heads, and the questions that look for it have 128 of them. One of them has many keys and one many queries,
  for what only a second block adds.
- **A question without roundings**: four keys of one score, and values and gradients of -1, 0 and 1, so that no
  product and no sum has more bits than bfloat16 holds but for the gradients themselves.
- The output's gradient is drawn, or 1 everywhere in one place of memory, or 0 but for one row, or the output, or 2^8
  times smaller or larger; it lies in memory in several ways. One question is put again, and again after another.

"""


def tables(which: str, fault_seeds: int, right_seeds: int, pool: Executor) -> list[str]:
    """What is caught, what is not to be, and what cannot be."""
    subject = SUBJECTS[which]
    page = [f"## Faults{subject.of}: caught in how many of {fault_seeds} seeds", ""]
    page += ["In brackets: no fault in that dtype, or below any test's sight; see below.", ""]
    page += catch_table(which, fault_seeds, pool)
    page += ["", f"## Right implementations{subject.of}: false alarms in {right_seeds} seeds", ""]
    page += [_HOW_TO_READ, ""]
    page += alarm_table(which, right_seeds, pool)
    return [*page, "", f"## Faults{subject.of} below sight, with the arithmetic", "", *excuses(subject), ""]


def main() -> None:
    """Run the tables and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fault-seeds", type=int, default=20)
    parser.add_argument("--right-seeds", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    started = time.monotonic()
    seeds = (chosen.fault_seeds, chosen.right_seeds)
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        page = [
            _INTRODUCTION,
            *tables("outputs", *seeds, pool),
            _GRADIENTS,
            *tables("gradients", *seeds, pool),
        ]
    text = "\n".join(page)
    if chosen.out:
        chosen.out.write_text(text, encoding="utf-8")
    print(text)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
