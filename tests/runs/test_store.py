"""A run's folder keeps what was measured, despite kills, damage, full disks and second runs."""

from __future__ import annotations

import json
import resource
from dataclasses import asdict
from pathlib import Path

import pytest
from small_runs import record

from attnlab.errors import NotStored
from attnlab.runs.store import LOCK, RESULTS, RUN_FILE, claimed, held, read_run
from attnlab.workload.result import Ceiling, Measurement, Outcome, Result

CEILING = asdict(Ceiling("cpu", "float32", 0.0, "numpy", 1e9, "numpy"))


def test_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Its table has a row per measurement, and one for each result without measurements."""
    written = record(tmp_path)
    found = read_run(tmp_path)
    assert found == written and found.left() == [written.plan.workloads[1]]
    frame = found.frame()
    assert frame["contender"].tolist() == ["numpy_vectorized", "other"]
    assert frame["value"].tolist()[0] == 2.0 and frame["reason"].tolist()[1] == "no"
    written.complete = True
    written.save()
    assert not read_run(tmp_path).complete, "a workload has no results"


def test_damaged_lines_are_skipped_by_number_and_every_other_is_read(tmp_path: Path) -> None:
    """Garbage, an impossible figure, and a last line that a kill cut off. The next result begins on a new line."""
    written = record(tmp_path)
    file = tmp_path / RESULTS
    good = file.read_bytes()
    outside = good.splitlines(keepends=True)[1].replace(b'"keys": 8', b'"keys": 9')
    file.write_bytes(good + b"\xff\x00 garbage\n" + good.replace(b"2.0", b'"inf"', 1)[:-5])
    with file.open("ab") as more:
        more.write(b"\n" + outside + outside.replace(b"other", b"third"))
    found = read_run(tmp_path)
    assert found.results == written.results
    assert [one.partition(":")[0] for one in found.torn[RESULTS]] == [
        f"line {number}" for number in range(3, 8)
    ]
    found.append([Result("other", written.plan.workloads[1], Outcome.DECLINED, reason="no")])
    again = read_run(tmp_path)
    assert len(again.results) == 3 and len(again.torn[RESULTS]) == 5


def test_what_is_no_run_of_this_version_is_refused_in_one_line(tmp_path: Path) -> None:
    """For a run of an earlier version, the message names the version that reads it."""
    record(tmp_path)
    good = json.loads((tmp_path / RUN_FILE).read_text())
    for text, said in (
        ("[" * 100_000, "cannot be read"),
        (json.dumps({**good, "format": 1}), "attnlab 0.3.1 reads it"),
        (json.dumps({**good, "format": 99}), "later version"),
        ("[]", "damaged"),
        (json.dumps({**good, "plan": {**good["plan"], "workloads": []}}), "damaged"),
        (json.dumps({**good, "plan": {**good["plan"], "origins": ["one"]}}), "origins must be 2"),
        (json.dumps({**good, "environment": {"contenders": []}}), "got `array`"),
        (json.dumps({**good, "ceilings": [CEILING]}), r"> 0.0 - at `\$.ceilings\[0\].matmul_flops`"),
        (json.dumps(good).replace('"mask": ""', '"mask": "tree(3)"', 1), "which wrote it; .* no kind 'tree'"),
    ):
        (tmp_path / RUN_FILE).write_text(text)
        with pytest.raises(ValueError, match=said) as refused:
            read_run(tmp_path)
        assert "\n" not in str(refused.value) and RUN_FILE in str(refused.value)


def test_a_full_disk_is_said_and_what_is_there_stays(tmp_path: Path) -> None:
    """A partly written line is removed."""
    written = record(tmp_path)
    before = (tmp_path / RESULTS).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(NotStored, match=r"results\.jsonl cannot be written"):
            written.append([Result("other", written.plan.workloads[1], Outcome.DECLINED, reason="no")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / RESULTS).read_bytes() == before and len(written.results) == 2


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    """The folder is locked as soon as it is claimed. A lock that a killed process left behind does not count."""
    (tmp_path / LOCK).touch()
    with claimed(None, tmp_path, RUN_FILE) as place:
        for _ in range(2):
            for again in (lambda: held(place), lambda: claimed(None, place, RUN_FILE)):
                with pytest.raises(ValueError, match="another process is writing"), again():
                    pass
            record(place)
    assert read_run(tmp_path).results


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """A file, a folder with another run or other files, a folder within a file, a name that is too long."""
    file, full, other = (tmp_path / name for name in ("file", "full", "other"))
    file.touch()
    full.mkdir()
    (full / "notes").touch()
    other.mkdir()
    record(other)
    for folder in (file, full, other, file / "within", tmp_path / ("x" * 300)):
        with pytest.raises(ValueError, match=f"the output folder {folder}"):
            claimed(folder, tmp_path / "latest", RUN_FILE).__enter__()
    assert [one.name for one in full.iterdir()] == ["notes"]


def test_the_run_before_in_the_default_folder_is_moved_aside(tmp_path: Path) -> None:
    """Each run gets a name of its own. A folder that holds something else stays."""
    latest = tmp_path / "latest"
    for _ in range(3):
        with claimed(None, latest, RUN_FILE) as place:
            record(place)
    assert latest.is_dir() and len(list(tmp_path.glob(f"latest-*/{RUN_FILE}"))) == 2
    (latest / RUN_FILE).unlink()
    with pytest.raises(ValueError, match="something else than results of attnlab"):
        claimed(None, latest, RUN_FILE).__enter__()


def test_of_a_visit_that_was_made_twice_the_last_counts_and_visits_are_merged(tmp_path: Path) -> None:
    """A visit that was interrupted is made again as a whole."""
    written = record(tmp_path)
    name, workload = written.contenders[0], written.plan.workloads[0]
    for visit, seconds, first in ((0, 3.0, 0), (1, 5.0, 2)):
        columns = {"round": (first, first + 1.0), "visit": (float(visit),) * 2}
        latency = Measurement("latency", "s", (seconds,) * 2, columns)
        written.append([Result(name, workload, Outcome.MEASURED, measurements=(latency,))])
    (found,) = [one for one in read_run(tmp_path).results if one.contender == name]
    assert found.latency is not None and found.latency.samples == (3.0, 3.0, 5.0, 5.0)
    assert found in written.results and len(written.results) == 2
