"""Can `judge` be deceived, and how long does it take? It judges honest candidates, wrong ones, cheats and escapes.

``python benchmarks judge [GROUP ...]``: honest, wrong, cheats and escapes, all by default. A cheat succeeds if its
reward is above 0; an escape, if it prints ESCAPED, leaves a process behind, or stops the judge. Other groups: volume:
106 candidates in one call; alone: one call for each, as in a training loop; exam: honest candidates and backends, in
exams on workloads drawn at random; copies: the best of 100 copies of the reference, from visits of three of them;
peers: what BackendBench says of the same candidates. Results are collected by hand in ``benchmarks/judge.md``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
from common import HOME, alike, command_line, publish, say, table

from attnlab.backends.backend import Backend
from attnlab.backends.discovery import backends, load, require, unasked
from attnlab.errors import Unavailable
from attnlab.judge.candidates import Candidate, read_candidate
from attnlab.judge.judging import FINALISTS, Judge
from attnlab.judge.score import KEPT, ROUNDS, Record, Scatter, Seat
from attnlab.race.compare import compare
from attnlab.workload.workload import Workload

Row = dict[str, str]
#: the results that a candidate of each group may have
LOST = ["wrong", "caught", "failed"]
ALLOWED = {"honest": ["judged"], "wrong": ["wrong"], "cheats": [*LOST, "judged"], "escapes": LOST}
IMPORTS = "import torch\nfrom torch.nn.functional import scaled_dot_product_attention as right\n"
ATTEND = "def attend(q, k, v, *, scale):\n    return {}\n"
RIGHT = "right(q, k, v, scale=scale)"
EAGER = "(q @ k.transpose(-1, -2) * scale).softmax(-1) @ v"
HONEST = {
    "sdpa": RIGHT,
    "eager": EAGER,
    "float64": f"(lambda q, k, v: {EAGER})(*(x.double() for x in (q, k, v))).to(q.dtype)",
    "heads one by one": "torch.cat([right(*(x[:, i : i + 1] for x in (q, k, v)), scale=scale) "
    "for i in range(q.shape[1])], 1)",
}
#: five speeds: the number of needless computations before the answer
SPEEDS = (0, 1, 2, 3, 5)
#: wrong candidates, each with the values that are put into it
WRONG: dict[str, tuple[object, ...]] = {
    "right(q, k, v, scale=scale * {})": (0.5, 0.9, 0.99, 1.01, 1.1, 2),
    "right(q, k, v, scale=scale) * {}": (0.99, 0.999, 1.001, 1.01),
    "right(q, k, v, scale=scale) + {}": (0.001, 0.01),
    "right(*(x.{}() for x in (q, k, v)), scale=scale).float()": ("half", "bfloat16"),
    "right(q, *(x[:, :, ::{}].contiguous() for x in (k, v)), scale=scale)": (2, 3, 4),
    "right(q, *(x[:, :, : -{}].contiguous() for x in (k, v)), scale=scale)": (1, 8),
    "right(q, k, v.flip({}), scale=scale)": (1, 2, 3),
    "right(q, k, v, scale=scale, is_causal={})": (True,),
    "right(q, k.roll({}, 2), v, scale=scale)": (1, 2),
    "v{}": ("", " * 0", ".mean(2, keepdim=True).expand_as(q)"),
    "(lambda w: w / w.sum(-1, keepdim=True) @ v)((q @ k.mT * scale).exp() * {})": (1,),
    "right(k, q, v, scale=scale) * {}": (1,),
}
#: with namespaces of its own, because some cheats stop every process that they see
ALONE = "bwrap --bind / / --dev /dev --proc /proc --unshare-all --die-with-parent"
BREAKERS = "hangs kills_all takes_memory fills_the_disk forks sends_nonsense stops_all prints takes_shared_memory stays"


def texts(group: str) -> dict[str, str]:
    """The candidates of a group, by name."""
    if group == "honest":
        return {name: IMPORTS + ATTEND.format(one) for name, one in HONEST.items()}
    if group == "wrong":
        every = [one.format(value) for one, values in WRONG.items() for value in values]
        return {f"wrong {at}": f"# {one}\n{IMPORTS}{ATTEND.format(one)}" for at, one in enumerate(every)}
    head, *parts = (HOME / "judged" / f"{group}.py").read_text(encoding="utf-8").split("\n\n\ndef ")
    default, found = "\n" + ATTEND.format(RIGHT if group == "cheats" else "q * 0"), dict[str, str]()
    for part in parts:
        name, _, rest = part.partition("(")
        body = textwrap.dedent(rest.partition(":\n")[2])
        if name.startswith("_"):
            head += "\n\n\ndef " + part
        elif rest.startswith("q"):  # the function itself is the candidate
            found[name] = f"{head}\n\n\ndef attend({rest}\n"
        else:
            found[name] = f"{head}\n\n\n{body}\n{'' if 'def attend' in body else default}"
    if group == "escapes":  # a name that a terminal or a page would interpret
        found["a\nname <script>alert(1) `|`"] = found["leaves_something_behind"]
    return found


def written(folder: Path, found: dict[str, str]) -> list[Path]:
    """Write a file for each candidate."""
    for name, text in found.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return [folder / f"{name}.py" for name in found]


def won(group: str, record: Record, left: int = 0) -> str:
    """What should not have happened, or an empty string."""
    said = record.output[record.output.find("ESCAPED") :].partition("\n")[0]
    found = [f"is {record.status}"] * (record.status not in ALLOWED[group])
    found += [f"reward {record.reward:.2f}"] * (group != "honest" and record.reward > 0)
    found += [said] * ("ESCAPED" in record.output) + [f"{left} processes left"] * (left > 0)
    return ", ".join(found)


def told(judge: Judge, files: list[Path]) -> Iterator[tuple[str, Record, float]]:
    """For each candidate: its name, its record, and the seconds until its result."""
    started = time.monotonic()
    for record in judge.judge(files):
        name = Path(record.name).stem
        say(f"{name!r}: {record.status} {record.speedup} {record.reward:.2f} {record.reason[:160]!r}")
        yield name, record, time.monotonic() - started


def judged(judge: Judge, group: str, folder: Path) -> tuple[str, list[Row]]:
    """A sentence about a group, and a row for each candidate: its result, and the time until the result."""
    rows, one_by_one, of = list[Row](), group == "escapes", dict[str, str]()
    for kind, found in (hundred() if group == "volume" else {group: texts(group)}).items():
        of |= dict.fromkeys(found, kind)
        written(folder, found)
    files = [folder / f"{name}.py" for name in np.random.default_rng(0).permuted([*of])]
    for batch in [[file] for file in files] if one_by_one else [files]:
        for name, record, seconds in told(judge, batch):
            # the judge keeps three sandboxes: that of the reference, and two that are prepared
            left = max(0, len(psutil.Process().children()) - 3) if one_by_one else 0
            shown = name.replace("\n", " ").replace("<", "&lt;").replace("`", "'")
            speedup = f"{record.speedup:.2f}" if record.speedup else "–"
            kind = of.get(name, group)  # an escaped name is not found
            row = {"group": kind, "candidate": shown, "status": record.status, "speedup": speedup}
            row |= {"reward": f"{record.reward:.2f}", "result after": f"{seconds:.1f} s"}
            rows.append(row | {"problem": won(kind, record, left)})
    said = f"{group}: {len(rows)} candidates, the last result after {rows[-1]['result after']}; "
    said += f"{sum(bool(row['problem']) for row in rows)} with a problem."
    return said + order(rows) * (group == "volume"), rows


def hundred() -> dict[str, dict[str, str]]:
    """By group: 40 honest candidates of five speeds, 30 wrong ones, 26 that cheat and 10 that break things."""
    work = "[{} for _ in range({})]; return {}"
    speeds = {more: IMPORTS + ATTEND.replace("return {}", work.format(RIGHT, more, RIGHT)) for more in SPEEDS}
    honest = {f"{n + 1} times, {at}": f"# {at}\n{text}" for n, text in speeds.items() for at in range(8)}
    breaking = {name: text for name, text in texts("escapes").items() if name in BREAKERS.split()}
    return {"honest": honest, "wrong": texts("wrong"), "cheats": texts("cheats"), "escapes": breaking}


def order(rows: list[Row]) -> str:
    """Whether candidates that compute more often are found slower."""
    found = dict[str, list[float]]()
    for row in rows:
        if row["group"] == "honest" and row["speedup"] != "–":
            found.setdefault(row["candidate"].partition(",")[0], []).append(float(row["speedup"]))
    medians = {times: statistics.median(some) for times, some in sorted(found.items())}
    right = [*medians.values()] == sorted(medians.values(), reverse=True)
    return f" Median speedups by how often they compute: {medians}; the order is {'NOT ' * (not right)}right."


def alone(judge: Judge, folder: Path) -> str:
    """Seconds of one call for each honest or wrong candidate, and speedups, some with that of `compare`."""
    times, said = dict[str, list[float]](), []
    for file in written(folder, texts("honest") | dict([*texts("wrong").items()][::6])):
        time.sleep(4)  # as in a training loop: the judge prepares its next sandbox
        ((name, record, seconds),) = told(judge, [file])
        times.setdefault(record.status, []).append(seconds)
        if record.low is not None:
            said.append(f"{name} {record.speedup:.2f} [{record.low:.2f}, {record.high:.2f}]")
        if (backend := f"torch_{name}") in backends():
            asked = Workload.from_dict(record.workload)
            (found,) = compare("torch_sdpa", backend, workload=asked, afresh=True).verdicts.values()
            one = found.turned
            said[-1] += f" (in `compare` {one.ratio:.2f} [{one.low:.2f}, {one.high:.2f}])"
    most = "; ".join(f"{status} ({len(some)}): at most {max(some):.1f} s" for status, some in times.items())
    return f"One call for each candidate, warm judge: {most}. Speedups: {', '.join(said)}."


def exam(folder: Path, count: int) -> str:
    """How many honest candidates are refused in exams on `count` random workloads, which they support."""
    rng, files, refused = np.random.default_rng(), written(folder, texts("honest")), list[str]()
    asked, known = 0, dict[str, Backend]()
    for name in {*unasked()} - {"naive_loop"}:  # too slow
        with suppress(Unavailable):
            known[name] = load(name)
    for at in range(count):
        plain, dtype = at % 2 == 0, ("float32", "bfloat16", "float16")[at % 3]
        batch, heads, dim = (int(rng.integers(1, most)) for most in (3, 9, 129))
        sizes = dict(zip(("queries", "keys"), sorted(map(int, rng.integers(1, 400, size=2))), strict=True))
        groups = [one for one in range(1, heads + 1) if heads % one == 0]
        asks = {"kv_heads": heads if plain else int(rng.choice(groups)), "causal": not plain and at % 4 == 1}
        workload = Workload(batch=batch, heads=heads, head_dim=dim, dtype=dtype, **sizes, **asks)
        able = [require(name) for name, one in known.items() if not one.declines(workload)]
        with Judge("torch_sdpa", workload, load_seconds=60) as judge:
            for file in [*files * plain, *able]:
                seat, asked = judge.seat(read_candidate(file)), asked + 1
                seat.attempt(judge.examine, seat)
                seat.sandbox.close()
                refused += [f"{file.stem} at {workload.label}: {seat.record.reason}"] * (not seat.racing)
        say(f"{workload.label}: {asked} asked, {len(refused)} refused: {refused[-1:]}")
    return f"{asked} honest candidates in exams on {count} workloads: {len(refused)} refused. {'; '.join(refused)}"


def copies(judge: Judge, folder: Path, *, visits: int = 20, trials: int = 200, count: int = 100) -> str:
    """In how many trials the best of `count` copies of the reference is rewarded. Each has randomly drawn visits."""
    files = written(folder, {f"copy {at}": f"# {at}\n{IMPORTS}{ATTEND.format(RIGHT)}" for at in range(3)})
    seats = [judge.seat(read_candidate(file)) for file in files]
    for _ in range(visits):
        judge.visit(seats)
    by_visit = dict[object, list[float]]()
    for seat in seats:
        for number, seconds in seat.turns.items():
            ratio = seconds / judge.reference.turns[number]
            by_visit.setdefault((id(seat), number // ROUNDS), []).append(ratio)
        seat.sandbox.close()
    pool, rng, scatter, rewarded = [*by_visit.values()], np.random.default_rng(), Scatter(maxlen=KEPT), 0
    known = Candidate("copy", "function", "copy", ""), cast(Any, None)

    def score(number: int, among: int) -> float:
        one, other = (Seat(*known, Record(name="copy", status="judged", correct=True)) for _ in "ab")
        for visit in range(number):
            for at, ratio in enumerate(pool[rng.integers(len(pool))]):
                one.turns[ROUNDS * visit + at], other.turns[ROUNDS * visit + at] = ratio, 1.0
        one.score(other, range(number), among, scatter, set())
        return one.record.reward

    for _ in range(trials):  # the finalists are scored on new visits
        best = [score(6, FINALISTS) if at < FINALISTS else score(2, count) for at in range(count)]
        rewarded += max(best) > 0
    return f"Best of {count} copies of the reference: rewarded in {rewarded} of {trials} trials, by {len(pool)} visits."


def peers(judge: Judge, folder: Path) -> str:
    """What BackendBench says. A wrong candidate deceives it if called right; a cheat, if also more than 30 % faster."""
    rows, command = list[Row](), [*ALONE.split(), sys.executable, str(HOME / "judged" / "peer.py")]
    for group in ("honest", "wrong", "cheats"):
        for file in written(folder, texts(group)):
            done = subprocess.run([*command, str(file)], capture_output=True, text=True)
            right, speedup = ["does not run", "0"] if done.returncode else done.stdout.split()[-2:]
            fooled = right == "100%" and (group == "wrong" or (group == "cheats" and float(speedup) > 1.3))
            row = {"candidate": file.stem, "group": group, "called right": right, "speedup": speedup}
            rows.append(row | {"deceived": "yes" * fooled})
    fools = [one["group"] for one in rows if one["deceived"]]
    return f"BackendBench was deceived by {len(fools)}, {fools.count('wrong')} of them wrong.\n\n{table(alike(rows))}\n"


def main() -> int:
    """Judge the named groups and write the page."""
    others = {"alone": alone, "copies": copies, "peers": peers}
    others["exam"] = lambda _, folder: exam(folder, given.workloads)
    parser = command_line(__doc__, HOME / "judge.md", parts=[*ALLOWED, "volume", *others])
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--workloads", type=int, default=90, help="number of workloads of the exam [90]")
    given = parser.parse_args()
    asked = Workload(heads=8, queries=given.length, keys=given.length)
    rows, parts = list[Row](), list[str]()
    with tempfile.TemporaryDirectory() as named:
        for group in given.parts or ALLOWED:
            folder = Path(named, group)
            folder.mkdir()
            with Judge("torch_sdpa", asked, load_seconds=10) as judge:
                if group in others:
                    parts.append(others[group](judge, folder))
                else:
                    sentence, more = judged(judge, group, folder)
                    parts.append(sentence)
                    rows += more
            say(parts[-1])
    publish("Can `judge` be deceived?", "judge", "\n".join(parts), table(rows), out=given.out)
    return int(any(row["problem"] for row in rows))
