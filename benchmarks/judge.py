"""The judge against honest candidates, wrong ones, cheats and escapes: who is rewarded, and what gets out.

``python benchmarks judge [GROUP ...]``: the groups are the folders of ``benchmarks/judged``, all by default. A cheat
wins where its reward is above 0; an escape where it prints ESCAPED, leaves a process, or the judge does not go on.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import psutil
from common import HOME, command_line, publish, say, table

from attnlab.judge.judging import Judge
from attnlab.judge.record import Record
from attnlab.workload.workload import Workload

GROUPS = ("honest", "wrong", "cheats", "escapes")
#: what may become of a candidate of a group
ALLOWED = {
    "honest": {"judged"},
    "wrong": {"wrong"},
    "cheats": {"wrong", "caught", "failed", "judged"},
    "escapes": {"wrong", "failed", "caught"},
}


def won(group: str, record: Record, left: int) -> str:
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


def judge_group(judge: Judge, group: str, folder: Path) -> list[tuple[Record, str, float]]:
    """Each candidate's record, what it won, and the seconds until then."""
    files = sorted((HOME / "judged" / group).glob("*.py"))
    if group == "escapes":  # names that a terminal or a page would act on
        odd = folder / "a\nname <script>alert(1) `|`.py"
        shutil.copy(files[0], odd)
        files.append(odd)
    found, one_by_one = [], group == "escapes"
    for batch in [[file] for file in files] if one_by_one else [files]:
        started = time.monotonic()
        for record in judge.judge(batch):
            # the judge keeps the reference's sandbox, and two that wait
            left = max(0, len(psutil.Process().children()) - 3) if one_by_one else 0
            found.append((record, won(group, record, left), time.monotonic() - started))
            say(
                f"{group} {Path(record.name).stem!r}: {record.status}, reward {record.reward:.2f}, {found[-1][1]}"
            )
            say(f"    {record.reason[:160]!r}")
    return found


def main() -> int:
    """Print the table, and write the page where --out is given."""
    parser = command_line(__doc__, HOME / "judge.md")
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    given = parser.parse_args()
    rows, bad, parts = [], 0, list[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        Judge("torch_sdpa", Workload(heads=8, queries=512, keys=512), load_seconds=20) as judge,
    ):
        for group in given.groups or GROUPS:
            found = judge_group(judge, group, Path(folder))
            bad += sum(bool(what) for _, what, _ in found)
            for record, what, seconds in found:
                speed = f"{record.speedup:.2f}" if record.speedup else "–"
                name = Path(record.name).stem.replace("\n", " ").replace("<", "&lt;").replace("`", "'")
                rows.append(
                    (group, name, record.status, speed, f"{record.reward:.2f}", f"{seconds:.1f} s", what)
                )
            parts.append(
                f"{group}: {len(found)} candidates, {sum(bool(what) for _, what, _ in found)} not as they should."
            )
    head = ("group", "candidate", "status", "speedup", "reward", "known after", "won")
    publish("The judge and those who try it", "judge", "\n".join(parts), table(head, rows), out=given.out)
    return int(bad > 0)
