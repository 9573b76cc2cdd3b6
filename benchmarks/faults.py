"""How good is the gate? Catch rates of faulty attentions, and false alarms on right ones, over many seeds.

``python benchmarks/faults.py [--fault-seeds 5] [--right-seeds 5] [--held-out-seeds 20] [--jobs 2]
[--out docs/faults.md]``, with one thread a process (``OMP_NUM_THREADS=1``). Every seed draws all inputs and all
random conditions anew; no seed was chosen. The page is written whole by this script.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "gate"))

from black_box import asked
from mutants import BY_MODULE, FAULTS
from mutants.fault import DTYPES as FAULT_DTYPES
from mutants.paths import held_out
from mutants.rounding import RIGHT

from attnlab.backend.discovery import backends, load
from attnlab.errors import Unavailable
from attnlab.gate.conditions import BACKWARD_COUNT, FORWARD_COUNT
from attnlab.gate.gate import BACKWARD, FORWARD, Answers, Ask, GateResult, examine
from attnlab.gate.questions import Question
from attnlab.problem.vocabulary import DTYPES
from attnlab.problem.workload import Workload
from attnlab.race.probe import Probe

#: seeds begin here for right ones and for held-out conditions, so that no two tables share one
_FIRST_RIGHT, _FIRST_HELD_OUT = 1000, 2000
_BACK = ", on the way back"


def backend_asked(name: str) -> Ask:
    """A backend in this process as a black box."""
    probe = Probe(load(name))

    def ask(question: Question) -> Answers:
        direction = "training" if question.backward else "forward"
        workload = Workload.of_problem(question.problem, direction=direction)
        return probe.answer(question.problem, workload, *question.layouts)

    return ask


def right_ones() -> dict[str, Callable[[], Ask]]:
    """Backends that come with attnlab and run here, and the right variants of `mutants`."""
    found: dict[str, Callable[[], Ask]] = {}
    for name in backends():
        try:
            load(name).open("cpu")
        except Unavailable:
            continue
        found[f"`{name}`"] = partial(backend_asked, name)
    return found | {name: partial(asked, one) for name, one in RIGHT.items()}


def faults_at(seed: int) -> list[tuple[str, str, str | None]]:
    """Fault, dtype and the question that caught it, or None."""
    found = []
    for dtype in FAULT_DTYPES:
        for name, fault in FAULTS.items():
            one = examine(asked(fault.attention), dtype, seed=seed, directions=(fault.direction,))
            found.append((name, dtype, one.fault and question_of(one.fault)))
    print(f"faults: seed {seed}", file=sys.stderr, flush=True)
    return found


def alarms_at(seed: int) -> list[tuple[str, str, GateResult]]:
    """What the gate found on right ones, with name and dtype."""
    found = []
    for dtype in DTYPES:
        for name, make in right_ones().items():
            timed = {"clock": time.perf_counter} if name.startswith("`") else {}
            one = examine(make(), dtype, seed=seed, **timed)
            if one.asked or one.fault:
                found.append((name, dtype, one))
            if one.fault:
                print(f"ALARM {name} {dtype} seed {seed}: {one.fault}", file=sys.stderr, flush=True)
    print(f"right ones: seed {seed}", file=sys.stderr, flush=True)
    return found


def held_out_at(seed: int) -> list[tuple[str, str, str, str | None]]:
    """Kind and direction of each condition drawn from `seed`, dtype, and the question that caught it, or None."""
    found = []
    for direction in (FORWARD, BACKWARD):
        faults = held_out(np.random.default_rng([seed, 77]), direction)
        for dtype in FAULT_DTYPES:
            for kind, fault in faults.items():
                one = examine(asked(fault.attention), dtype, seed=seed, directions=(direction,))
                found.append((kind, direction, dtype, one.fault and question_of(one.fault)))
    print(f"held out: seed {seed}", file=sys.stderr, flush=True)
    return found


def question_of(fault: str) -> str:
    """The question's name in a fault: "float32, NAME (condition): …"."""
    return fault.partition(", ")[2].partition(" (")[0]


