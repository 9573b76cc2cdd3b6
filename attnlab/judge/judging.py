"""From files to records: an exam, one short visit, successive halving, and new visits for the finalists.

    for record in attnlab.judge(paths, reference="torch_sdpa", workload=Workload(queries=512, keys=512)):
        ...

If candidates come one at a time, as in a training loop, a `Judge` keeps the reference ready.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from attnlab.backends.discovery import require
from attnlab.judge.candidates import Candidate, read_candidate
from attnlab.judge.inside import Limits
from attnlab.judge.problems import NORMAL, pose
from attnlab.judge.sandbox import Sandbox, command
from attnlab.judge.score import CAUGHT, KEPT, Record, Scatter, Seat, escaped
from attnlab.judge.visits import Visits
from attnlab.processes import Failed
from attnlab.workload.workload import Workload

#: sandboxes that start at the same time; sandboxes kept for the next call of `judge`; candidates in one visit
_SIDE_BY_SIDE, _WAITING, _IN_A_VISIT = 6, 2, 4
#: rounds of the short visit; rounds of the other visits; the most finalists
_SHORT, _ROUNDS, FINALISTS = 3, 4, 3
#: a candidate with a lower speedup than this leaves after its first visit, with a wide interval
_SLOW = 0.7
#: a candidate may use twice `load_seconds` in all, plus this many times the reference's time for the same work
_PATIENCE = 10.0


class Judge:
    """Judges candidates against one reference on one workload; use as a context manager.

    reference : a backend that comes with attnlab, or a file in one of the forms. A file in KernelBench's form sets the
    shapes itself: leave out `workload`, or give ``Workload(device="cuda")``.
    among : the number of candidates from which you choose the best, if that is more than one call judges.
    forbid : functions that a candidate may not call, such as ``torch.nn.functional.scaled_dot_product_attention``.
    trust : judge without a sandbox. load_seconds : for loading, and for one answer, because first calls may compile.
    visits : the number of visits in which finalists are measured again; more visits make intervals narrower.

    Raises ValueError for a workload that is not judged, and for a reference that is invalid or fails. Raises
    Unavailable if there is no sandbox or no such device, and if the reference's module fails in float64.
    """

    def __init__(
        self,
        reference: str = "torch_sdpa",
        workload: Workload | None = None,
        *,
        among: int | None = None,
        forbid: Sequence[str] = (),
        trust: bool = False,
        limits: Limits | None = None,
        load_seconds: float = 60.0,
        visits: int = 6,
    ) -> None:
        self._workload, self._among, self._forbid = workload, among or 1, tuple(forbid)
        self._trust, self._limits, self._load_seconds = trust, limits, load_seconds
        reference = str(reference)  # it may be a path
        file = reference if reference.endswith(".py") or "/" in reference else require(reference)
        self._candidate = replace(read_candidate(file), name=reference)
        command(trust)
        self._waiting, self._scatter = list[Sandbox](), Scatter(maxlen=KEPT)
        self._again, self._number, self._disturbed, self._exam_seconds = visits, 0, set[int](), math.inf

    def __enter__(self) -> Judge:
        asked = self._candidate, self._workload, self._trust, self._load_seconds
        self._problem, self._candidate = pose(*asked)
        #: the problem in words, to be shown
        self.asked = self._problem.label
        self._visits = Visits(self._problem, self._load_seconds)
        self.reference = self.seat(self._candidate)
        self.reference.attempt(self.examine, self.reference)
        self._require()
        self._exam_seconds = self.reference.sandbox.spent
        return self

    def __exit__(self, *_: object) -> None:
        for box in (self.reference.sandbox, *self._waiting, *self._problem.boxes):
            box.close()

    def judge(self, paths: Iterable[Path | str]) -> Iterator[Record]:
        """Yield the record of each file as soon as it is complete. Files with the same text are judged once."""
        entered, racing = dict[str, tuple[Candidate, list[str]]](), list[Seat]()
        for path in dict.fromkeys(map(str, [paths] if isinstance(paths, str | Path) else paths)):
            try:
                one = read_candidate(path)
                self._problem.require(one)
            except ValueError as refused:
                yield self._record(path, status="refused", reason=escaped(str(refused)))
                continue
            entered.setdefault(one.digest, (one, []))[1].append(path)
        try:
            for seat in self._all([one for one, _ in entered.values()], racing):
                seat.sandbox.close()
                seat.record.output = escaped(seat.sandbox.output.decode("utf-8", "backslashreplace"), "\n")
                for name in entered[seat.candidate.digest][1]:
                    yield msgspec.structs.replace(seat.record, name=escaped(name))
            self._keep(_WAITING)  # they start while the caller does something else
        finally:
            for seat in racing:
                seat.sandbox.close()

    def _all(self, candidates: Sequence[Candidate], racing: list[Seat]) -> Iterator[Seat]:
        """Yield each seat when its record is complete. `racing` holds the seats that are still in the race.

        With at most `FINALISTS` candidates none has to be selected, so there is no short visit and every visit counts.
        A candidate that is clearly slower leaves early, which cannot raise its reward.
        """
        among, waiting = max(len(candidates), self._among), list(candidates)
        few = len(waiting) <= FINALISTS

        def leave(seats: Sequence[Seat], first: int, among: int) -> Iterator[Seat]:
            for seat in list(seats):
                racing.remove(seat)
                if seat.racing:
                    visits = range(first, self._number)
                    seat.score(self.reference, visits, among, self._scatter, self._disturbed)
                yield seat

        def slow(seats: Sequence[Seat]) -> list[Seat]:
            return [one for one in seats if not one.racing or self._ratio(one) > 1 / _SLOW]

        while waiting:
            batch = [self.seat(one) for one in waiting[:_SIDE_BY_SIDE]]
            del waiting[:_SIDE_BY_SIDE]
            racing += batch
            self._keep(min(_SIDE_BY_SIDE, len(waiting)))
            for seat in batch:
                seat.attempt(self.examine, seat)
                if not seat.racing:
                    yield from leave([seat], 0, among)
            for seat in [one for one in batch if one.racing and not few]:
                self.visit([seat], _SHORT)
                yield from leave(slow([seat]), 0, among)
        while len(racing) > FINALISTS:
            for start in range(0, len(racing), _IN_A_VISIT):
                self.visit(racing[start : start + _IN_A_VISIT])
            racing.sort(key=self._ratio)
            yield from leave(racing[max(FINALISTS, len(racing) // 2) :], 0, among)
        first, finalists = self._number, len(racing)
        while racing and self._number < first + self._again:
            self.visit(racing)
            if self._number == first + 1:
                yield from leave(slow(racing), first, max(finalists, self._among))
        for seat in racing:
            seat.record.measured_again = True
        yield from leave(racing, first, max(finalists, self._among))

    def examine(self, seat: Seat) -> None:
        """Load the candidate, ask the questions, and look which operators it calls. Raises Failed."""
        # a candidate that always answers late would delay all others
        seat.sandbox.most_seconds = 2 * self._load_seconds + _PATIENCE * self._exam_seconds
        self._visits.open(seat)
        seat.record.questions = self._visits.examine(seat, seat is self.reference)
        seat.record.correct = True
        if self._problem.boxes if seat is self.reference else self._forbid:
            self._visits.turn(seat, [NORMAL], op="profile")
            ran = self._visits.told.ran
            if seat is not self.reference and (called := forbidden(ran, self._forbid)):
                raise Failed(CAUGHT, f"it called {called}")
            if seat is self.reference and not any("bmm" in one or "attention" in one for one in ran):
                raise Failed(CAUGHT, "expected attention, got a Model that multiplies no batch of matrices")
        seat.sandbox.end_visit()

    def visit(self, seats: Sequence[Seat], rounds: int = _ROUNDS) -> None:
        """One visit of the reference and these candidates."""
        from threadpoolctl import threadpool_limits

        for box in self._waiting:  # no sandbox may import while a clock runs
            with suppress(Failed):
                box.ready()
        before, everyone = self.reference.sandbox.spent, [self.reference, *seats]
        with threadpool_limits(1):  # idle threads of the judge must not spin while a candidate is timed
            if not self._visits.visit(everyone, self._number, rounds):
                self._disturbed.add(self._number)
        for seat in seats:
            seat.sandbox.most_seconds += _PATIENCE * (self.reference.sandbox.spent - before)
        self._number += 1
        self._require()

    def _require(self) -> None:
        """Raises ValueError if the reference has failed."""
        found = self.reference.record
        if found.status != "judged":
            self.__exit__()
            raise ValueError(f"the reference {found.name} cannot be judged against: {found.reason}")

    def _ratio(self, seat: Seat) -> float:
        """The candidate's time divided by the reference's, over all visits; inf if there is none."""
        found = seat.against(self.reference, range(self._number), 1, self._scatter) if seat.racing else None
        return found.ratio if found else math.inf

    def seat(self, candidate: Candidate) -> Seat:
        """A seat for the candidate, in a waiting sandbox or in a new one."""
        fit = [one for one in self._waiting if one.library == candidate.library and one.alive]
        box = fit[0] if fit else self._box(candidate.library)
        self._waiting = [one for one in self._waiting if one is not box and one.alive]
        return Seat(candidate, box, self._record(candidate.name, digest=candidate.digest))

    def _keep(self, count: int) -> None:
        """Start sandboxes with the reference's library until `count` wait for the next candidates."""
        while len(self._waiting) < count:
            self._waiting.append(self._box(self._candidate.library))

    def _box(self, library: str) -> Sandbox:
        limits = self._limits or Limits(data=max(Limits().data, self._problem.needed_bytes))
        return Sandbox(library, self._visits.shared_bytes, limits, self._trust, self._visits.device)

    def _record(self, name: str, **known: Any) -> Record:
        told: dict[str, Any] = {"reference": self._candidate.name, "workload": self._problem.told}
        told |= {"at_once": self._visits.at_once, "empty_seconds": self._visits.empty_seconds}
        known = {"status": "judged", "sandbox": not self._trust, **known}
        return Record(name=escaped(name), **told, **known)


def judge(
    paths: Iterable[Path | str], reference: str = "torch_sdpa", workload: Workload | None = None, **how: Any
) -> Iterator[Record]:
    """Yield the record of each candidate as soon as it is complete. how : as for `Judge`; so are the exceptions."""
    with Judge(reference, workload, **how) as one:
        yield from one.judge(paths)


def forbidden(ran: Sequence[str], names: Sequence[str]) -> str:
    """The first forbidden function of which an operator ran, with that operator, or "".

    An operator of PyTorch has the name of its function, or begins with that name without its last word.
    """
    for name in names:
        last = name.rpartition(".")[2]
        stem = last.rpartition("_")[0] if last.count("_") > 1 else last
        for one in ran:
            if one.rpartition("::")[2].lstrip("_").startswith(stem):
                return f"{name} ({one})"
    return ""
