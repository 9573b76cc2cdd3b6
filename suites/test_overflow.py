"""At which logit does each number format overflow or underflow?"""

from attnlab.pytest_plugin.plugin import Confirmed


def test_overflow(confirmed: Confirmed, backend: str) -> None:
    """Every backend stays finite where the shifted softmax must, and flushes where the format ends."""
    confirmed("overflow", backend)
