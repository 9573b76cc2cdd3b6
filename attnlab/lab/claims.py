"""What is often said of attention, a claim a row of data, what decides it, and the ledger of the verdicts.

A claim names an experiment of `attnlab.lab` and *tests*: a quantity of it and what its rows must be
if the claim is true. Whose statement a test belongs to says what its failure means: the claim's own, where its
condition holds or beyond it; the right statement's; or a control, without which the experiment would be blind. For
every row that a claim looks at, theory's own prediction is the right statement, and is tested with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from attnlab.lab import EXPERIMENTS, check_request, run_experiment
from attnlab.lab.finding import STANDARD_ERRORS, Finding, Row, pick
from attnlab.lab.survey import RAISED
from attnlab.plain import finite, suggestion


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


@dataclass(frozen=True)
class Test:
    """The rows that `quantity` and `where` take (`Row.takes`), and what they must be.

    `expected`: a number, or one that the row's conditions give, in `relation` to the measured one; None for what
    theory predicts of the row.
    """

    __test__ = False  # pytest collects what is called Test

    quantity: str
    relation: str = "="
    expected: float | Callable[[Mapping[str, Any]], float] | None = None
    where: Mapping[str, Any] = field(default_factory=dict)

    def check(self, role: Role, rows: Sequence[Row]) -> Check:
        """The row that comes out worst. Raises `_Unmeasured` where there is none or a backend raised an error."""
        mine = pick(rows, self.quantity, **self.where)
        if not mine or any("backend" in row.where for row in mine):
            for row in pick(rows, RAISED):
                raise _Unmeasured(f"{row.where['backend']}: {row.where['reason']}")
        if not mine:
            raise _Unmeasured(f"no backend was asked for {self.quantity}")
        worst = max((self._against(row) for row in mine), key=_excess)
        words = {
            key: f"{value:g}" if isinstance(value, float) else str(value)
            for key, value in worst.where.items()
        }
        where = ", ".join(text if key == "backend" else f"{key} = {text}" for key, text in words.items())
        return Check(role, worst, where if len(mine) == 1 else f"{where}; worst of {len(mine)}")

    def _against(self, row: Row) -> Row:
        """The row held against what is expected of it."""
        relation, expected = self.relation, self.expected
        if expected is None:
            relation, expected = row.relation, row.predicted
        number = expected(row.where) if callable(expected) else expected
        room = {"standard_error": row.standard_error, "slack": row.slack}
        return Row.compare(row.quantity, row.where, number, row.measured, relation=relation, **room)


def _excess(row: Row) -> float:
    """How far a row is beyond what it is allowed to miss by, infinite for a NaN; above 0 where it fails."""
    above, room = row.measured - row.predicted, max(STANDARD_ERRORS * row.standard_error, row.slack)
    if math.isnan(above):
        return 0.0 if row.passed else math.inf
    above = {"=": abs(above), "≥": -above, ">": -above}.get(row.relation, above)
    return above + room if row.relation in "<>" else above - room


@dataclass(frozen=True)
class Check:
    """A measured figure held against what a statement says of it: the row of a test that comes out worst for it.

    where : the row's conditions in words.
    """

    role: Role
    row: Row
    where: str = ""

    @property
    def holds(self) -> bool:
        """Whether the figure is as the statement says."""
        return self.row.passed

    def __str__(self) -> str:
        """The figures in words: ``Var(q·k): 1014 ± 6, claimed = 256 (σ = 2, d_k = 64)``."""
        row, of = self.row, "claimed" if self.role in (Role.CLAIM, Role.BEYOND) else "predicted"
        error = f" ± {row.standard_error:.2g}" if row.standard_error else ""
        slack = f" ± {row.slack:.2g}" if row.slack and row.relation not in "<>" else ""
        where = f" ({self.where})" if self.where else ""
        expected = f"{row.relation} {_number(row.predicted)}{slack}"
        return f"{row.quantity}: {_number(row.measured)}{error}, {of} {expected}{where}"

    def figures(self) -> dict[str, Any]:
        """What was measured, what was expected, and the room between them."""
        row = self.row
        return {
            "quantity": row.quantity, "measured": row.measured, "standard_error": row.standard_error,
            "relation": row.relation, "expected": row.predicted, "slack": row.slack,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no NaN and no infinity: such a number becomes its name."""
        plain: dict[str, Any] = finite(self.figures())
        return {"role": self.role, **plain, "where": self.where, "holds": self.holds}


