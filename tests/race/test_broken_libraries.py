"""A library that is broken, however badly, ends one contender with one line and its mend; the others are measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_workers import QUICK, SMALL

from attnlab.backends.contender import parse_all
from attnlab.race.conductor import Conductor
from attnlab.workload.result import Outcome

#: what stands in the module of a library that ...
ABORTS = "import os, sys; print('terminate called', file=sys.stderr, flush=True); os.abort()"
LACKS_AN_INSTRUCTION = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
IS_HALF_THERE = "raise ImportError('libcore.so: cannot open shared object file')"
EXITS = "import sys; sys.exit('no licence found')"
IS_EMPTY = ""

MEND = "pip install --force-reinstall 'attnlab[numba]'"
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
        (ABORTS, Outcome.CRASHED, f"killed by SIGABRT while it imported numba: terminate called; {MEND}"),
        (
            LACKS_AN_INSTRUCTION,
            Outcome.CRASHED,
            "killed by SIGILL (an instruction that this processor does not have",
        ),
        (IS_HALF_THERE, Outcome.UNAVAILABLE, f"libcore.so: cannot open shared object file); {MEND}"),
        (IS_EMPTY, Outcome.UNAVAILABLE, "numba does not hold what numba_fused needs (AttributeError"),
    ],
    ids=["aborts", "lacks an instruction", "is half there", "is empty"],
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
