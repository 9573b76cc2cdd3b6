"""A pyperf benchmark of one side of the pair, in the form that pyperf's documentation shows."""

from __future__ import annotations

import os

import pyperf

from peer_tools.child import asked
from peer_tools.pairs import bound

if __name__ == "__main__":
    runner = pyperf.Runner()
    runner.bench_func("call", bound(getattr(asked(), os.environ["PEER_SIDE"]), asked()))
