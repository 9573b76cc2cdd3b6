"""Command lines of ``attnlab``, run in this process."""

from __future__ import annotations

import pytest

from attnlab.__main__ import main


def status(*arguments: str) -> int:
    """The exit status of ``attnlab ARGUMENTS``."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)
