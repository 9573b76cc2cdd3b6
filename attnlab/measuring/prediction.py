"""What a call will cost, before it is tried: from what smaller calls of the same contender cost.

Time grows at most as the pairs, and memory as a part that grows with the score matrix plus a part that
grows with the output; both parts are fitted with non-negative coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from attnlab.contract.workload import Workload

#: a call this much smaller (in FLOPs) than the one asked for still predicts it
REACH = 16
_FIRST_LENGTH = 64


@dataclass
class History:
    """What one contender's calls have cost so far, in one number format on one device."""

    seconds: list[tuple[int, float]] = field(default_factory=list)
    peaks: list[tuple[int, int, int]] = field(default_factory=list)

    def saw_seconds(self, workload: Workload, seconds: float) -> None:
        """One call of `workload` took `seconds`."""
        self.seconds.append((workload.flops, seconds))

    def saw_peak(self, workload: Workload, peak_bytes: int) -> None:
        """One call of `workload` held `peak_bytes` at most."""
        self.peaks.append((workload.score_bytes, workload.output_bytes, peak_bytes))

    def predict_seconds(self, workload: Workload) -> float | None:
        """Seconds per call of `workload`, or None where nothing seen is within reach of it."""
        near = [(flops, seconds) for flops, seconds in self.seconds if flops * REACH >= workload.flops]
        if not near:
            return None
        # of several calls of one size the fastest: the first one of a process does more than its work
        flops, seconds = min(near, key=lambda seen: (abs(seen[0] - workload.flops), seen[1]))
        return seconds * workload.flops / flops

    @property
    def sizes_seen(self) -> int:
        """Of how many different sizes a peak was seen."""
        return len({(scores, output) for scores, output, _ in self.peaks})

    def predict_peak(self, workload: Workload) -> int | None:
        """Peak bytes of `workload`, or None with fewer than three sizes seen.

        Two cannot tell what grows with the output from a share of the score matrix beside a workspace.
        """
        if self.sizes_seen < 3:
            return None
        import numpy as np
        from scipy.optimize import nnls

        seen = np.array(self.peaks, dtype=float)
        weight = 1 / np.maximum(seen[:, 2], 1.0)
        design = np.column_stack([seen[:, :2], np.full(len(seen), 2.0**20)])
        coefficients, _ = nnls(design * weight[:, None], seen[:, 2] * weight)
        sizes = np.array([workload.score_bytes, workload.output_bytes, 2.0**20])
        return int(sizes @ coefficients)


def rungs(workload: Workload) -> Iterator[Workload]:
    """Smaller workloads of one head that lead up to `workload`, each about 16 times the one before in FLOPs."""
    length = _FIRST_LENGTH
    while True:
        rung = workload.with_(
            batch=1, heads=1, queries=min(length, workload.queries), keys=min(length, workload.keys)
        )
        if rung.flops >= workload.flops:
            return
        yield rung
        if length >= max(workload.queries, workload.keys):
            return
        length *= 4


def least_peak_bytes(workload: Workload) -> int:
    """What any implementation holds at once, its inputs included."""
    return workload.input_bytes + workload.output_bytes


def worst_peak_bytes(workload: Workload) -> int:
    """More than any sane implementation holds: a dozen score matrices, in float64, and all arrays twice.

    Only where this would not fit is it worth finding out what the contender really needs.
    """
    return 24 * workload.score_bytes + 16 * least_peak_bytes(workload)
