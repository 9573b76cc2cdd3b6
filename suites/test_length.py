"""What does a longer sequence do to the softmax, and what do its remedies?"""

from attnlab.pytest_plugin.plugin import Confirmed


def test_length(confirmed: Confirmed, backend: str) -> None:
    """H/ln n, scalable softmax and soft cap follow theory along the sequence."""
    confirmed("length", backend)
