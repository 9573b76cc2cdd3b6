"""A stored run whose bytes were changed gives no traceback; what is whole is read, and nothing changed is shown."""

from __future__ import annotations

import random
from pathlib import Path

from damage import damaged
from synthetic import synthetic

from attnlab.report import report_texts
from attnlab.report.frames import Frames
from attnlab.runs.store import RESULTS, RUN_FILE, read_run


def test_changed_bytes_are_told_and_hide_nothing_whole(tmp_path: Path) -> None:
    """A changed digit cannot be told: it is shown, or the file is refused in one line."""
    some = ("torch_eager", "torch_eager#2", "torch_sdpa", "torch_sdpa_cudnn")
    run = synthetic(tmp_path, contenders=some, lengths=(64, 128), heads=(1,), rounds=10)
    run.save()
    good, told = {name: (tmp_path / name).read_bytes() for name in (RUN_FILE, RESULTS)}, set()
    for generator in map(random.Random, range(24)):
        name = generator.choice([RESULTS, RESULTS, RUN_FILE])
        data = damaged(generator, good[name])
        (tmp_path / name).write_bytes(data)
        try:
            found = read_run(tmp_path)
            report_texts(Frames(found))
            there = set(map(repr, found.results))
            for line, result in zip(good[RESULTS].splitlines(), run.results, strict=True):
                whole = name == RUN_FILE or data.split(b"\n").count(line) == 1
                assert not whole or result.contender in repr(there), "a result is lost"
            told.add("read")
        except ValueError as fault:
            assert name == RUN_FILE and str(tmp_path / RUN_FILE) in str(fault), fault
            told.add("refused")
        (tmp_path / name).write_bytes(good[name])
    assert told == {"read", "refused"}
