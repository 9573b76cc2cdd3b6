"""From files to records: the exam, one short visit, successive halving, and the last few measured again.

    for record in attnlab.judge(paths, reference="torch_sdpa", workload=Workload(queries=512, keys=512)):
        ...

Where one candidate is judged after the other, as in a training loop, a `Judge` keeps the reference ready.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from attnlab.judge.candidates import Candidate, known_candidate, read_candidate
from attnlab.judge.exam import Exam
from attnlab.judge.inside import Limits
from attnlab.judge.sandbox import Sandbox, command
from attnlab.judge.score import Record, Status, escaped, held_against, scored
from attnlab.judge.visits import Seat, Visits
from attnlab.workload.workload import Workload

#: candidates whose sandboxes start side by side, and those that race in one visit
_SIDE_BY_SIDE, _IN_A_VISIT = 6, 4
#: of the short visit and of all others: rounds; the last few, and the visits in which they are measured again
_SHORT, _ROUNDS, FINALISTS, _VISITS = 3, 6, 3, 5
#: a candidate whose speedup is below this, by its interval, leaves after the short visit
_SLOW = 0.8
#: seconds to load a candidate, compiling included
LOAD_SECONDS = 60.0


class Judge:
    """Judges candidates against one reference on one workload; use as a context manager.

    reference : a backend that comes with attnlab, or a file in one of the forms. among : candidates that the best is
    chosen from, where that is more than are judged at once. forbid : functions that a candidate may not call, as
    ``torch.nn.functional.scaled_dot_product_attention``. trust : without a sandbox. load_seconds : for loading.

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
        load_seconds: float = LOAD_SECONDS,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.workload, self._among, self._forbid = judged(workload or Workload()), among, tuple(forbid)
        self._trust, self._limits, self._load_seconds, self._tell = trust, limits, load_seconds, on_event
        is_file = reference.endswith(".py") or "/" in reference
        self._candidate = read_candidate(reference) if is_file else known_candidate(reference)
        command(trust)
        self._visits, self._number = Visits(self.workload), 0
        self._exam = Exam(self._visits)

    def __enter__(self) -> Judge:
        self._reference = self._seat(self._candidate)
        self._reference.attempt(self._visits.measure_empty, self._reference)
        self._reference.attempt(self._examined, self._reference)
        self._required()  # which closes it by then
        return self

    def __exit__(self, *_: object) -> None:
        self._reference.sandbox.close()

    def judge(self, paths: Iterable[Path | str]) -> Iterator[Record]:
        """A record of each file as soon as it is known; files of the same text are judged once."""
        entered, racing = dict[str, list[str]](), list[tuple[Seat, Record]]()
        try:
            candidates = list[Candidate]()
            for path in dict.fromkeys(map(str, paths)):
                try:
                    one = read_candidate(path)
                except ValueError as refused:
                    yield self._record(path, status="refused", reason=str(refused))
                    continue
                if one.digest not in entered:
                    candidates.append(one)
                entered.setdefault(one.digest, []).append(path)
            for record in self._all(candidates, racing):
                for name in entered[record.digest]:
                    yield msgspec.structs.replace(record, name=name)
        finally:
            for seat, _ in racing:
                seat.sandbox.close()

    # -- stages

    def _all(self, candidates: Sequence[Candidate], racing: list[tuple[Seat, Record]]) -> Iterator[Record]:
        among = max(len(candidates), self._among or 1)
        waiting = iter(candidates)
        while batch := list(islice(waiting, _SIDE_BY_SIDE)):
            seats = [(self._seat(one), self._record(one.name, digest=one.digest)) for one in batch]
            racing += seats
            for seat, record in seats:
                self._tell(f"examining {record.name}")
                seat.attempt(self._passes, seat, record)
            for seat, record in seats:
                if seat.ended is None:
                    self._visit([seat], _SHORT)
                found = seat.ended or held_against(self._reference, seat, range(self._number), among)
                if isinstance(found, tuple) or found is None or 1 / max(found.low, 1e-9) < _SLOW:
                    racing.remove((seat, record))
                    yield self._closed(seat, record, range(self._number), among)
        while len(racing) > FINALISTS:
            for start in range(0, len(racing), _IN_A_VISIT):
                self._visit([seat for seat, _ in racing[start : start + _IN_A_VISIT]], _ROUNDS)
            racing.sort(key=lambda one: self._ratio(one[0]))
            leaving = racing[max(FINALISTS, len(racing) // 2) :]
            for seat, record in leaving:
                racing.remove((seat, record))
                yield self._closed(seat, record, range(self._number), among)
        first, finalists = self._number, len(racing)
        for _ in range(_VISITS if racing else 0):
            self._visit([seat for seat, _ in racing], _ROUNDS)
        for seat, record in list(racing):
            racing.remove((seat, record))
            record.measured_again = True
            yield self._closed(seat, record, range(first, self._number), max(finalists, self._among or 1))

    def _passes(self, seat: Seat, record: Record) -> None:
        self._examined(seat, record)
        record.correct = True

    def _examined(self, seat: Seat, record: Record | None = None) -> None:
        """Load it and ask the questions. Raises Caught and Failed."""
        self._visits.open(seat, self._load_seconds)
        setup, questions = seat.setup, self._exam.take(seat)
        if record is not None:
            record.questions, record.setup_seconds = questions, setup
            if self._forbid and (called := forbidden(self._visits.profile(seat), self._forbid)):
                record.violations.append(f"it called {called}")
        seat.sandbox.end_visit()

    def _visit(self, seats: Sequence[Seat], rounds: int) -> None:
        self._tell(f"visit {self._number + 1}: {', '.join(one.candidate.name for one in seats)}")
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):  # no idle thread of ours may spin while a candidate is on the clock
            self._visits.visit([self._reference, *seats], self._number, rounds, self._load_seconds)
        self._number += 1
        self._required()

    def _required(self) -> None:
        if self._reference.ended is not None:
            raise ValueError(
                f"the reference {self._candidate.name} cannot be judged against: {self._reference.ended[1]}"
            )

    def _ratio(self, seat: Seat) -> float:
        """Its time over the reference's, by the visits so far; infinite where it has ended."""
        if seat.ended is not None:
            return float("inf")
        theirs = dict(self._reference.turns)
        return statistics.median(seconds / theirs[at] for at, seconds in seat.turns if at in theirs)

    # -- seats and records

    def _seat(self, candidate: Candidate) -> Seat:
        needed = 4 * self.workload.score_bytes + 8 * (self.workload.input_bytes + self.workload.output_bytes)
        limits = self._limits or Limits(memory=max(Limits().memory, needed))
        box = Sandbox(candidate.library, self._visits.shared_bytes, limits=limits, trust=self._trust)
        return Seat(candidate, box)

    def _closed(self, seat: Seat, record: Record, visits: Sequence[int], among: int) -> Record:
        """The record of a candidate that leaves."""
        seat.sandbox.close()
        record.output = escaped(seat.sandbox.output)
        if seat.ended is not None:
            record.status = "wrong" if seat.ended[0] == "wrong" else "failed"
            record.reason = escaped(seat.ended[1].encode("utf-8", "backslashreplace"))
            if record.correct and record.status == "wrong":
                record.status, record.correct = "caught", False
                record.violations.append(record.reason)
        else:
            record = scored(record, self._reference, seat, visits, among)
        if record.violations:
            record.status, record.reason, record.reward = "caught", record.violations[0], 0.0
        return record

    def _record(self, name: str, status: Status = "judged", **known: str) -> Record:
        return Record(
            name=name,
            empty_seconds=self._visits.empty_seconds,
            reference=self._candidate.name,
            workload=self.workload.to_dict(),
            sandbox=not self._trust,
            status=status,
            digest=known.get("digest", ""),
            reason=known.get("reason", ""),
        )


def judge(
    paths: Iterable[Path | str],
    reference: str = "torch_sdpa",
    workload: Workload | None = None,
    **how: object,
) -> Iterator[Record]:
    """A record of each candidate as soon as it is known. how : as of `Judge`, whose exceptions it raises."""
    with Judge(reference, workload, **how) as one:  # type: ignore[arg-type]
        yield from one.judge(paths)


def judged(workload: Workload) -> Workload:
    """The workload itself. Raises ValueError for one that is not judged."""
    plain = Workload(queries=workload.queries, keys=workload.keys)
    for name in ("d_model", "device", "bias", "sinks", "storage", "direction", "distribution", "layout"):
        if getattr(workload, name) != getattr(plain, name):
            raise ValueError(
                f"the judge takes {name} {getattr(plain, name)} alone, got {getattr(workload, name)}; "
                "attnlab compare takes the others"
            )
    if workload.mask == "given":
        raise ValueError("the judge takes a mask that has a name, got an array; name one")
    return workload


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
