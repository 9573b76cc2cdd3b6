"""What `benchmarks/robustness.py` is made of; the faults are those of the tests, which are no package."""

import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "robustness"))

#: what a part measured, as it is stored
Figures = dict[str, Any]


def say(text: str) -> None:
    """Progress, for whoever watches."""
    print(text, file=sys.stderr, flush=True)
