"""What a system lacks is done otherwise or left out."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts private memory on Linux alone")
def test_a_confined_process_is_refused_what_the_machine_does_not_have() -> None:
    """At once, before a page is touched; and a file that grows without end ends its writer."""
    taking = "from attnlab import system; import numpy as np; assert system.confine(); {}"
    tried = subprocess.run(
        [sys.executable, "-c", taking.format("np.empty(2**46)")], capture_output=True, text=True
    )
    assert "MemoryError" in tried.stderr
    many = "held = [np.empty(2**28, np.uint8) for _ in range(2**12)]"
    tried = subprocess.run([sys.executable, "-c", taking.format(many)], capture_output=True, text=True)
    assert "MemoryError" in tried.stderr
    lifted = taking.format("assert system.confine('cuda')")
    assert subprocess.run([sys.executable, "-c", lifted]).returncode == 0
