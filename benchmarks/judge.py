"""The judge against honest candidates, wrong ones, cheats and escapes: who is rewarded, and what gets out.

``python benchmarks judge [GROUP ...]``: honest, wrong, cheats and escapes, all by default. A cheat wins where its
reward is above 0; an escape where it prints ESCAPED, leaves a process, or the judge does not go on. ``volume``: 100
candidates in one call. ``alone``: one call each, as in a training loop. ``copies``: the best of 100 copies of the
reference, drawn from visits of three of them.
"""

from __future__ import annotations

import ast
import math
import statistics
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
from common import HOME, command_line, publish, say, table

from attnlab.judge.candidates import Candidate, read_candidate
from attnlab.judge.judging import FINALISTS, Judge
from attnlab.judge.record import KEPT, ROUNDS, Record, Scatter, Seat
from attnlab.workload.workload import Workload

GROUPS = ("honest", "wrong", "cheats", "escapes")
#: what may become of a candidate of a group
ALLOWED = {
    "honest": {"judged"},
    "wrong": {"wrong"},
    "cheats": {"wrong", "caught", "failed", "judged"},
    "escapes": {"wrong", "failed", "caught"},
}
IMPORTS = "import torch\nfrom torch.nn.functional import scaled_dot_product_attention as right\n"
ATTEND = "def attend(q, k, v, *, scale):\n    return {}\n"
RIGHT = "right(q, k, v, scale=scale)"
EAGER = "(q @ k.transpose(-1, -2) * scale).softmax(-1) @ v"
HONEST = {
    "sdpa": RIGHT,
    "eager": EAGER,
    "float64": f"(lambda q, k, v: {EAGER})(*(x.double() for x in (q, k, v))).float()",
    "heads one by one": "torch.cat([right(*(x[:, i : i + 1] for x in (q, k, v)), scale=scale) "
    "for i in range(q.shape[1])], 1)",
}
#: five speeds: how often all is computed before the answer
SPEEDS = (0, 1, 2, 3, 5)
#: wrong ones, each with what is put into it
WRONG: dict[str, tuple[object, ...]] = {
    "right(q, k, v, scale=scale * {})": (0.5, 0.9, 0.99, 1.01, 1.1, 2),
    "right(q, k, v, scale=scale) * {}": (0.99, 0.999, 1.001, 1.01),
    "right(q, k, v, scale=scale) + {}": (0.001, 0.01),
    "right(*(x.{}() for x in (q, k, v)), scale=scale).float()": ("half", "bfloat16"),
    "right(q, *(x[:, :, ::{}].contiguous() for x in (k, v)), scale=scale)": (2, 3, 4),
    "right(q, *(x[:, :, : -{}].contiguous() for x in (k, v)), scale=scale)": (1, 8, 64),
    "right(q, k, v.flip({}), scale=scale)": (1, 2, 3),
    "right(q, k.roll({}, 2), v, scale=scale)": (1, 2),
    "right(q, k, v, scale=scale, is_causal={})": (True,),
    "v.mean(2, keepdim=True).expand_as(q) * {}": (1,),
    "torch.zeros_like(q) * {}": (1,),
    "(lambda w: w / w.sum(-1, keepdim=True) @ v)((q @ k.mT * scale).exp() * {})": (1,),
    "right(k, q, v, scale=scale) * {}": (1,),
}
BREAKERS = "hangs kills_all takes_memory fills_the_disk forks sends_nonsense stops_all prints takes_shared_memory stays"


def texts(group: str) -> dict[str, str]:
    """The candidates of a group, by name."""
    if group == "honest":
        return {name: IMPORTS + ATTEND.format(one) for name, one in HONEST.items()}
    if group == "wrong":
        every = [one.format(value) for one, values in WRONG.items() for value in values]
        return {f"wrong {at}": f"# {one}\n{IMPORTS}{ATTEND.format(one)}" for at, one in enumerate(every)}
    default, source = ATTEND.format(RIGHT if group == "cheats" else "q * 0"), HOME / "judged" / f"{group}.py"
    text, found = source.read_text(encoding="utf-8"), {}
    for one in ast.parse(text).body:
        if isinstance(one, ast.FunctionDef):
            lines = text.splitlines()[one.body[0].lineno - 1 : one.end_lineno]
            body = textwrap.dedent("\n".join(lines)) + "\n"
            head = IMPORTS if group == "cheats" else ""
            found[one.name] = head + body + ("" if "def attend" in body else default)
    if group == "escapes":  # a name that a terminal or a page would act on
        found["a\nname <script>alert(1) `|`"] = found["connects"]
    return found


