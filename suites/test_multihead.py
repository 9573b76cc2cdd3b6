"""What do initialisation, independence of heads and the head count come to?"""

from attnlab.pytest_plugin.plugin import Confirmed


def test_multihead(confirmed: Confirmed, backend: str) -> None:
    """Heads do not touch each other, and W_O and the cost are what arithmetic says."""
    confirmed("multihead", backend)
