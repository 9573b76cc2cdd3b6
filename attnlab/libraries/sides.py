"""A band of the score matrix told along the bottom-right diagonal, as kernels want it that have no other."""

from __future__ import annotations

from typing import Any, NamedTuple

from attnlab.backends.keywords import told
from attnlab.problem.mask_parts import band
from attnlab.problem.workload import Workload

#: the keywords of `attend` that say a band
KEYWORDS = ("causal", "causal_bottom_right", "window", "window_bottom_right")


class Sides(NamedTuple):
    """Query i of n_q sees key j of the first `keys` where −left ≤ j − (i + keys − n_q) ≤ right; −1 for no limit."""

    keys: int
    left: int
    right: int

    @classmethod
    def of(cls, n_q: int, n_k: int, *flags: Any, **named: Any) -> Sides | None:
        """What these `KEYWORDS` say together of n_q queries and n_k keys; None where this diagonal cannot.

        Keys that no query sees are left out first, which moves the diagonal: with as many keys as queries left, it is
        the top-left one. It cannot where no query sees a key, or where the last one sees none.
        """
        lowest, highest = band(n_q, n_k, *flags, **named)
        keys = min(n_k, n_q + highest)
        shift = keys - n_q
        from_the_first = lowest <= 1 - n_q
        if keys < 1 or not (from_the_first or lowest <= shift):
            return None
        return cls(
            keys, -1 if from_the_first else shift - lowest, -1 if highest >= keys - 1 else highest - shift
        )

    @classmethod
    def asked(cls, workload: Workload) -> Sides | None:
        """What the mask of `workload` is along this diagonal; None also where it is no band."""
        flags = told(workload, KEYWORDS)
        return None if flags is None else cls.of(workload.queries, workload.keys, **flags)
