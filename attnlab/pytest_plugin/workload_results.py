"""What is said of one workload's race, to pytest-benchmark and at the end of a session."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnlab.contract.result import Result
from attnlab.statistics.pairing import Verdict
from attnlab.statistics.verdicts import disturbed_in, verdicts_against

#: a rate further above the best that this machine reached is a failed measurement
BELIEVED = 1.05


@dataclass(frozen=True)
class WorkloadResults:
    """All contenders' results on one workload, by name; `baseline` is what they are compared with."""

    results: Mapping[str, Result]
    baseline: str

    @cached_property
    def verdicts(self) -> Mapping[str, Verdict]:
        """The verdicts against the baseline, by name; none where one of the two has no speed."""
        return verdicts_against(self.results.values(), self.baseline)

    def extra_info(self, name: str, share_of_ceiling: float | None) -> dict[str, Any]:
        """What stands beside the samples in every report, as plain JSON; None for what is not known."""
        result, verdict = self.results[name], self.verdicts.get(name)
        figures: dict[str, float | None] = {
            "relative_error": None if result.accuracy is None else result.accuracy.relative_error,
            "ratio": verdict.ratio if verdict else 1.0 if name == self.baseline else None,
            "ratio_low": verdict.low if verdict else None,
            "ratio_high": verdict.high if verdict else None,
            "share_of_ceiling": share_of_ceiling,
        }
        return {
            "contender": name,
            "workload": result.workload.label,
            "outcome": str(result.outcome),
            "kernel": result.kernel,
            "peak_bytes": result.peak_bytes,
            "baseline": self.baseline,
            "verdict": str(verdict.kind) if verdict else None,
            "disturbed_rounds": len(disturbed_in(self.results.values())),
            "doubt": _doubt(share_of_ceiling),
            **{key: one if one is not None and math.isfinite(one) else None for key, one in figures.items()},
        }

    def line(self, name: str, share_of_ceiling: float | None) -> str:
        """The median, the ratio with its interval, and the verdict of a contender that was measured."""
        latency, verdict, doubt = (
            self.results[name].latency,
            self.verdicts.get(name),
            _doubt(share_of_ceiling),
        )
        assert latency is not None
        if verdict is None:
            said = "the baseline" if name == self.baseline else "not compared"
        else:
            interval = f"{verdict.ratio:7.3g} [{verdict.low:.3g}, {verdict.high:.3g}]"
            said = f"{interval}  {verdict.kind}, {verdict.rounds} rounds"
        line = f"{latency.median * 1e3:9.4g} ms  {said}"
        return f"{line}  NOT BELIEVED: {doubt}" if doubt else line


def _doubt(share: float | None) -> str | None:
    """Why a rate is not to be believed: it, or the ceiling, was measured while the machine was busy elsewhere."""
    if share is None or share <= BELIEVED:
        return None
    return f"{share:.0%} of the best matrix-product rate seen here"
