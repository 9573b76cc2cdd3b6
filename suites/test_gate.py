"""Is each contender right on every question of `attnlab check`? Outputs, and ln Z and gradients if it has them."""

from attnlab.pytest_plugin import Examined


def test_gate(checked: Examined, contender: str) -> None:
    """No answer is wrong, and more questions were asked than were left out for lack of time."""
    found = checked(contender)
    assert found.asked > found.left_out