def written(folder: Path, found: dict[str, str]) -> list[Path]:
    """A file of each."""
    for name, text in found.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return [folder / f"{name}.py" for name in found]


def won(group: str, record: Record, left: int = 0) -> str:
    """What must not have happened, or nothing."""
    found = []
    if record.status not in ALLOWED[group]:
        found.append(f"is {record.status}")
    if group != "honest" and record.reward > 0:
        found.append(f"reward {record.reward:.2f}")
    if "ESCAPED" in record.output:
        found.append(record.output[record.output.index("ESCAPED") :].partition("\n")[0])
    if left:
        found.append(f"{left} processes left")
    return ", ".join(found)


def told(record: Record) -> None:
    """Progress."""
    say(f"{Path(record.name).stem!r}: {record.status}, {record.speedup}, reward {record.reward:.2f}")
    say(f"    {record.reason[:160]!r}")


def judge_group(judge: Judge, group: str, folder: Path) -> tuple[str, list[tuple[str, ...]]]:
    """A sentence on a group, and a row for each candidate: what became of it, and how long that took."""
    rows, one_by_one = [], group == "escapes"
    files = written(folder, texts(group))
    for batch in [[file] for file in files] if one_by_one else [files]:
        started = time.monotonic()
        for record in judge.judge(batch):
            # the judge keeps the reference's sandbox, and two that wait
            left = max(0, len(psutil.Process().children()) - 3) if one_by_one else 0
            told(record)
            speed = f"{record.speedup:.2f}" if record.speedup else "–"
            name = Path(record.name).stem.replace("\n", " ").replace("<", "&lt;").replace("`", "'")
            seconds = f"{time.monotonic() - started:.1f} s"
            what = won(group, record, left)
            rows.append((group, name, record.status, speed, f"{record.reward:.2f}", seconds, what))
    bad = sum(bool(row[-1]) for row in rows)
    return f"{group}: {len(rows)} candidates, {bad} not as they should.", rows


def volume(judge: Judge, folder: Path) -> str:
    """A hundred candidates at once: 40 honest of five speeds, 30 wrong, 20 that cheat, 10 that break things."""
    group = dict[str, str]()
    for more in SPEEDS:
        work = f"[{RIGHT} for _ in range({more})]; return {RIGHT}"
        text = IMPORTS + ATTEND.replace("return {}", work)
        group |= {f"{more + 1} times, {at}": f"# {at}\n{text}" for at in range(8)}
    cheats, escapes = texts("cheats"), texts("escapes")
    found = {
        "honest": group,
        "wrong": texts("wrong"),
        "cheats": {name: cheats[name] for name in sorted(cheats)[:20]},
        "escapes": {name: escapes[name] for name in BREAKERS.split()},
    }
    files = written(folder, {name: text for one in found.values() for name, text in one.items()})
    of = {name: kind for kind, one in found.items() for name in one}
    order = np.random.default_rng(0).permutation(len(files))
    started, faults, speeds = time.monotonic(), list[str](), dict[int, list[float]]()
    for record in judge.judge(files[at] for at in order):
        told(record)
        name = Path(record.name).stem
        if fault := won(of[name], record):
            faults.append(f"{name}: {fault}")
        if of[name] == "honest" and record.speedup:
            speeds.setdefault(int(name.partition(" ")[0]), []).append(record.speedup)
    seconds = time.monotonic() - started
    medians = {times: statistics.median(some) for times, some in sorted(speeds.items())}
    ordered = list(medians.values()) == sorted(medians.values(), reverse=True)
    shown = ", ".join(f"{one:.2f}" for one in medians.values())
    return (
        f"Volume: {len(files)} candidates in {seconds:.0f} s; {len(faults)} not as they should {faults or ''}. "
        f"Speedups of those that compute {', '.join(map(str, medians))} times: {shown}; "
        f"their order was {'found' if ordered else 'NOT found'}."
    )


