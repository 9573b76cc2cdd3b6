"""From files to records: the exam, one short visit, successive halving, and the last few measured again.

    for record in attnlab.judge(paths, reference="torch_sdpa", workload=Workload(queries=512, keys=512)):
        ...

Where one candidate is judged after the other, as in a training loop, a `Judge` keeps the reference ready.
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

#: candidates whose sandboxes start side by side, those that wait for the next call, and those that race in one visit
_SIDE_BY_SIDE, _WAITING, _IN_A_VISIT = 6, 2, 4
#: rounds of the short visit and of all others; the last few
_SHORT, _ROUNDS, FINALISTS = 3, 4, 3
#: a candidate whose speedup is below this leaves after its first visit; its interval is wide then
_SLOW = 0.7
#: a candidate may take twice the time for loading in all, and so many times what the reference takes beside it
_PATIENCE = 10.0


class Judge:
    """Judges candidates against one reference on one workload; use as a context manager.

    reference : a backend that comes with attnlab, or a file in one of the forms; one in KernelBench's form has its own
    shape, and `workload` is left out. among : candidates that the best is chosen from, where that is more than are
    judged at once. forbid : functions that a candidate may not call, as
    ``torch.nn.functional.scaled_dot_product_attention``. trust : without a sandbox. load_seconds : for
    loading, and for one answer: what compiles does so in its first calls.
    visits : in which the last few are measured again; more make intervals narrower.

    Raises ValueError for a workload that is not judged and a reference that is none; Unavailable where no sandbox can
    be had, and where the reference fails.
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
        #: what is asked of all, for a person
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
        """A record of each file as soon as it is known; files of the same text are judged once."""
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
            self._keep(_WAITING)  # while the caller does something else
        finally:
            for seat in racing:
                seat.sandbox.close()

    def _all(self, candidates: Sequence[Candidate], racing: list[Seat]) -> Iterator[Seat]:
        """Each seat when its record is complete; those that race are in `racing`.

        Where there are no more candidates than finalists, nothing selects among them: their first visits are those that
        count. One that is clearly slower leaves earlier, which cannot win it anything.
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
        """Load it, ask the questions, and see what it calls. Raises Failed."""
        # one that always answers late would hold up all others
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
        """One visit of these and the reference."""
        from threadpoolctl import threadpool_limits

        for box in self._waiting:  # nothing is imported while a clock runs
            with suppress(Failed):
                box.ready()
        before, everyone = self.reference.sandbox.spent, [self.reference, *seats]
        with threadpool_limits(1):  # no idle thread of ours may spin while a candidate is on the clock
            if not self._visits.visit(everyone, self._number, rounds):
                self._disturbed.add(self._number)
        for seat in seats:
            seat.sandbox.most_seconds += _PATIENCE * (self.reference.sandbox.spent - before)
        self._number += 1
        self._require()

    def _require(self) -> None:
        """Raises ValueError where the reference has ended."""
        found = self.reference.record
        if found.status != "judged":
            self.__exit__()
            raise ValueError(f"the reference {found.name} cannot be judged against: {found.reason}")

    def _ratio(self, seat: Seat) -> float:
        """Its time over the reference's, by all visits."""
        found = seat.against(self.reference, range(self._number), 1, self._scatter) if seat.racing else None
        return found.ratio if found else math.inf

    def seat(self, candidate: Candidate) -> Seat:
        """In a sandbox that waited for it, or in a new one."""
        fit = [one for one in self._waiting if one.library == candidate.library and one.alive]
        box = fit[0] if fit else self._box(candidate.library)
        self._waiting = [one for one in self._waiting if one is not box and one.alive]
        return Seat(candidate, box, self._record(candidate.name, digest=candidate.digest))

    def _keep(self, count: int) -> None:
        """Let so many sandboxes import the reference's library, for the next candidates."""
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
    """A record of each candidate as soon as it is known. how : as of `Judge`, whose exceptions it raises."""
    with Judge(reference, workload, **how) as one:
        yield from one.judge(paths)


def forbidden(ran: Sequence[str], names: Sequence[str]) -> str:
    """The first operator among those that ran which belongs to a forbidden function, or nothing.

    PyTorch's operators have the name of the function, or begin with it but for its last word.
    """
    for name in names:
        last = name.rpartition(".")[2]
        stem = last.rpartition("_")[0] if last.count("_") > 1 else last
        for one in ran:
            if one.rpartition("::")[2].lstrip("_").startswith(stem):
                return f"{name} ({one})"
    return ""
