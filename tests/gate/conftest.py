"""Lets the tests import the zoo, which stands beside them and which benchmarks/faults.py uses too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
