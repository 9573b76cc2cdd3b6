"""A library that is broken, however badly, ends one contender with one line and its mend; the others are measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_workers import QUICK, SMALL

from attnlab.backend.contender import Contender, parse_all
from attnlab.problem.result import Outcome
from attnlab.race.conductor import Conductor
from attnlab.race.worker_process import Hung, WorkerProcess
from attnlab.runs import support
from attnlab.runs.support import listed
from attnlab.subprocesses import Channel, Late

#: what stands in the module of a library that ...
ABORTS = "import os, sys; print('terminate called', file=sys.stderr, flush=True); os.abort()"
LACKS_AN_INSTRUCTION = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
FAULTS = "import ctypes; ctypes.string_at(0)"
HANGS = "import signal; signal.pause()"
IS_HALF_THERE = "raise ImportError('libcore.so: cannot open shared object file')"
EXITS = "import sys; sys.exit('no licence found')"
IS_EMPTY = ""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts modules with these texts where every process that is started finds them first."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def put(**modules: str) -> None:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")

    return put


@pytest.mark.parametrize(
    ("text", "outcome", "reason"),
    [
        pytest.param(
            ABORTS,
            Outcome.CRASHED,
            "its process was killed by SIGABRT while it imported numba: terminate called; "
            "pip install --force-reinstall 'attnlab[numba]'",
            id="aborts",
        ),
        pytest.param(
            LACKS_AN_INSTRUCTION,
            Outcome.CRASHED,
            "its process was killed by SIGILL (an instruction that this processor does not have: the build is for "
            "another) while it imported numba; pip install --force-reinstall 'attnlab[numba]'",
            id="lacks an instruction",
        ),
        pytest.param(FAULTS, Outcome.CRASHED, "killed by SIGSEGV while it imported numba; pip", id="faults"),
        pytest.param(
            IS_HALF_THERE,
            Outcome.UNAVAILABLE,
            "numba fails on import (ImportError: libcore.so: cannot open shared object file); "
            "pip install --force-reinstall 'attnlab[numba]'",
            id="is half there",
        ),
        pytest.param(EXITS, Outcome.UNAVAILABLE, "numba fails on import (SystemExit: no licence", id="exits"),
        pytest.param(
            IS_EMPTY,
            Outcome.UNAVAILABLE,
            "numba does not hold what numba_fused needs (AttributeError",
            id="is empty",
        ),
    ],
)
def test_it_has_its_outcome_and_the_others_are_measured(
    install: Install, text: str, outcome: Outcome, reason: str
) -> None:
    """In a race of real processes."""
    install(numba=text)
    with Conductor(parse_all(["numba_fused", "numpy_vectorized"]), limits=QUICK, memory=False) as conductor:
        broken, sound = conductor.race(SMALL)
    assert (broken.outcome, sound.outcome) == (outcome, Outcome.MEASURED), (broken.reason, sound.reason)
    assert reason in (broken.reason or "")
    assert "\n" not in (broken.reason or "")


def test_one_that_hangs_on_import_is_told_by_name(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as its time is over: here at once, when it has told what it imports."""
    install(numba=HANGS)
    received: list[Any] = []
    real = Channel.receive

    def receive(channel: Channel, deadline: float | None = None) -> object:
        if received:  # what it imports
            raise Late
        received.append(real(channel, deadline))
        return received[0]

    monkeypatch.setattr(Channel, "receive", receive)
    process = WorkerProcess(Contender("numba_fused", "numba_fused"), start_seconds=240)
    process.start()
    try:
        with pytest.raises(Hung) as hung:
            process.finish_start()
    finally:
        process.end()
    told = r"no answer within 2\d\d s while it imported numba; killed; pip install --force-reinstall .attnlab\[numba\]."
    assert re.fullmatch(told, str(hung.value)), hung.value


def test_the_list_of_backends_survives_it(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come after it in the list are looked at too."""
    install(numba=ABORTS, onnx=EXITS, onnxruntime=IS_EMPTY)
    names = ["naive_loop", "numba_fused", "numpy_vectorized", "onnxruntime"]
    monkeypatch.setattr(support, "backends", lambda folders: names)
    found = {one.name: one for one in listed("cpu")}
    assert list(found) == names
    assert found["naive_loop"].reason is found["numpy_vectorized"].reason is None
    assert found["numpy_vectorized"].library == "numpy" and found["numpy_vectorized"].summary
    assert (found["numba_fused"].reason or "").endswith("pip install --force-reinstall 'attnlab[numba]'")
    assert "no licence found" in (found["onnxruntime"].reason or "")
