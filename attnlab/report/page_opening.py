"""Open a page in the browser of whoever sits here, where there is one."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path


def open_page(file: Path) -> str | None:
    """Open `file` in a browser; None, or why that was not done, in a few words."""
    if sys.platform.startswith("linux") and not any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    ):
        return "there is no display here"
    try:
        opened = webbrowser.open(file.resolve().as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    return None if opened else "no browser could be started here"
