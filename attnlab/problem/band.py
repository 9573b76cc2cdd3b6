"""Causal masks and windows as one band along the diagonal, for kernels that take them so."""

from __future__ import annotations

#: a window without limits
WHOLE = (-1, -1)


def band(
    n_q: int,
    n_k: int,
    causal: bool = False,
    causal_bottom_right: bool = False,
    window: tuple[int, int] | None = None,
    window_bottom_right: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """(lowest, highest): query i sees key j where lowest ≤ j − i ≤ highest; the keywords are those of backends.

    A side without a limit reaches beyond the last query, -n_q, or the last key, n_k.
    """
    lowest, highest, shift = -n_q, n_k, n_k - n_q
    for (left, right), own in ((window or WHOLE, 0), (window_bottom_right or WHOLE, shift)):
        lowest = lowest if left < 0 else max(lowest, own - left)
        highest = highest if right < 0 else min(highest, own + right)
    if causal:
        highest = min(highest, 0)
    if causal_bottom_right:
        highest = min(highest, shift)
    return lowest, highest
