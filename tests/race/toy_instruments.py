"""Instruments that no run takes by itself: in a module of their own, which a worker process can import."""

from __future__ import annotations

import time
from typing import Any

from attnlab.backend.library import Call, Library
from attnlab.race.instruments import Instrument, Readings


class CpuTime(Instrument):
    """CPU seconds of all threads, a call."""

    quantity = "cpu_time"
    unit = "s"

    def measure(self, library: Library, call: Call, **options: Any) -> Readings:
        """Of three calls, one sample each."""
        samples = []
        for _ in range(3):
            start = time.process_time()
            call()
            library.finish()
            samples.append(time.process_time() - start)
        return Readings(tuple(samples), {"call": (0, 1, 2)}, {"clock": "process_time"})


class Failing(Instrument):
    """What this machine cannot measure."""

    quantity = "spin"
    unit = "1"

    def measure(self, library: Library, call: Call, **options: Any) -> Readings:
        raise RuntimeError("no such counter here")
