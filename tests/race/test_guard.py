"""What the guard ends is gone when it says so, and so is what that has started meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from attnlab.race import guard

#: has a child of its own, which carries the mark too
PARENT = (
    "import subprocess as s, sys; s.Popen([sys.executable, '-c', 'input()'], stdin=s.PIPE); print(); input()"
)


@pytest.fixture
def marked() -> Iterator[list[subprocess.Popen[str]]]:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, guard.MARK: "of-this-test"},
        )
        for _ in range(3)
    ]
    yield started
    for one in started:
        one.kill()
        one.communicate()


def test_what_is_swept_is_gone(marked: list[subprocess.Popen[str]]) -> None:
    for one in marked:
        assert one.stdout is not None
        one.stdout.readline()  # its child is there
    family = [child for one in marked for child in psutil.Process(one.pid).children()]
    assert len(family) == 3
    assert len(guard.marked("of-this-test")) >= 6
    guard.sweep("of-this-test")
    assert guard.marked("of-this-test") == []
    alive = [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not alive
