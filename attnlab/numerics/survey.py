"""What experiments have in common: each backend is asked, one may be asked for more, and a finding is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from attnlab.numerics.contestants import Contestant, Facts, contestants, rows_or_failure, thermometer
from attnlab.numerics.finding import Finding, Row

#: the rows that a backend gives with a seed
Measure = Callable[[Contestant, int], Iterable[Row]]


class Survey:
    """An experiment under way: the rows it has so far, and the facts it runs with."""

    def __init__(
        self,
        backends: Sequence[str],
        *,
        seed: int,
        folders: Sequence[Path | str],
        dtype: str = "float64",
        facts: Facts | None = None,
    ) -> None:
        """`backends` opened in `dtype`; `facts` are told beside those that every experiment tells.

        Raises ValueError for an unknown backend.
        """
        self._backends, self._seed, self._folders, self._dtype = backends, seed, folders, dtype
        self.facts: Facts = {"seed": seed, "dtype": dtype, **(facts or {})}
        self.rows: list[Row] = []
        self._opened = contestants(backends, self.facts, dtype=dtype, folders=folders)

    def ask_each(self, *measures: Measure) -> None:
        """Takes the rows of every measure through every backend, a backend at a time."""
        for one in self._opened:
            for measure in measures:
                self.rows += rows_or_failure(one, measure, self._seed)

    def ask_one(self, measure: Measure, *, dtype: str | None = None) -> Contestant | None:
        """Takes the rows of `measure` through the `thermometer`, which is returned; None where there is none.

        dtype : number format to compute in, that of the others unless given.
        """
        opened = self._opened
        if dtype is not None:
            opened = contestants(self._backends, {}, dtype=dtype, folders=self._folders)
        chosen = thermometer(opened)
        if chosen:
            self.rows += rows_or_failure(chosen, measure, self._seed)
        return chosen

    def finding(
        self, experiment: str, title: str, question: str, conclusion: Callable[[Sequence[Row]], str]
    ) -> Finding:
        """What was found; `conclusion` makes its sentence from the rows."""
        return Finding(experiment, title, question, conclusion(self.rows), tuple(self.rows), self.facts)
