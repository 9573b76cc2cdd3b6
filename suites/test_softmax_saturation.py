"""Where does the softmax freeze? Entropy, largest weight and participation of a row against d_k."""

from attnlab.pytest_plugin.plugin import Confirmed


def test_softmax_saturation(confirmed: Confirmed, backend: str) -> None:
    """All three follow the exact prediction for random inputs, scaled and unscaled, within five standard errors."""
    confirmed("saturation", backend)
