"""A low quantile of the rounds of each process, the median of these by group, and both of samples drawn again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
#: how many samples each process of each group has
Counts = tuple[tuple[int, ...], ...]


class Drawn(NamedTuple):
    """Rows of samples of some processes, all of one length: (processes, rows, samples), as places among all samples."""

    processes: Places
    samples: Places


class Levels:
    """Samples by group, then process, then round; every group has a sample. `level` is the part below the quantile."""

    def __init__(self, groups: Sequence[Sequence[Sequence[float]]], level: float) -> None:
        rows = [[np.asarray(one, float) for one in group if len(one)] for group in groups]
        self._counts: Counts = tuple(tuple(map(len, group)) for group in rows)
        self._samples = np.concatenate([one for group in rows for one in group])
        self._level = level

    def medians(self) -> Floats:
        """The median over processes of the quantile of their rounds, by group: (groups,)."""
        found: Floats = self._by_group(self._levels(_places(self._counts)).T)[0]
        return found

    def resampled(self, times: int, seed: int) -> Floats:
        """The same of processes drawn again with replacement, and of rounds drawn again in each: (times, groups)."""
        rounds, processes = _drawn(self._counts, times, seed)
        return self._by_group(self._levels(rounds)[processes])

    def _levels(self, drawn: Sequence[Drawn]) -> Floats:
        """The quantile of each row of rounds: (processes of all groups, rows of each)."""
        found = np.empty((sum(map(len, self._counts)), drawn[0].samples.shape[1]))
        for one in drawn:
            # as `numpy.quantile` does, in a tenth of its time
            exact = self._level * (one.samples.shape[2] - 1)
            low, high = math.floor(exact), math.ceil(exact)
            ordered = np.partition(self._samples[one.samples], (low, high), axis=2)
            first, second = ordered[:, :, low], ordered[:, :, high]
            found[one.processes] = first + (second - first) * (exact - low)
        return found

    def _by_group(self, values: Floats) -> Floats:
        """The medians of the processes of each group, whose columns stand side by side."""
        sizes = [len(group) for group in self._counts]
        if len(set(sizes)) == 1:
            return np.asarray(np.median(values.reshape(len(values), len(sizes), sizes[0]), axis=2))
        parts = np.split(values, np.cumsum(sizes)[:-1], axis=1)
        return np.stack([np.median(one, axis=1) for one in parts], axis=1)


@lru_cache(maxsize=8)
def _places(counts: Counts) -> list[Drawn]:
    """Every sample once, where it lies among all."""
    flat = [count for group in counts for count in group]
    starts = np.cumsum(flat) - flat
    return _by_count([begin + np.arange(count)[None] for begin, count in zip(starts, flat, strict=True)])


@lru_cache(maxsize=8)
def _drawn(counts: Counts, times: int, seed: int) -> tuple[list[Drawn], tuple[Places, Places]]:
    """The rounds that are drawn of each process, and which process, and which of its rows, each time.

    They depend on the numbers of samples alone, so that contenders of one run share them.
    """
    generator = np.random.default_rng(seed)
    rounds, processes, rows, start, before = [], [], [], 0, 0
    for group in counts:
        for count in group:
            rounds.append(start + generator.integers(count, size=(times, count)))
            start += count
        size = (times, len(group))
        processes.append(before + generator.integers(len(group), size=size))
        rows.append(generator.integers(times, size=size))
        before += len(group)
    return _by_count(rounds), (np.concatenate(processes, axis=1), np.concatenate(rows, axis=1))


def _by_count(rows: Sequence[Places]) -> list[Drawn]:
    """Processes with as many samples side by side."""
    counts = np.array([one.shape[1] for one in rows])
    return [
        Drawn(found := np.flatnonzero(counts == count), np.stack([rows[int(at)] for at in found]))
        for count in np.unique(counts)
    ]