def alone(judge: Judge, folder: Path) -> str:
    """Seconds of one call each, for honest and wrong candidates; and how wide the intervals are."""
    found = dict[str, list[float]]()
    said = []
    wrong = dict(list(texts("wrong").items())[::6])
    for file in written(
        folder, {**texts("honest"), "sdpa again": f"# again\n{IMPORTS}{ATTEND.format(RIGHT)}", **wrong}
    ):
        started = time.monotonic()
        (record,) = judge.judge([file])
        told(record)
        found.setdefault(record.status, []).append(time.monotonic() - started)
        if record.low is not None:
            said.append(f"{file.stem} {record.speedup:.2f} [{record.low:.2f}, {record.high:.2f}]")
    times = "; ".join(f"{status}: {max(some):.1f} s at most of {len(some)}" for status, some in found.items())
    return f"One call for each candidate, warm judge: {times}. Speedups: {', '.join(said)}."


def copies(judge: Judge, folder: Path, *, visits: int = 20, trials: int = 200, count: int = 100) -> str:
    """In how many trials the best of so many copies of the reference is rewarded; each has visits drawn at random."""
    files = written(folder, {f"copy {at}": f"# {at}\n{IMPORTS}{ATTEND.format(RIGHT)}" for at in range(3)})
    seats = [judge.seat(read_candidate(file)) for file in files]
    for _ in range(visits):
        judge.visit(seats)
    reference, pool = dict(judge.reference.turns), list[list[float]]()
    for seat in seats:
        by_visit = dict[int, list[float]]()
        for number, seconds in seat.turns:
            by_visit.setdefault(number // ROUNDS, []).append(seconds / reference[number])
        pool += by_visit.values()
        seat.sandbox.close()
    rng, scatter, rewarded = np.random.default_rng(), Scatter(maxlen=KEPT), 0

    def drawn(number: int) -> tuple[Seat, Seat]:
        blank = [Record(name="copy", status="judged", correct=True) for _ in range(2)]
        one, other = (Seat(Candidate("copy", "known", "copy", ""), cast(Any, None), it) for it in blank)
        for visit in range(number):
            for at, ratio in enumerate(pool[rng.integers(len(pool))]):
                one.turns.append((ROUNDS * visit + at, ratio))
                other.turns.append((ROUNDS * visit + at, 1.0))
        return one, other

    for _ in range(trials):
        best = -math.inf
        for at in range(count):
            one, other = drawn(2 if at >= FINALISTS else 6)  # the last few, on new visits
            one.score(other, range(6), count if at >= FINALISTS else FINALISTS, scatter)
            best = max(best, one.record.reward)
        rewarded += best > 0
    spread = statistics.stdev(statistics.median(map(math.log, one)) for one in pool)
    return (
        f"Best of {count} copies of the reference: rewarded in {rewarded} of {trials} trials. The {len(pool)} recorded "
        f"visits scatter by {100 * spread:.1f} %."
    )


def main() -> int:
    """Print the table, and write the page where --out is given."""
    parser = command_line(__doc__, HOME / "judge.md")
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    given = parser.parse_args()
    rows, parts = list[tuple[str, ...]](), list[str]()
    with tempfile.TemporaryDirectory() as named:
        for group in given.groups or GROUPS:
            folder = Path(named, group)
            folder.mkdir()
            with Judge("torch_sdpa", Workload(heads=8, queries=512, keys=512), load_seconds=10) as judge:
                if other := {"volume": volume, "alone": alone, "copies": copies}.get(group):
                    parts.append(other(judge, folder))
                else:
                    sentence, more = judge_group(judge, group, folder)
                    parts.append(sentence)
                    rows += more
            say(parts[-1])
    head = ("group", "candidate", "status", "speedup", "reward", "known after", "won")
    publish("The judge and those who try it", "judge", "\n".join(parts), table(head, rows), out=given.out)
    return int(any(row[-1] for row in rows))
