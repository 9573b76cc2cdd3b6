"""Is each contender right in every way that `attnlab check` knows? Outputs, and gradients where it has them."""

from attnlab.pytest_plugin import Examined


def test_gate(checked: Examined, contender: str) -> None:
    """No question is answered wrong; what was too slow for the whole gate is few."""
    found = checked(contender)
    assert found.asked > found.left_out
