"""Do gradients vanish without 1/√d_k: on average, or in a tail of rows?"""

from attnlab.pytest_plugin.plugin import Confirmed


def test_vanishing_gradient(confirmed: Confirmed, backend: str) -> None:
    """Jacobian norms follow the exact prediction: the average does not vanish, the tail does."""
    confirmed("vanishing_gradient", backend)
