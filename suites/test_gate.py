"""Is each contender right in every way that `attnlab check` knows? Outputs, and gradients where it has them."""

from attnlab.pytest_plugin import Examined


def test_gate(checked: Examined, contender: str) -> None:
    """No question is answered wrong; what was too slow for the whole gate is few."""
    for dtype, found in checked(contender).formats.items():
        assert found.asked > found.left_out, (
            f"{contender}: {found.left_out} of its questions in {dtype} were left out"
        )
