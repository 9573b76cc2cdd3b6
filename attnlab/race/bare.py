"""One backend alone in a bare process: no conductor, no pipes, never stopped. What a race must agree with.

``python -P -m attnlab.race.bare REQUEST``, where REQUEST is JSON; prints seconds a call as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from attnlab.backends.contender import Contender
from attnlab.problem.workload import Workload
from attnlab.race.worker import Worker

#: a process that has not answered after so many times its seconds, and a start, is ended
_PATIENCE, _START_SECONDS = 30.0, 120.0


def seconds_alone(
    contender: Contender, workload: Workload, *, seconds: float = 0.5, folders: Sequence[str] = ()
) -> float:
    """Median seconds a call in a fresh bare process, over calls for so many `seconds` after a warm-up of a fifth.

    With the contender's settings and environment. Raises RuntimeError, with what the process printed last, where it
    gives no figure.
    """
    request = {
        "backend": contender.backend,
        "folders": list(folders),
        "threads": contender.threads,
        "slowed": contender.slowed,
        "settings": dict(contender.settings),
        "projection": contender.projection,
        "workload": workload.to_dict(),
        "seconds": seconds,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "attnlab.race.bare", json.dumps(request)],
            env=contender.environment(os.environ),
            capture_output=True,
            text=True,
            timeout=_START_SECONDS + _PATIENCE * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{contender.name} alone gave no figure in time") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RuntimeError(f"{contender.name} alone gave no figure: {said}")
    return float(json.loads(done.stdout)["seconds"])


def measure(request: dict[str, Any]) -> float:
    """Median seconds of a call of what `request` asks for, measured in this process."""
    import statistics

    worker = Worker()
    loaded = ("backend", "folders", "threads", "slowed", "settings", "projection")
    worker.load(**{name: request[name] for name in loaded})
    worker.prepare(request["workload"])
    call, library = worker.call, worker.library()
    assert call is not None
    end = time.perf_counter() + request["seconds"] / 5
    first = library.time_calls(call, 1)
    while time.perf_counter() < end:
        first = min(first, library.time_calls(call, 1))
    iterations = max(1, round(0.005 / first))
    samples: list[float] = []
    end = time.perf_counter() + request["seconds"]
    while not samples or time.perf_counter() < end:
        samples.append(library.time_calls(call, iterations))
    return statistics.median(samples)


if __name__ == "__main__":
    print(json.dumps({"seconds": measure(json.loads(sys.argv[1]))}))
