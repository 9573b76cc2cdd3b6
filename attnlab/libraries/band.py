"""Causal masks and windows as one band of the score matrix, for kernels that take a window and one diagonal only."""

from __future__ import annotations

from typing import NamedTuple

from attnlab.contract.keywords import told
from attnlab.contract.workload import Workload

#: the keywords that `Band.of` reads
KEYWORDS = ("causal", "causal_bottom_right", "window", "window_bottom_right")


class Band(NamedTuple):
    """Query i sees key j where lowest ≤ j − i ≤ highest."""

    lowest: int
    highest: int

    @classmethod
    def of(
        cls,
        n_q: int,
        n_k: int,
        causal: bool = False,
        causal_bottom_right: bool = False,
        window: tuple[int, int] | None = None,
        window_bottom_right: tuple[int, int] | None = None,
    ) -> Band:
        """What these keywords of `attend` say together; without any, a band that holds the whole matrix."""
        lowest, highest, shift = 1 - n_q, n_k - 1, n_k - n_q
        for sides, own in ((window, 0), (window_bottom_right, shift)):
            left, right = sides or (-1, -1)
            lowest = lowest if left < 0 else max(lowest, own - left)
            highest = highest if right < 0 else min(highest, own + right)
        if causal:
            highest = min(highest, 0)
        if causal_bottom_right:
            highest = min(highest, shift)
        return cls(lowest, highest)

    @classmethod
    def asked(cls, workload: Workload) -> Band | None:
        """The band that `workload` asks for, or None where its mask is no band."""
        flags = told(workload, KEYWORDS)
        return None if flags is None else cls.of(workload.queries, workload.keys, **flags)

    def bottom_right(self, n_q: int, n_k: int) -> Sides | None:
        """The same band told along the bottom-right diagonal of the first keys, or None where it cannot be.

        Keys that no query sees are left out first, which moves that diagonal: with as many keys as queries left, it is
        the top-left one.
        """
        keys = min(n_k, n_q + self.highest)
        if keys < 1:
            return None
        shift = keys - n_q
        seen_from_first = self.lowest <= 1 - n_q
        if not seen_from_first and shift < self.lowest:
            return None  # the last query sees no key
        left = -1 if seen_from_first else shift - self.lowest
        return Sides(keys, left, -1 if self.highest >= keys - 1 else self.highest - shift)


class Sides(NamedTuple):
    """Query i of n_q sees key j of the first `keys` where −left ≤ j − (i + keys − n_q) ≤ right; −1 for no limit."""

    keys: int
    left: int
    right: int
