"""How fast is each contender, and against the baseline? Races in turns, replayed into pytest-benchmark."""

from attnlab.pytest_plugin import Interleaved
from attnlab.workload.workload import Workload


def test_speed(interleaved: Interleaved, contender: str, workload: Workload) -> None:
    """Time a call. Fails where the contender is wrong, crashes or hangs; a slow one is slow, not a failure."""
    interleaved(contender, workload)
