"""How fast is each contender, also compared with the baseline? Races whose samples go to pytest-benchmark."""

from attnlab.pytest_plugin import Interleaved
from attnlab.workload.workload import Workload


def test_speed(interleaved: Interleaved, contender: str, workload: Workload) -> None:
    """Time a call. Fails if the contender is wrong, crashes or hangs; being slow is no failure."""
    interleaved(contender, workload)