class _Unmeasured(Exception):
    """The experiment has not the rows that a test needs; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said of attention, in our own words, what is right, the tests that decide it; and how they came out.

    says : the claim. truth : the right statement. condition : under which the claim holds, where it needs one.
    reference : where to read more. experiment : whose quantities decide it, ``published`` where they were
    looked up; empty where only trained models could tell. plan : the plan of the race whose verdict decides it, where
    a race does and no experiment. claimed, beyond, right, control : tests by `Role`. checks : of a judged claim; the
    verdict is not stored but follows. note : why there are no checks, where there are none.
    """

    id: str
    theme: str
    says: str
    truth: str
    reference: str
    condition: str = ""
    experiment: str = ""
    plan: str = ""
    claimed: tuple[Test, ...] = ()
    beyond: tuple[Test, ...] = ()
    right: tuple[Test, ...] = ()
    control: tuple[Test, ...] = ()
    checks: tuple[Check, ...] = ()
    note: str = ""

    def judged(self, finding: Finding | None) -> Claim:
        """With what its experiment found: a check a test, and one on theory's prediction for the same rows."""
        if finding is None:
            asked = f"a race decides it, on the machine where it is asked: attnlab run --plan {self.plan}"
            untrained = "a question about models trained on language, and no experiment here trains one"
            note = "its experiment was not run" if self.experiment else asked if self.plan else untrained
            return replace(self, note=note)
        tests = list(zip(Role, (self.claimed, self.beyond, self.right, self.control), strict=True))
        predicted = {
            (test.quantity, tuple(test.where.items())): Test(test.quantity, where=test.where)
            for test in (*self.claimed, *self.beyond)
            if test.expected is not None
        }
        try:
            every = (*tests, (Role.RIGHT, tuple(predicted.values())))
            checks = tuple(test.check(role, finding.rows) for role, mine in every for test in mine)
        except _Unmeasured as reason:
            return replace(self, note=f"not measured here: {reason}")
        return replace(self, checks=checks)

    @property
    def verdict(self) -> ClaimVerdict:
        """What follows from the checks."""
        return decide(self.checks)

    @property
    def deciding(self) -> Check | None:
        """The check on which the verdict turns: the first that the claim fails, or its first where it fails none."""
        said = [check for check in self.checks if check.role in (Role.CLAIM, Role.BEYOND)]
        tests = [check for check in self.checks if check.role in (Role.RIGHT, Role.CONTROL)]
        if self.verdict is ClaimVerdict.NOT_MEASURABLE:
            return next((check for check in tests if not check.holds), None)
        return next((check for check in said if not check.holds), said[0])

    @property
    def deciding_figure(self) -> str:
        """That check in words, or why there is none: ``Var(q·k): 1014 ± 6, claimed = 256 (σ = 2, d_k = 64)``."""
        check = self.deciding
        return self.note if check is None else str(check)

    def verdict_in(self, words: Mapping[ClaimVerdict, str]) -> str:
        """The verdict in `words`, with its condition where it hangs on one."""
        conditional = self.verdict is ClaimVerdict.CONDITIONAL and self.condition
        return words[self.verdict] + (f": {self.condition}" if conditional else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; with the verdict, for whoever reads it elsewhere."""
        texts = ("id", "theme", "says", "truth", "reference", "condition", "experiment", "plan", "note")
        plain: dict[str, Any] = {name: getattr(self, name) for name in texts}
        return {**plain, "verdict": str(self.verdict), "checks": [one.to_dict() for one in self.checks]}


def decide(checks: Iterable[Check]) -> ClaimVerdict:
    """The verdict that follows from a claim's checks.

    Not measurable: the claim was put to no test, or a control failed. Confirmed: the claim meets every test. Else
    its failure counts only where the right statement meets its own tests, as an experiment that contradicts both
    has decided nothing; then the claim is conditional where it meets all tests within its condition, and refuted
    where it does not.
    """
    failed: dict[Role, bool] = {}
    for check in checks:
        failed[check.role] = failed.get(check.role, False) or not check.holds
    if Role.CLAIM not in failed or failed.get(Role.CONTROL):
        return ClaimVerdict.NOT_MEASURABLE
    if not failed[Role.CLAIM] and not failed.get(Role.BEYOND):
        return ClaimVerdict.CONFIRMED
    if failed.get(Role.RIGHT):
        return ClaimVerdict.NOT_MEASURABLE
    return ClaimVerdict.REFUTED if failed[Role.CLAIM] else ClaimVerdict.CONDITIONAL


@dataclass(frozen=True)
class Ledger:
    """What one run found. `facts` are the seed, the backends that were asked and the seconds that it took."""

    entries: tuple[Claim, ...]
    facts: Mapping[str, str | float]

    @property
    def counts(self) -> dict[ClaimVerdict, int]:
        """How many claims met each verdict."""
        found = Counter(entry.verdict for entry in self.entries)
        return {verdict: found[verdict] for verdict in ClaimVerdict}

    def __getitem__(self, id: str) -> Claim:
        return {entry.id: entry for entry in self.entries}[id]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"facts": dict(self.facts), "claims": [entry.to_dict() for entry in self.entries]}

    def rows(self) -> list[dict[str, Any]]:
        """Every test of every claim as plain values, a row a test."""
        return [
            {"claim": entry.id, "tested": _TESTED[one.role], **one.figures(), "met": one.holds, "where": one.where}
            for entry in self.entries
            for one in entry.checks
        ]  # fmt: skip


_TESTED = {
    Role.CLAIM: "the claim",
    Role.BEYOND: "the claim, beyond its condition",
    Role.RIGHT: "the right statement",
    Role.CONTROL: "the experiment itself",
}


def _number(value: float) -> str:
    """A whole number in full, any other to four digits."""
    return f"{value:,.0f}" if abs(value) < 1e15 and value == int(value) else f"{value:.4g}"


# -- the claims, theme by theme in the order of reading ----------------------------------------------

#: stands where a claim names the experiment that decides it, for figures that were looked up; their quantity
PUBLISHED, HEADS_EACH = "published", "heads a layer"
#: model, year, heads of a layer, where it is said
_MODELS = (
    ("Transformer base", 2017, 8, "Vaswani et al. 2017, table 3"),
    ("Transformer big", 2017, 16, "Vaswani et al. 2017, table 3"),
    ("BERT base", 2018, 12, "Devlin et al. 2018, §3"),
    ("BERT large", 2018, 16, "Devlin et al. 2018, §3"),
    ("GPT-3 small", 2020, 12, "Brown et al. 2020, table 2.1"),
    ("GPT-3 175B", 2020, 96, "Brown et al. 2020, table 2.1"),
    ("PaLM 540B", 2022, 48, "Chowdhery et al. 2022, table 1"),
    ("Llama 3 8B", 2024, 32, "Grattafiori et al. 2024, table 3"),
    ("Llama 3 70B", 2024, 64, "Grattafiori et al. 2024, table 3"),
    ("Llama 3 405B", 2024, 128, "Grattafiori et al. 2024, table 3"),
)

FORMULA, SHAPES, REACH, PRECISION = "The formula", "Shapes", "Reach", "Precision"
TEMPERATURE, VARIANCE, SATURATION = "Temperature", "The variance of the scores", "Saturation"
GRADIENTS, MANY_HEADS, COST, BEYOND = "Gradients", "Heads", "Cost", "Interpretation"
VASWANI, HEADS = "Vaswani et al. 2017, §3.2.1", "Vaswani et al. 2017, §3.2.2"
LENGTH = "Veličković et al. 2024 (2410.01104)"
#: families of components with mean 0 and variance 1
INDEPENDENT = ("normal", "uniform", "Rademacher", "Laplace")
#: pairs of 1024 tokens, each with itself too
PAIRS = 1024 * 1025 // 2
#: training runs over all d_k
ADAM = {"optimiser": "Adam", "head_dim": "all"}

# a row a claim, closer set than the formatter would
# fmt: off
CLAIMS = (
    Claim(
        id="scaled-dot-product", theme=FORMULA, experiment="formula", reference=VASWANI,
        says="Attention is softmax(QKᵀ/√d_k)V.",
        truth="So it is. Every backend agrees with the formula evaluated in float64, to within the error that its "
        "own roundings predict.",
        claimed=(Test("error / error budget"),),
    ),
    Claim(
        id="weights-sum-to-one", theme=FORMULA, experiment="thermodynamics", reference=VASWANI,
        says="The softmax turns a row of scores into weights that add up to 1.",
        truth="They do, within what the roundings of n weights and of their two sums can do: about 2nu, u being the "
        "unit roundoff. √n·u is no bound, as the roundings of equal weights are not independent.",
        claimed=(Test("Σp = 1"), Test("|Σp − 1| in float32")),
    ),
    Claim(
        id="score-of-own-key", theme=FORMULA, experiment="formula", reference=VASWANI,
        says="The score of position i is s_i = q_i·k_i: one number a token.",
        truth="There is a score for every pair, s_ij = q_i·k_j: n² of them. Scores that hang on the key alone would "
        "give all queries one and the same output.",
        claimed=(Test("different rows of the output", "=", 1),),
    ),
    Claim(
        id="output-expectation", theme=FORMULA, experiment="thermodynamics",
        reference="Kubo 1966 for fluctuation and dissipation",
        says="What attention puts out is an expectation: of the values, under the weights.",
        truth="Exactly so, and its response to a score is a covariance: ∂o/∂s_j = p_j(v_j − o) for logits s, "
        "do/db = Cov_p(v, s) for logits bs at b = 1.",
        claimed=(Test("∂o/∂s_j = b p_j (v_j − o)"), Test("do/db = Cov_p(v, s)")),
    ),
    Claim(
        id="next-token", theme=FORMULA, experiment="formula", reference="Vaswani et al. 2017, §3.4",
        says="Attention puts out the next token, one vector x_{n+1}.",
        truth="It puts out one vector for every query position; a next token is predicted from the last of them, "
        "after many layers and an output projection.",
        claimed=(Test("different rows of the output", "=", 1),),
    ),
    Claim(
        id="unnormalised-sum", theme=FORMULA, experiment="formula", reference=VASWANI,
        says="The output is Σ_j s_ij v_j: the values times their scores.",
        truth="It is Σ_j p_ij v_j, the scores after the softmax. Scores as they are have both signs and no fixed sum: "
        "of standard normal inputs their combination has a root mean square of √n, and the output one of √(E "
        "Σp²), about √(e/n) for many keys and a large d_k.",
        claimed=(Test("rms of Σ s v / rms of Σ p v", "=", 1),),
    ),
    Claim(
        id="self-and-cross", theme=SHAPES, experiment="formula", reference="Vaswani et al. 2017, §3.2.3",
        says="A sequence may attend to itself, or to another one.",
        truth="Both are the same computation; in cross-attention n_q and n_k are independent of each other.",
        claimed=(Test("share answered right", "=", 1, {"shapes": ("n_q = n_k", "n_q ≠ n_k")}),),
    ),
    Claim(
        id="same-row-count", theme=SHAPES, experiment="formula", reference="Vaswani et al. 2017, §3.2.3",
        condition="self-attention",
        says="Q, K and V all have n rows.",
        truth="K and V share a length, n_k; Q has a length of its own, n_q.",
        claimed=(Test("share answered right", "=", 1, {"shapes": "n_q = n_k"}),),
        beyond=(Test("share answered right", "=", 0, {"shapes": "n_q ≠ n_k"}),),
        right=(Test("share answered", "=", 0, {"shapes": "n_k ≠ n_v"}),),
    ),
    Claim(
        id="one-query-key-dim", theme=SHAPES, experiment="formula", reference=VASWANI,
        says="Queries and keys must have the same dimension, for their dot product to exist.",
        truth="They must, and a mismatch is refused.",
        claimed=(Test("share answered", "=", 0, {"shapes": "d_q ≠ d_k"}),),
        control=(Test("share answered right", "=", 1, {"shapes": "n_q = n_k"}),),
    ),
    Claim(
        id="value-dimension", theme=SHAPES, experiment="formula", reference=HEADS,
        condition="d_v = d_k is chosen, as in most models",
        says="The value vectors have the dimension of queries and keys.",
        truth="Any d_v will do; the output has the same d_v.",
        claimed=(Test("share answered right", "=", 1, {"shapes": "n_q = n_k"}),),
        beyond=(Test("share answered right", "=", 0, {"shapes": "d_v ≠ d_k"}),),
    ),
    Claim(
        id="every-token-sees-every", theme=REACH, experiment="formula",
        reference="Vaswani et al. 2017, §3.2.3; Lee et al. 2019 (1810.00825)", condition="no mask",
        says="Each token sees all others, however far apart they are.",
        truth="Without a mask, and then so blindly that reordering the tokens reorders the output and does nothing "
        "else. Under a causal mask token i sees tokens 1 to i: (n + 1)/(2n) of all pairs.",
        claimed=(Test("share of pairs with a weight", "=", 1, {"mask": "none"}),),
        beyond=(Test("share of pairs with a weight", "=", 1, {"mask": "causal"}),),
        right=(
            Test("output of reordered tokens − reordered output"),
            Test("causal output of the first half alone − of the whole"),
        ),
    ),
    Claim(
        id="no-information-loss", theme=REACH, experiment="length", reference=LENGTH,
        condition="any distance, not any number of tokens",
        says="Attention reaches over any distance without losing information.",
        truth="Distance costs nothing: where a key stands changes no weight, unless positions are in the vectors. "
        "Length does: no weight exceeds 1/(1 + (n − 1)e^−Δ), Δ the gap from the largest to the smallest logit, so "
        "that with bounded logits what one token sends fades as 1/n. A weight of .9 needs a gap of ln 9(n − 1).",
        claimed=(Test("change of a weight with the distance of its key", "=", 0),),
        beyond=(Test("weight at a fixed gap", "≥", 0.9),),
        right=(Test("weight at the gap that .9 needs"),),
    ),
    Claim(
        id="match-means-high-score", theme=REACH, experiment="formula", reference="Luong et al. 2015, §3.1",
        condition="keys of equal length",
        says="The better a key matches the query, the higher its score.",
        truth="The score is ‖q‖‖k‖cos θ: a long key can outrank a better aligned one.",
        claimed=(Test("weight of the better aligned of two keys", ">", 0.5, {"lengths": "equal"}),),
        beyond=(Test("weight of the better aligned of two keys", ">", 0.5, {"lengths": "1 and 4"}),),
    ),
    Claim(
        id="plain-exponentials", theme=PRECISION, experiment="overflow",
        reference="Blanchard, Higham, Higham 2021; Milakov, Gimelshein 2018",
        says="The softmax can be computed as exp(s)/Σ exp(s).",
        truth="That overflows. The sum of n equal exponentials does so above a logit of ln(max) − ln n, and the "
        "weights are then 0 without an error: at n = 1024 from 4.16 on in float16, 81.79 in float32, 702.85 in "
        "float64. Above ln(max) each exponential does, and the weights are NaN: 11.09, 88.72, 709.78. They are NaN too "
        "where all logits are so negative that every exponential is 0: in float32 at −110. Subtracting the row's "
        "largest logit first changes nothing else and cures all three, where n itself does not exceed max (65,504 in "
        "float16) or the sum is kept in a wider format.",
        claimed=(Test("unshifted softmax overflows above", "=", math.inf),),
        right=(
            Test("share of unshifted weights that are 0"),
            Test("share of unshifted weights that are NaN"),
            Test("weight of two equal logits at twice ln(max)"),
        ),
    ),
    Claim(
        id="boltzmann", theme=TEMPERATURE, experiment="thermodynamics", reference="Jaynes 1957",
        says="The softmax is a Boltzmann distribution: energy −s, temperature 1.",
        truth="It is one exactly and not in approximation, and the energy is the negative of the score, not its "
        "inverse. Hence H = ln Z − ⟨s⟩, the derivative of ln Z in the inverse temperature being ⟨s⟩.",
        claimed=(Test("p = e^s / Z"), Test("H = ln Z − b⟨s⟩"), Test("d ln Z/db = ⟨s⟩")),
    ),
    Claim(
        id="temperature-sharpens", theme=TEMPERATURE, experiment="thermodynamics",
        reference="Jaynes 1957; Hinton et al. 2015 (1503.02531)",
        says="A small temperature makes the weights sharp, a large one makes them flat.",
        truth="The entropy never falls with the temperature, dH/dτ = Var_p(s)/τ³; towards 0 all weight goes to the "
        "largest score, and towards infinity H = ln n.",
        claimed=(Test("dH/dτ = Var_p(s)/τ³"), Test("τ → 0: uniform on the largest"), Test("τ → ∞: H = ln n")),
    ),
    Claim(
        id="dot-products-grow", theme=VARIANCE, experiment="variance_scaling", reference=VASWANI,
        says="Dot products grow as the dimension of queries and keys does.",
        truth="Their standard deviation grows as √d_k, if the components are independent with zero mean: a slope of "
        "1 for the logarithm of the variance.",
        claimed=(Test("slope of ln variance on ln d_k", "=", 1, {"scaling": "unscaled"}),),
    ),
    Claim(
        id="variance-proportional-to-d", theme=VARIANCE, experiment="variance_scaling", reference=VASWANI,
        says="Var(q·k) is proportional to the dimension, and a factor enters it squared.",
        truth="Both are so: the slope is 1, and dividing the scores by √d_k divides the variance by d_k.",
        claimed=(
            Test("slope of ln variance on ln d_k", "=", 1, {"scaling": "unscaled"}),
            Test("slope of ln variance on ln d_k", "=", 0, {"scaling": "scaled"}),
        ),
    ),
    Claim(
        id="variances-add", theme=VARIANCE, experiment="variance_scaling", reference=VASWANI,
        says="The terms of the dot product are uncorrelated, so that their variances add.",
        truth="They add: Var(Σ_c q_c k_c) = Σ_c Var(q_c k_c) for independent components, whatever their law.",
        # each term has the variance 1
        claimed=(Test("variance of q·k", "=", lambda at: at["head_dim"], {"family": INDEPENDENT}),),
    ),
    Claim(
        id="variance-sigma-squared", theme=VARIANCE, experiment="variance_scaling", reference=VASWANI,
        says="If the components have variance σ², the dot product has variance σ²d_k.",
        truth="A product of two such components has variance σ⁴, so that Var(q·k) = σ_q²σ_k²d_k = σ⁴d_k.",
        claimed=(
            Test("variance of q·k", "=", lambda at: at["sigma"] ** 2 * at["head_dim"], {"family": "normal, σ = 2"}),
        ),
    ),
    Claim(
        id="magnitude-manageable", theme=VARIANCE, experiment="variance_scaling",
        reference="Zhai et al. 2023 (2303.06296)", condition="σ_qσ_k = 1",
        says="Dividing by √d_k keeps the scores at a manageable size.",
        truth="It takes d_k out of the variance and leaves σ_q²σ_k², which is 1 only where σ_qσ_k = 1.",
        claimed=(Test("variance", "=", 1, {"scaling": "scaled"}),),
        # divided by d_k, the variance would have to be 1
        beyond=(Test("variance of q·k", "=", lambda at: at["head_dim"], {"family": "normal, σ = 2"}),),
    ),
    Claim(
        id="scale-for-later-steps", theme=SATURATION, experiment="multihead",
        reference=f"{VASWANI}; Xiong et al. 2020 (2002.04745)", condition="layers without a norm",
        says="The factor 1/√d_k avoids large values in later steps, above all in deep models.",
        truth="Where each layer normalises its input first (pre-norm), depth does not enter, and q·k has the "
        "same size with the factor and without. Without a norm x grows layer by layer, and q·k far more so "
        "without the factor. Within a layer the output is bounded by the values in either case; what the factor "
        "prevents is saturation.",
        claimed=(Test("Var(q·k) of the last layer, unscaled over scaled", ">", 1, {"norm": "none"}),),
        beyond=(Test("Var(q·k) of the last layer, unscaled over scaled", ">", 1, {"norm": "pre-norm"}),),
        right=(Test("Var(q·k) / d_k", where={"norm": "pre-norm"}),),
    ),
    Claim(
        id="no-element-dominates", theme=SATURATION, experiment="saturation",
        reference="Derrida 1981; Bovier, Kurkova, Löwe 2002",
        says="After a softmax no one element can dominate.",
        truth="One can. With unscaled scores the largest of 1024 weights averages .706 at d_k = 64 by theory.",
        claimed=(Test("largest_weight", "<", 0.5, {"scaling": "unscaled", "keys": 1024, "head_dim": 64}),),
    ),
    Claim(
        id="neither-peaked-nor-flat", theme=SATURATION, experiment="length",
        reference=f"{LENGTH}; Nakanishi 2025 (2501.19399)",
        says="Scaled weights are neither too peaked nor too flat.",
        truth="If an entropy above .9 ln n is too flat and a largest weight above ½ too peaked: standard normal "
        "inputs are too flat, H being .93 ln n at n = 1024, and nearer to ln n the longer the row is; with σ_qσ_k = "
        "8 they are too peaked from d_k = 2 on, as unscaled ones are at d_k = 64.",
        claimed=(
            Test("entropy", "<", lambda at: 0.9 * math.log(at["keys"]), {"rule": "scaled, β = 1", "keys": 1024}),
            Test("largest_weight", "<", 0.5, {"rule": "unscaled, d_k = 64, β = 8", "keys": 1024}),
        ),
    ),
    Claim(
        id="scale-prevents-vanishing", theme=GRADIENTS, experiment="vanishing_gradient",
        reference="Derrida 1981; Pitman and Yor 1997", condition="for a share of the rows, which grows with d_k",
        says="Without 1/√d_k the gradient of the softmax vanishes.",
        truth="It does for saturated rows, not on average. Standard normal queries and keys at n = 1024: "
        "unscaled, ‖∂p/∂s‖ is under 1e-3 for 2.6 % of the rows at d_k = 64, 19 % at 256, 45 % at 1024, and from "
        "about 1,400 on for the median row; its root mean square at d_k = 64 is .292 against .051 scaled. Scaled "
        "rows shrink as well, as √(e/n) for large d_k: their median is .050 at n = 1024 and .0064 at 65,536.",
        claimed=(
            Test("share of rows below", ">", 0, {"scaling": "unscaled", "keys": 1024, "norm": 1e-3}),
            Test("share of rows below 1e-3 against d_k", ">", 0, {"head_dim": (128, 256, 512, 1024, 1600, 4096)}),
            Test("share of rows below", "=", 0, {"scaling": "scaled", "keys": 1024, "norm": 1e-3}),
        ),
        beyond=(Test("rms ‖J‖, unscaled over scaled", "<", 1, {"keys": 1024}),),
        right=(Test("median ‖J‖ against d_k"), Test("median ‖J‖ against n")),
    ),
    Claim(
        id="small-values-vanish", theme=GRADIENTS, experiment="vanishing_gradient",
        reference="Dao et al. 2022, appendix B", condition="the gradients of queries and keys",
        says="Small values make the gradients vanish.",
        truth="Those of queries and keys shrink in proportion to V, as ∂L/∂s_j = p_j(v_j − o)·dO: at V/1000 they "
        "are 1/1000. That of the values, dL/dV = PᵀdO, does not contain V and stays as it was.",
        claimed=(Test("norm of the gradient at V/1000 over at V", "=", 1e-3, {"of": ("query", "key")}),),
        beyond=(Test("norm of the gradient at V/1000 over at V", "=", 1e-3, {"of": "value"}),),
    ),
    Claim(
        id="stable-learning", theme=GRADIENTS, experiment="training",
        reference="Raffel et al. 2020 (1910.10683); Zhai et al. 2023 (2303.06296)",
        condition="one learning rate for both",
        says="Dividing the scores by √d_k makes learning stable.",
        truth="At the equal learning rates tried more runs learn with the factor than without. It is not what they "
        "need: at a learning rate of its own a model without it learns too, and with 1/d_k, or with normalised queries "
        "and keys, no fewer runs learn than with 1/√d_k. So it is for one small model and one task, by Adam.",
        claimed=(Test("learned with 1/√d_k − without", ">", 0, {**ADAM, "instead": "none"}),),
        beyond=(
            Test("learned with 1/√d_k − without, at the best learning rates", ">", 0, {**ADAM, "instead": "none"}),
        ),
        right=(
            Test("learned with 1/√d_k − without", "≤", 0, {**ADAM, "instead": ("1/d_k", "QK-norm")}),
        ),
        # a task that can be learned without attention would tell nothing of it
        control=(Test("share of runs that learned", "<", 0.5, {"scores": "uniform weights"}),),
    ),
    Claim(
        id="heads-split-weights", theme=MANY_HEADS, experiment="multihead", reference=HEADS,
        says="Heads come from splitting the weight matrices.",
        truth="Head h has columns h·d_k to (h + 1)·d_k of each; a loop over heads and one batched call give the "
        "same.",
        claimed=(Test("all heads at once − a loop over heads"),),
    ),
    Claim(
        id="heads-independent", theme=MANY_HEADS, experiment="multihead", reference=HEADS,
        says="Heads work independently of each other; their outputs are concatenated and mapped.",
        truth="So it is, to the last bit: what changes one head's input leaves the output of the others as it was.",
        claimed=(Test("elements of other heads changed by one head", "=", 0),),
    ),
    Claim(
        id="heads-see-chunks", theme=MANY_HEADS, experiment="multihead", reference=HEADS,
        says="Each head sees its own chunk of the embedding.",
        truth="Each head projects the whole embedding; what is cut into chunks is the projection. Moving one "
        "coordinate of the tokens changes every head.",
        claimed=(Test("heads changed by one coordinate of the embedding", "=", 1),),
    ),
    Claim(
        id="heads-after-sum", theme=MANY_HEADS, experiment="multihead", reference=HEADS,
        says="Heads branch off after the weighted sum of the values.",
        truth="They branch before the softmax, and each has weights of its own. One softmax whose output is "
        "split into heads is another function.",
        claimed=(Test("‖heads after the weighted sum − heads before it‖ / ‖heads before it‖", "=", 0),),
    ),
    Claim(
        id="concatenation-is-output", theme=MANY_HEADS, experiment="multihead", reference=HEADS, condition="W_O = I",
        says="The output of multi-head attention is the concatenation of its heads.",
        truth="The concatenation is multiplied by W_O, which is square: where d_v = d_model/H, H heads joined are "
        "d_model wide, no more and no less.",
        claimed=(Test("Concat(z) I − Concat(z)"),),
        beyond=(Test("‖Concat(z) W_O − Concat(z)‖ / ‖Concat(z)‖", "<", 0.5),),
    ),
    Claim(
        id="output-mixes-heads", theme=MANY_HEADS, experiment="multihead",
        reference="Elhage et al. 2021, A Mathematical Framework for Transformer Circuits",
        says="W_O combines the information of all heads.",
        truth="Concat(z)W_O = Σ_h z^h W_O^h, W_O^h being the rows of head h.",
        claimed=(Test("Concat(z) W_O − Σ_h z^h W_O^h"),),
    ),
    Claim(
        id="dot-product-d-squared", theme=COST, experiment="multihead", reference="Vaswani et al. 2017, table 1",
        says="A dot product of two vectors of dimension d takes d² multiplications.",
        truth="It takes d of them; all n² of a score matrix take n²d, and as many again the outputs. Of n = 1024 "
        f"tokens of dimension 8192, n(n + 1)/2 products take {PAIRS * 8192:,} multiplications; {1024 * 8192**2:,}, as "
        f"may be read, is n d², and n(n + 1)/2 · d² would be {PAIRS * 8192**2:,}. Of GPT-2's models the medium "
        "one alone has dimension 1024.",
        # d² in the place of d, at d_model = 256
        claimed=(Test("FLOPs / (4 n² d_model)", "=", lambda at: 256 / at["heads"], {"counted": "by PyTorch"}),),
    ),
    Claim(
        id="half-the-table", theme=COST, experiment="formula",
        reference="Kim et al. 2021 (2006.04710) for the symmetric case", condition="XXᵀ, without projections",
        says="The table of scores is symmetric, so that n(n + 1)/2 dot products make it up.",
        truth="XXᵀ is symmetric. QKᵀ with projections of its own for queries and keys is not: for independent ones "
        "s_ij and s_ji differ as two unrelated numbers do, and all n² products are needed.",
        claimed=(Test("‖S − Sᵀ‖² / n²", "=", 0, {"keys are": "k = q"}),),
        beyond=(Test("‖S − Sᵀ‖² / n²", "=", 0, {"keys are": "independent"}),),
    ),
    Claim(
        id="heads-cut-cost", theme=COST, experiment="multihead", reference="Vaswani et al. 2017, table 1",
        condition="against as many heads of full width",
        says="Working in smaller dimensions, head by head, cuts the cost of attention.",
        truth="One head of dimension d_model/h takes 1/h of the products of a full-width one, so that h of them take "
        "1/h of what h full-width heads would; but no less than one of those, 4n²·d_model however many they are, and "
        "h softmaxes. With the projections of queries and keys to d_k counted, scores cost less than those of the "
        "tokens themselves, of dimension d, only from n > 2 d d_k/(d − d_k) on: 140 tokens at 768 and 64. Time "
        "follows from no count; it was measured and differs by backend.",
        claimed=(
            Test("FLOPs of one head / (4 n² d_model)", "<", 1, {"counted": "by PyTorch", "heads": (2, 4, 8, 16)}),
        ),
        beyond=(Test("FLOPs / (4 n² d_model)", "<", 1, {"counted": "by PyTorch", "heads": (2, 4, 8, 16)}),),
    ),
    Claim(
        id="separate-linears-slower", theme=COST, plan="docs/plans/multi-head-block.toml",
        reference="Vaswani et al. 2017, §3.2.2; PyTorch, torch.nn.MultiheadAttention",
        says="A linear layer for each head is slower than one for all heads.",
        truth="Both are the same products. Which is faster, and by how much, depends on the backend, the number of "
        "heads, the length and the machine. A race of blocks asks it, `[projection=loop]` against one matrix for all "
        "heads; reports/reference-block has one, on two cores.",
    ),
    Claim(
        id="memory-reasonable", theme=COST, experiment="multihead", reference="Dao et al. 2022 (2205.14135)",
        says="Attention takes a reasonable amount of memory, so that long inputs are handled efficiently.",
        condition="a kernel that never holds the table of scores",
        truth="The formula as it is written holds n² scores a head, 256 MiB in float32 at n = 2048 with 16 heads; a "
        "fused kernel needs little beyond its output. Which of the two a backend does decides what it takes.",
        claimed=(Test("peak memory / table of scores", "<", 0.5, {"backend": "torch_sdpa"}),),
        beyond=(Test("peak memory / table of scores", "<", 0.5, {"backend": "torch_eager"}),),
    ),
    Claim(
        id="typical-head-count", theme=MANY_HEADS, experiment=PUBLISHED, condition="models of 2017 and 2018",
        reference="Vaswani et al. 2017, table 3; Grattafiori et al. 2024 (2407.21783), table 3",
        says="A model typically has 8 to 16 heads.",
        truth="So the first ones had. Of those looked up here the later ones have 12 (GPT-3 small) to 128 (Llama "
        "3 405B).",
        claimed=(Test(HEADS_EACH, "≥", 8, {"year": (2017, 2018)}), Test(HEADS_EACH, "≤", 16, {"year": (2017, 2018)})),
        beyond=(Test(HEADS_EACH, "≤", 16, {"year": (2020, 2022, 2024)}),),
    ),
    Claim(
        id="bert-heads", theme=MANY_HEADS, experiment=PUBLISHED, condition="BERT base",
        reference="Devlin et al. 2018 (1810.04805), §3",
        says="BERT has 12 heads a layer.",
        truth="BERT base has 12, BERT large 16.",
        claimed=(Test(HEADS_EACH, "=", 12, {"model": "BERT base"}),),
        beyond=(Test(HEADS_EACH, "=", 12, {"model": "BERT large"}),),
    ),
    Claim(
        id="heads-learn-syntax", theme=BEYOND,
        reference="Clark et al. 2019 (1906.04341); Michel et al. 2019 (1905.10650)",
        says="Some heads learn syntax, others semantics.",
        truth="Some heads of trained models follow syntactic relations, and many can be removed at little loss. "
        "Nothing in the formula assigns such parts; it is a question about a trained model, not about attention.",
    ),
)
# fmt: on


def chosen(ids: Iterable[str] = ()) -> tuple[Claim, ...]:
    """The claims called `ids`, all where none is named. Raises ValueError for an unknown id, naming near ones."""
    known = {claim.id: claim for claim in CLAIMS}
    wanted = tuple(dict.fromkeys(ids)) or tuple(known)
    for id in wanted:
        if id not in known:
            hint = suggestion(id, known, "attnlab claims --list names them all")
            raise ValueError(f"no claim is called {id!r}; {hint}")
    return tuple(known[id] for id in wanted)


def published() -> Finding:
    """What was looked up as a finding, so that claims are decided by it as by an experiment's."""
    rows = tuple(
        Row.compare(HEADS_EACH, {"model": model, "year": year, "source": source}, None, heads)
        for model, year, heads, source in _MODELS
    )
    question = "How many heads has a model?"
    return Finding(PUBLISHED, "Published models", question, f"{len(rows)} models were looked up.", rows)


def run_claims(
    ids: Iterable[str] = (),
    *,
    seed: int = 0,
    backends: Sequence[str] | None = None,
    folders: Sequence[Path | str] = (),
    findings: Iterable[Finding] = (),
    on_event: Callable[[str], None] = lambda text: None,
) -> Ledger:
    """Judge the claims called `ids`, all where none is named, by the experiments that they need, each run once.

    backends : names to measure through, all that are found where None. folders : where to look for more of them.
    findings : experiments that have been run already, with the same seed and backends.

    Raises ValueError for an unknown id or backend or a bad seed, before any experiment has run.
    """
    wanted = chosen(ids)
    check_request(backends, seed, folders)
    found = {one.experiment: one for one in findings}
    for name in EXPERIMENTS:
        if name not in found and any(claim.experiment == name for claim in wanted):
            on_event(name.replace("_", " "))
            found[name] = run_experiment(name, backends, seed=seed, folders=folders)
    return judged(wanted, found, seed)


def judged(claims: Iterable[Claim], found: Mapping[str, Finding], seed: int = 0) -> Ledger:
    """The ledger of `claims` from findings by name of their experiment, and from what was published."""
    found = {PUBLISHED: published(), **found}
    entries = tuple(claim.judged(found.get(claim.experiment)) for claim in claims)
    used = [found[name] for name in dict.fromkeys(entry.experiment for entry in entries) if name in found]
    facts: dict[str, str | float] = {"seed": seed, "backends": "none"}
    for one in used:
        facts |= {key: fact for key, fact in one.facts.items() if key.startswith(("without", "backends"))}
    seconds = sum(float(one.facts.get("seconds", 0.0)) for one in used)
    return Ledger(entries, {**facts, "seconds": round(seconds, 2)})
