"""How does the rounding error grow with n, d_k and the logits?"""

from attnlab.pytest_plugin.plugin import Confirmed


def test_error_growth(confirmed: Confirmed, backend: str) -> None:
    """The error stays within its budget and below its worst case, in every format."""
    confirmed("error_growth", backend)
