"""A time compared with what this machine can do: achieved rate, share of the ceilings, and which of them limits it.

Williams, Waterman and Patterson 2009, "Roofline". The ceiling of arithmetic is measured: the best matrix product of
the libraries here. A kernel may honestly do better than theirs (OpenVINO and ONNX Runtime reached three times the rate
of NumPy's product on an AMD EPYC), so only a rate that no library's choice of instructions explains is a failed
measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnlab.problem.result import Ceiling
from attnlab.problem.workload import Workload

#: a share of the copy bandwidth above this is a failed measurement
_BELIEVED_COPY = 1.05
#: shares of the matrix-product rate above these are failed measurements. On a CPU, libraries that use 128-bit vectors
#: and no fused multiply-add, as all here may, give away a factor of 8 (512 bits, and two operations in one); on CUDA
#: all take the vendor's product
BELIEVED = {"cpu": 8.0, "cuda": 1.05}
#: buffers of the copy benchmark; a warm call on less may stay in the caches and outrun memory honestly
_BEYOND_CACHES = 2**28


@dataclass(frozen=True)
class Rate:
    """`flops` achieved in FLOP/s; `compute` and `bandwidth` as shares of the two ceilings."""

    flops: float
    compute: float
    bandwidth: float
    device: str
    memory_bound_believed: bool

    @property
    def limited_by(self) -> str:
        """The ceiling that explains at least half of the time; "overhead" where neither does.

        Overhead is everything else: dispatch, softmax, and the traffic of intermediate arrays.
        """
        if max(self.compute, self.bandwidth) < 0.5:
            return "overhead"
        return "compute" if self.compute >= self.bandwidth else "bandwidth"

    @property
    def fault(self) -> str | None:
        """Why the time cannot be believed, or None."""
        if self.compute > BELIEVED[self.device]:
            return f"{self.compute:.0%} of the best matrix-multiply rate: a failed measurement, not a speed"
        if self.memory_bound_believed and self.bandwidth > _BELIEVED_COPY:
            return f"{self.bandwidth:.0%} of the copy bandwidth: a failed measurement, not a speed"
        return None


def rate(workload: Workload, seconds: float, ceiling: Ceiling, *, cold: bool) -> Rate:
    """The rate of a call that took `seconds`, against `ceiling` of the same device and dtype.

    The copy bandwidth bounds a call only where its bytes must come from memory: with `cold` caches, or
    where its inputs and output are too large for any.
    """
    flops, least_bytes = workload.flops / seconds, workload.least_bytes
    return Rate(
        flops=flops,
        compute=flops / ceiling.matmul_flops,
        bandwidth=least_bytes / seconds / ceiling.copy_bytes,
        device=ceiling.device,
        memory_bound_believed=cold or least_bytes > _BEYOND_CACHES,
    )
