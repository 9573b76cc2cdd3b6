"""Claims: what is often said of attention, held against what the experiments found.

The claims and their tests are tables of ``claims.toml``. A test takes rows of an experiment; the row that comes out
worst decides it. For every row that a claim looks at, theory's own prediction is the right statement and is tested with
it. No verdict is written down: each follows from the tests.
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

#: stands where a claim names its experiment, for figures that were looked up
PUBLISHED = "published"
_LEDGER = Path(__file__).with_name("claims.toml")


class Role(StrEnum):
    """Whose statement a test belongs to."""

    CLAIM = "claim"  #: the claim as it is made; where it has a condition, within it
    BEYOND = "beyond"  #: the claim as it is made, outside its condition
    RIGHT = "right"  #: the right statement
    CONTROL = "control"  #: that the experiment can tell one from the other


class ClaimVerdict(StrEnum):
    """What becomes of a claim."""

    CONFIRMED = "confirmed"
    CONDITIONAL = "conditional"
    REFUTED = "refuted"
    NOT_MEASURABLE = "not measurable"


class Test(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by quantity and conditions, and what they must be: `expected`, or what theory predicts of them (None)."""

    __test__ = False  # pytest collects what is called Test

    role: Role
    quantity: str
    relation: str = "="
    expected: float | None = None
    where: dict[str, Any] = {}

    def worst(self, rows: Sequence[Row]) -> Row | None:
        """Of the rows that it takes, held against what it expects, the one with the least room; None without any."""
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
    """A table of ``claims.toml``, and how its tests came out.

    says : the claim, in our own words. truth : the right statement. condition : under which the claim holds, where it
    needs one. note : why there are no checks, where there are none. checks : of a judged claim, the worst row of each
    test beside its role.
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
        """What follows from the checks.

        Not measurable: the claim was put to no test, or a control or the right statement failed, as an experiment that
        contradicts what is right has decided nothing. Else confirmed: it meets every test. Conditional: it meets all
        tests within its condition. Else refuted.
        """
        failed = {role for role, row in self.checks if not row.passed}
        if not any(role is Role.CLAIM for role, _ in self.checks) or failed & {Role.CONTROL, Role.RIGHT}:
            return ClaimVerdict.NOT_MEASURABLE
        if not failed & {Role.CLAIM, Role.BEYOND}:
            return ClaimVerdict.CONFIRMED
        return ClaimVerdict.REFUTED if Role.CLAIM in failed else ClaimVerdict.CONDITIONAL

    @property
    def deciding(self) -> Row | None:
        """The check on which the verdict turns: the first that the claim fails, or its first where it fails none."""
        said = [row for role, row in self.checks if role in (Role.CLAIM, Role.BEYOND)]
        if self.verdict is ClaimVerdict.NOT_MEASURABLE:
            return next((row for _, row in self.checks if not row.passed), None)
        return next((row for row in said if not row.passed), said[0])

    def judged(self, finding: Finding | None) -> Claim:
        """With what its experiment found; with a note instead where a test has no rows or a backend raised an error."""
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
        """Plain data for JSON, in which NaN and infinity are words; with the verdict, for readers elsewhere."""
        plain: dict[str, Any] = finite(msgspec.to_builtins(self))
        checks = [{"role": role, **row} for role, row in plain.pop("checks")]
        return {**plain, "verdict": str(self.verdict), "checks": checks}


@cache
def claims() -> dict[str, Claim]:
    """Every claim by its id, in the order of reading."""
    tables = tomllib.loads(_LEDGER.read_text(encoding="utf-8"))["claim"]
    return {one.id: one for one in msgspec.convert(tables, tuple[Claim, ...])}


def chosen_claims(ids: Iterable[str] = ()) -> list[Claim]:
    """The claims called `ids`, all where none is named. Raises ValueError for an unknown id, naming near ones."""
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
    """The claims called `ids`, all where none is named, judged by the experiments that they need, each run once.

    findings : takes what each experiment found, at once: what it holds outlives an interrupt, see `ledger`. stage,
    how : as for `run_chapter`. Raises ValueError for an unknown id or backend or a bad seed, before any has run.
    """
    wanted, found = chosen_claims(ids), [] if findings is None else findings
    check_request(**how)
    needed = [name for name in EXPERIMENTS if any(one.experiment == name for one in wanted)]
    for done, name in enumerate(needed):
        stage(name, done=done, total=len(needed))
        found.append(run_experiment(name, **how))
    return ledger(ids, found)


def ledger(ids: Iterable[str], findings: Iterable[Finding]) -> list[Claim]:
    """The claims called `ids`, all where none is named, held against `findings`; a note stands where one is missing."""
    looked_up = tomllib.loads(_LEDGER.read_text(encoding="utf-8"))["published"]
    rows = tuple(Row.compare("heads a layer", one, None, one.pop("heads")) for one in looked_up)
    published = Finding(experiment=PUBLISHED, title="Published models", question="", conclusion="", rows=rows)
    found = {one.experiment: one for one in (published, *findings)}
    return [one.judged(found.get(one.experiment)) for one in chosen_claims(ids)]