def fault_lists(seeds: int, pool: Executor) -> Iterable[str]:
    """What is caught, by what the faults are of; a fault of the way back beside its own of the way there."""
    caught: Counter[tuple[str, str]] = Counter()
    for at_seed in pool.map(faults_at, range(seeds)):
        caught.update((name, dtype) for name, dtype, question in at_seed if question)
    due = [(name, dtype) for name, fault in FAULTS.items() for dtype in fault.dtypes]
    missed = [f"{name} in {dtype}" for name, dtype in due if caught[name, dtype] < seeds]
    yield (
        f"{len(due) - len(missed)} of {len(due)} pairs of {len(FAULTS)} faults and the dtypes in which they are some "
        f"are caught with every one of {seeds} seeds."
        + (f" Not always: {'; '.join(missed)}." if missed else "")
    )
    for of, faults in BY_MODULE.items():
        names = [fault.name for fault in faults]
        both = {name for name in names if f"{name}{_BACK}" in names}
        once = (name for name in names if name.removesuffix(_BACK) not in both or name in both)
        shown = (f"{name} †" if name in both else name for name in once)
        yield f"\n**{of}**: " + "; ".join(shown) + "."


def held_out_table(seeds: int, pool: Executor) -> Iterable[str]:
    """A row a kind of condition: caught in one dtype, and in any of them, as a whole check asks."""
    runs: dict[tuple[str, str], list[bool]] = defaultdict(list)
    whole: dict[tuple[str, str], list[bool]] = defaultdict(list)
    drawn = 0
    for at_seed in pool.map(held_out_at, range(_FIRST_HELD_OUT, _FIRST_HELD_OUT + seeds)):
        once: dict[tuple[str, str], bool] = defaultdict(bool)
        for kind, direction, _, question in at_seed:
            runs[kind, direction].append(question is not None)
            once[kind, direction] |= question is not None
            drawn += bool(question) and question.startswith("drawn ")
        for which, one in once.items():
            whole[which].append(one)
    every, each = ([one for ones in of.values() for one in ones] for of in (whole, runs))
    yield (
        f"{sum(every)} of {len(every)} faults are caught in at least one dtype, {sum(each)} of {len(each)} pairs of "
        f"fault and dtype; {drawn} of these by a condition that was drawn at random.\n"
    )
    headers = [
        "condition",
        *(f"{of}: {many}" for of in ("outputs", "gradients") for many in ("a dtype", "three")),
    ]
    cells = [
        [
            kind,
            *(
                f"{sum(of[kind, way])}/{len(of[kind, way])}"
                for way in (FORWARD, BACKWARD)
                for of in (runs, whole)
            ),
        ]
        for kind in dict.fromkeys(kind for kind, _ in runs)
    ]
    yield tabulate(cells, headers, tablefmt="github")


def alarm_table(seeds: int, pool: Executor) -> Iterable[str]:
    """A row a right implementation: of outputs and gradients the class and the error in its budget, and any alarms."""
    found: dict[tuple[str, str], list[GateResult]] = defaultdict(list)
    for at_seed in pool.map(alarms_at, range(_FIRST_RIGHT, _FIRST_RIGHT + seeds)):
        for name, dtype, one in at_seed:
            found[name, dtype].append(one)
    results = [one for ones in found.values() for one in ones]
    wrong, answers = sum(one.fault is not None for one in results), sum(one.asked for one in results)
    yield f"{wrong} false alarms in {len(results)} examinations with {answers:,} answers.\n"
    names = dict.fromkeys(name for name, _ in found)
    cells = [[name, *(_alarms(found.get((name, dtype), [])) for dtype in DTYPES)] for name in names]
    yield tabulate(cells, ["right", *DTYPES], tablefmt="github")


def _alarms(ones: list[GateResult]) -> str:
    wrong = sum(one.fault is not None for one in ones)
    said = []
    for of in (FORWARD, BACKWARD):
        told = [one.precision[of] for one in ones if of in one.precision]
        if told:
            kind = Counter(one.kind for one in told).most_common(1)[0][0]
            said.append(f"{str(kind)[0].upper()}{sorted(one.ratio for one in told)[len(told) // 2]:.2f}")
    return (f"{wrong} alarms " if wrong else "") + "/".join(said)


def excuses() -> Iterable[str]:
    """What is no fault in a dtype, by what its effect is; with the effect that comes nearest to what is allowed."""
    by: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    nearest: dict[str, float] = defaultdict(float)
    for name, fault in FAULTS.items():
        for dtype, one in fault.excuses:
            by[one.why][name].append(dtype)
            nearest[one.why] = max(nearest[one.why], one.effect / one.allowed if one.allowed else 0.0)
    cells = [
        [
            why,
            f"{nearest[why]:.2f}",
            "; ".join(f"{name} ({', '.join(dtypes)})" for name, dtypes in faults.items()),
        ]
        for why, faults in by.items()
    ]
    yield tabulate(
        cells, ["what it is", "of what is allowed, at most", "faults and dtypes"], tablefmt="github"
    )


