"""A new metric: how often a call made the system find memory for it."""

from __future__ import annotations

import resource
from typing import Any

from attnlab.contract.library import Call, Library
from attnlab.measuring.instruments import Instrument, Readings


class PageFaults(Instrument):
    """Minor page faults of one warm call."""

    quantity = "page_faults"
    unit = "1"

    def measure(self, library: Library, call: Call, **options: Any) -> Readings:
        call()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        call()
        library.finish()
        return Readings((float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before),))
