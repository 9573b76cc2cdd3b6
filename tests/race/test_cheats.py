"""Who does not compute on the clock what it was checked for gets no speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnlab.problem.result import Outcome
from attnlab.problem.workload import Workload
from attnlab.race.compare import compare
from attnlab.race.limits import Limits

HEAD = '''"""A backend that cheats."""
LIBRARY = "{library}"
import sys, time
import numpy as np

def right(query, key, value, scale):
    scores = query @ key.swapaxes(-1, -2) * scale
    if LIBRARY == "torch":
        return scores.softmax(-1) @ value
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value

kept, calls = {{}}, 0
'''
#: what each does instead of computing; `attend` is called with query, key, value and scale
CHEATS = {
    "by_address": """
def attend(query, key, value, *, scale):
    place = query.ctypes.data
    if place not in kept:
        kept[place] = right(query, key, value, scale)
    return kept[place].copy()
""",
    "by_content": """
def attend(query, key, value, *, scale):
    said = hash((query.tobytes(), key.tobytes(), value.tobytes()))
    if said not in kept:
        kept[said] = right(query, key, value, scale)
    return kept[said].copy()
""",
    "by_first_numbers": """
def attend(query, key, value, *, scale):
    said = query.shape, query[0, 0, 0].tobytes(), value[0, 0, 0].tobytes()
    if said not in kept:
        kept[said] = right(query, key, value, scale)
    return kept[said].copy()
""",
    "weights_by_address": """
def attend(query, key, value, *, scale):
    place = query.ctypes.data
    if place not in kept:
        scores = query @ key.swapaxes(-1, -2) * scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        kept[place] = weights / weights.sum(-1, keepdims=True)
    return kept[place] @ value
""",
    "in_its_first_calls_only": """
def attend(query, key, value, *, scale):
    global calls
    calls += 1
    if calls <= 12:
        kept[0] = right(query, key, value, scale)
    return kept[0].copy()
""",
    "not_in_the_timing_loop": """
def attend(query, key, value, *, scale):
    frame, timed = sys._getframe(), False
    while frame is not None:
        timed, frame = timed or "seconds_per_call" in frame.f_code.co_name, frame.f_back
    if not timed or 0 not in kept:
        kept[0] = right(query, key, value, scale)
    return kept[0].copy()
""",
    "with_a_slow_clock": """
real = time.perf_counter
time.perf_counter = lambda: real() / 10
def attend(query, key, value, *, scale):
    return right(query, key, value, scale)
""",
    "with_its_own_timing": """
from attnlab.libraries import host
def at_once(call, iterations, finish):
    for _ in range(iterations):
        call()
    return 1e-5
host.seconds_per_call = at_once
def attend(query, key, value, *, scale):
    return right(query, key, value, scale)
""",
    "when_it_is_read": """
import torch
class Later(torch.Tensor):
    pass
def attend(query, key, value, *, scale):
    return right(query, key, value, scale).as_subclass(Later)
""",
}
SMALL = Limits(processes=3, most_processes=3, workload_seconds=1.0, further_above=0.0, call_seconds=1e3)


@pytest.mark.parametrize("name", CHEATS)
def test_who_does_not_compute_on_the_clock_gets_no_speed(tmp_path: Path, name: str) -> None:
    """Refused, by name; where a slow clock alone was its means, measured at its true speed."""
    library = "torch" if "torch" in CHEATS[name] else "numpy"
    for file, body in {
        name: CHEATS[name],
        "honest": CHEATS["with_a_slow_clock"].partition("def attend")[2],
    }.items():
        text = body if file == name else "def attend" + body
        (tmp_path / f"{file}.py").write_text(HEAD.format(library=library) + text)
    # one thread each: beside other programs too it finds a core now and then
    contenders = ["honest[threads=1]", f"{name}[threads=1]"]
    found = compare(contenders, Workload(heads=2, queries=256, keys=256), folders=[tmp_path], limits=SMALL)
    honest, cheat = found.results
    assert honest.outcome is Outcome.MEASURED, honest.reason
    if name == "with_a_slow_clock" and cheat.outcome is Outcome.MEASURED:
        assert found.verdicts[cheat.contender].ratio > 0.3
    else:
        assert cheat.outcome is Outcome.WRONG, cheat