_INTRODUCTION = f"""# What the gate catches, and what it cannot

`attnlab check` puts some hundred questions a dtype to a backend and weighs each answer against float64 on the
inputs as cast. No tolerance is chosen for a dtype, a shape or a distribution: what an honest error may be follows from
its roundings (`attnlab/theory/error_budget.py`, `gradient_budget.py`), and the few constants that are left, named
below, are the same everywhere. This page is made by `python benchmarks/faults.py`, from the faulty attentions in
`tests/gate/mutants/`.

A backend that can be differentiated answers with its output and the gradients of query, key and value, and each is
weighed (`attnlab/gate/evidence.py`):

- **Facts**, without exception: finite; an output between the least and the greatest value that its row sees, and 0
  where it sees none; no component further off than the worst case of rounding, which is 0 for the gradients of a key
  that no query sees; inputs unchanged, answers in memory of their own, earlier answers left alone.
- **Size**: relative Frobenius error at most 1.25 budgets and six standard deviations of what few roundings scatter; no
  component further off than 7.5 predicted standard deviations. The class that is printed says which budget: full
  precision inside, weights rounded, partial sums rounded (gradients that lie in memory in the dtype while they are
  added up), scores rounded.
- **Direction**: the error must not line up with the answer (a gain) nor with its derivative in the scale (a wrong
  scale). z is normalised by the error's own scatter, so that for independent errors P(|z| > 8) <= 3e-14 whatever their
  size. Excused are 4 float32 roundings (constants like the scale and log2 e are rounded once for all rows) and an
  eighth of the dtype's unit roundoff. All components of a head share the roundings of its weights, so that for
  gradients a head counts as one error.
- **Questions without roundings**: whole-number scores and weights of 1/2, 1/n, or 0 and 1, where even an eager
  bfloat16 backend may round its output only.

Three kinds of questions are asked (`attnlab/gate/tables.py`): *fixed* ones for every part of the contract;
{FORWARD_COUNT} conditions a dtype for outputs and {BACKWARD_COUNT} for gradients that are *drawn at random* (not in
float64); and *sequences*, one question again after another of the same shapes with another mask, bias, scale, layout
or dtype, since kernels are cached by keys that leave something out. A fault is told with its whole condition, and can
be put again from that.
"""

_HELD_OUT = """Faults of one path and the questions that take it mirror each other: who writes the tables knows which
head_dim they have. Here the condition of each fault is drawn at random and taken from no table. What deviates is one
key that is lost. So many are found by fixed questions that happen to meet the condition, and by those that are drawn;
what has one single head_dim or length is met by chance only."""

_HOW_TO_READ = """Of the output / the least exact gradient the class most often told and the median error in units of
its budget: F full precision inside, W weights rounded, P partial sums rounded, S scores rounded. Empty: declined. A
fused kernel that stores weights unnormalised lies between two classes: its largest weights lose less, near 1."""


def main() -> None:
    """Run the tables and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fault-seeds", type=int, default=5)
    parser.add_argument("--right-seeds", type=int, default=5)
    parser.add_argument("--held-out-seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    started = time.monotonic()
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        page = [
            _INTRODUCTION,
            f"## Conditions held out: caught in how many of {chosen.held_out_seeds} draws\n",
            f"{_HELD_OUT}\n",
            *held_out_table(chosen.held_out_seeds, pool),
            "\n## Faults\n",
            "† both forwards and, the output being right, on the way back. What is below sight stands last.\n",
            *fault_lists(chosen.fault_seeds, pool),
            f"\n## Right implementations: false alarms in {chosen.right_seeds} seeds\n",
            f"{_HOW_TO_READ}\n",
            *alarm_table(chosen.right_seeds, pool),
            "\n## Faults below sight\n",
            "The effect of each is at most what the same dtype costs a right implementation.\n",
            *excuses(),
            "",
        ]
    text = "\n".join(page)
    if chosen.out:
        chosen.out.write_text(text, encoding="utf-8")
    print(text)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
