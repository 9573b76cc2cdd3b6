"""Claims: common statements about attention, compared with what the experiments found.

The claims and their tests are tables of ``claims.toml``. A test selects rows of an experiment; the worst row decides
it. The rows that a claim compares with its own number are also compared with the prediction of theory, which is the
right statement. No verdict is stored: each follows from the tests.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from attnlab.lab.experiments import EXPERIMENTS, RAISED, Finding, Row, check_request, pick, run_experiment
from attnlab.text import finite, suggestion

#: the name of an experiment in claims about figures from publications
PUBLISHED = "published"
_LEDGER = Path(__file__).with_name("claims.toml")


class Role(StrEnum):
    """Whose statement a test belongs to."""

    CLAIM = "claim"  #: the claim as stated, within its condition if it has one
    BEYOND = "beyond"  #: the claim as stated, outside its condition
    RIGHT = "right"  #: the right statement
    CONTROL = "control"  #: shows that the experiment can distinguish the claim from the right statement


class ClaimVerdict(StrEnum):
    """The verdict on a claim."""

    CONFIRMED = "confirmed"
    CONDITIONAL = "conditional"
    REFUTED = "refuted"
    NOT_MEASURABLE = "not measurable"


class Test(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, by quantity and conditions, and their required value: `expected`, or if None the prediction of theory."""

    __test__ = False  # pytest would collect a class with this name

    role: Role
    quantity: str
    relation: str = "="
    expected: float | None = None
    where: dict[str, Any] = {}

    def worst(self, rows: Sequence[Row]) -> Row | None:
        """The selected row that fits worst, compared with `expected` if that is given; None if no row is selected."""
        found = pick(rows, self.quantity, **self.where)
        if self.expected is not None:
            found = [
                Row.compare(
                    row.quantity, row.where, self.expected, row.measured,
                    relation=self.relation, standard_error=row.standard_error, slack=row.slack,
                )
                for row in found
            ]  # fmt: skip
        return max(found, key=lambda row: row.excess, default=None)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A table of ``claims.toml``, and the results of its tests.

    says : the claim, in our own words. truth : the right statement. condition : the condition under which the claim
    holds, if it needs one. note : why there are no checks, if there are none. checks : of a judged claim, the role and
    the worst row of each test.
    """

    id: str
    theme: str
    says: str
    truth: str
    reference: str
    condition: str = ""
    experiment: str = ""
    note: str = ""
    tests: tuple[Test, ...] = ()
    checks: tuple[tuple[Role, Row], ...] = ()

    @property
    def verdict(self) -> ClaimVerdict:
        """The verdict that follows from the checks.

        Not measurable: the claim was not tested, or a control or the right statement failed, because an experiment that
        contradicts a right statement decides nothing. Otherwise confirmed: the claim passes every test. Conditional: it
        passes all tests within its condition. Otherwise refuted.
        """
        failed = {role for role, row in self.checks if not row.passed}
        if not any(role is Role.CLAIM for role, _ in self.checks) or failed & {Role.CONTROL, Role.RIGHT}:
            return ClaimVerdict.NOT_MEASURABLE
        if not failed & {Role.CLAIM, Role.BEYOND}:
            return ClaimVerdict.CONFIRMED
        return ClaimVerdict.REFUTED if Role.CLAIM in failed else ClaimVerdict.CONDITIONAL

    @property
    def deciding(self) -> Row | None:
        """The check that decides the verdict: the first failed one, or the claim's first; None if it has neither."""
        said = [row for role, row in self.checks if role in (Role.CLAIM, Role.BEYOND)]
        if self.verdict is ClaimVerdict.NOT_MEASURABLE:
            return next((row for _, row in self.checks if not row.passed), None)
        return next((row for row in said if not row.passed), said[0])

    def judged(self, finding: Finding | None) -> Claim:
        """The claim with its checks; with a note if there is no finding, a test has no rows, or a backend raised."""
        if finding is None:
            return msgspec.structs.replace(self, note=self.note or "its experiment was not run")
        predicted = [
            Test(role=Role.RIGHT, quantity=test.quantity, where=test.where)
            for test in self.tests
            if test.role in (Role.CLAIM, Role.BEYOND) and test.expected is not None
        ]
        found = [(test, test.worst(finding.rows)) for test in (*self.tests, *predicted)]
        raised = pick(finding.rows, RAISED)
        empty = next((test for test, row in found if row is None), None)
        note = "" if empty is None else f"no backend was asked for {empty.quantity}"
        if raised:
            note = f"{raised[0].where['backend']}: {raised[0].where['reason']}"
        if note:
            return msgspec.structs.replace(self, note=f"not measured here: {note}")
        return msgspec.structs.replace(
            self, checks=tuple((test.role, row) for test, row in found if row is not None)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the verdict; NaN and infinity are written as words."""
        plain: dict[str, Any] = finite(msgspec.to_builtins(self))
        checks = [{"role": role, **row} for role, row in plain.pop("checks")]
        return {**plain, "verdict": str(self.verdict), "checks": checks}


@cache
def claims() -> dict[str, Claim]:
    """All claims by id, in the order of the file."""
    tables = tomllib.loads(_LEDGER.read_text(encoding="utf-8"))["claim"]
    return {one.id: one for one in msgspec.convert(tables, tuple[Claim, ...])}


def chosen_claims(ids: Iterable[str] = ()) -> list[Claim]:
    """The claims `ids`, or all if none is named. Raises ValueError for an unknown id, and suggests similar ones."""
    wanted = tuple(dict.fromkeys(ids)) or tuple(claims())
    for id in wanted:
        if id not in claims():
            hint = suggestion(id, claims(), "attnlab numerics --claims --list names them all")
            raise ValueError(f"no claim is called {id!r}; {hint}")
    return [claims()[id] for id in wanted]


def judge(
    ids: Iterable[str] = (),
    findings: list[Finding] | None = None,
    stage: Callable[..., None] = lambda name, *, done, total: None,
    **how: Any,
) -> list[Claim]:
    """The claims `ids`, or all if none is named, judged by the experiments that they need; each experiment runs once.

    findings : each finding is appended to this list at once, so that it survives an interrupt; see `ledger`. stage,
    how : as for `run_chapter`. Raises ValueError for an unknown id or backend or a bad seed, before anything has run.
    """
    wanted, found = chosen_claims(ids), [] if findings is None else findings
    check_request(**how)
    needed = [name for name in EXPERIMENTS if any(one.experiment == name for one in wanted)]
    for done, name in enumerate(needed):
        stage(name, done=done, total=len(needed))
        found.append(run_experiment(name, **how))
    return ledger(ids, found)


def ledger(ids: Iterable[str], findings: Iterable[Finding]) -> list[Claim]:
    """The claims `ids`, or all if none is named, judged by `findings`; a claim whose finding is missing gets a note."""
    looked_up = tomllib.loads(_LEDGER.read_text(encoding="utf-8"))["published"]
    rows = tuple(Row.compare("heads a layer", one, None, one.pop("heads")) for one in looked_up)
    published = Finding(experiment=PUBLISHED, title="Published models", question="", conclusion="", rows=rows)
    found = {one.experiment: one for one in (published, *findings)}
    return [one.judged(found.get(one.experiment)) for one in chosen_claims(ids)]
