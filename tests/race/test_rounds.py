"""The order of turns is fair."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from attnlab.race.race import in_turn


@given(st.integers(1, 9), st.integers(0, 99), st.integers(1, 4))
def test_everyone_takes_every_place_equally_often(entries: int, seed: int, blocks: int) -> None:
    """In each block of as many rounds as there are entries (of four rounds, where there are two)."""
    length = (4 if entries == 2 else entries) * blocks
    rounds = [in_turn(range(entries), count, seed) for count in range(length)]
    assert all(sorted(one) == list(range(entries)) for one in rounds)
    for place in range(entries):
        counts = Counter(one[place] for one in rounds)
        assert set(counts.values()) == {length // entries}
