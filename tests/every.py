"""The backends that tests of all backends go through."""

from __future__ import annotations

import os

from attnlab.contract.discovery import backends, on_request

#: set, those too that compile for seconds at every shape, which makes these tests take hours
COMPILED_TOO = "ATTNLAB_TEST_COMPILED"


def every() -> list[str]:
    """All that come with attnlab and set up fast; the others have tests of their own."""
    return [name for name in backends() if COMPILED_TOO in os.environ or on_request(name) is None]
