"""Is each contender right on every question of `attnlab check`? Outputs, and ln Z and gradients if it has them."""

from attnlab.pytest_plugin import Examined


def test_gate(checked: Examined, contender: str) -> None:
    """No answer is wrong, and more questions were asked than were left out for lack of time."""
    for dtype, found in checked(contender).formats.items():
        assert not found.left_out or found.asked > found.left_out, (
            f"{contender}: {found.left_out} of its questions in {dtype} were left out"
        )
