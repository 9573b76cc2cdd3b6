"""What is written around each experiment of the numerical chapter: theory before the figure, its caption, the lesson.

Only what holds whatever was measured stands here; every measured number comes from the rows of a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnlab.experiments.finding import Row

#: names of quantities and conditions as a reader writes them; any other is shown as it is
WORDS: Mapping[str, str] = {
    "entropy": "entropy H (nats)",
    "entropy against temperature": "entropy H (nats) against temperature",
    "largest_weight": "largest weight",
    "largest_weight on the map": "largest weight on the map",
    "largest_weight against temperature": "largest weight against temperature",
    "participation": "Σp²",
    "participation against temperature": "Σp² against temperature",
    "variance": "variance of the logits",
    "log_partition": "ln Z",
    "mean_energy": "β⟨s⟩",
    "heat_capacity": "heat capacity β² Var_p(s)",
    "keys": "n",
    "head_dim": "d_k",
    "rule": "logits",
    "scheme": "initialisation",
    "norm": "below",
    "axis": "varied",
    "beta": "β",
    "beta / critical": "β / β_c",
    "temperature / freezing": "T / T_c",
    "gap": "gap Δ",
    "dtype": "format",
    "logit_std": "std of the logits",
}


@dataclass(frozen=True)
class Pick:
    """Rows for the short table: those of `quantity` whose conditions are among `where`; None for one that is absent.

    Through one backend, or through each where `every`.
    """

    quantity: str
    where: Mapping[str, Sequence[str | float | None]] = field(default_factory=dict)
    every: bool = False

    def takes(self, row: Row) -> bool:
        """Whether `row` is one of them."""
        return row.quantity == self.quantity and all(
            row.where.get(key) in allowed for key, allowed in self.where.items()
        )


@dataclass(frozen=True)
class Chapter:
    """What theory says, what the figure shows, what follows, and which rows show it best."""

    theory: str
    caption: str
    lesson: str
    picks: tuple[Pick, ...]


_SIZE = {"keys": (1024,)}

CHAPTERS: Mapping[str, Chapter] = {
    "formula": Chapter(
        theory="There is a score for every pair of query and key, s_ij = scale · q_i·k_j. The weights of a query "
        "are positive and add up to 1 over the keys it sees, p_ij = e^{s_ij} / Σ_l e^{s_il}, and its output is "
        "the mean of the values with these weights, o_i = Σ_j p_ij v_j (Vaswani et al. 2017, section 3.2.1). So "
        "the numbers of queries and keys are independent, as are the widths of keys and values; the same "
        "permutation of all tokens permutes the output; and under a causal mask the output of a prefix does not "
        "depend on what follows it.",
        caption="Left: relative error of each backend over the budget of an implementation that rounds all it may; "
        "left of the line the error is explained by rounding. Right: share of the pairs of query and key that have a "
        "weight, without a mask and with a causal one, in float64; lines are predicted.",
        lesson="The table of scores is not symmetric, even for n queries and n keys, unless queries and keys are "
        "equal. A score is a length times a cosine: a longer key can outweigh a better aligned one. The output is "
        "linear in the values, and never larger than the largest of them.",
        picks=(
            Pick("error / error budget", every=True),
            Pick("‖S − Sᵀ‖² / n²"),
            Pick("share of pairs with a weight"),
            Pick("rms of Σ s v / rms of Σ p v"),
            Pick("share answered right"),
        ),
    ),
    "variance_scaling": Chapter(
        theory="A logit is the dot product of a query and a key, q·k = Σ_c q_c k_c, over d_k components. Where "
        "these are independent with mean 0 and variances σ_q² and σ_k², its variance is d_k σ_q² σ_k², whatever "
        "their distribution is. Its kurtosis is 3 + (κ_q κ_k − 3)/d_k, κ being that of the components: it tends "
        "to the normal law's as d_k grows, and the product of normal queries with keys of ±1 is exactly normal "
        "at every d_k. At σ_q = σ_k = 1 the factor 1/√d_k leaves a variance of 1, and 1/d_k, the scale of μP, "
        "leaves 1/d_k. Logits of one matrix share queries and keys; the standard errors allow for that.",
        caption="Lines are theory, points are measured. Top left: variance of the logits read through each backend, "
        "at three scales. Top right: excess kurtosis of q·k for seven families of components; a normal law has 0. "
        "Bottom: how far the law of q·k/√d_k is from the normal one, by its characteristic function and its "
        "distribution function, for normal components. Bars are five standard errors.",
        lesson="Divide by √d_k where the components have unit variance and mean 0. The factor removes d_k and "
        "nothing else: components of standard deviation σ leave a variance of σ⁴, means that are not 0 add to it, and "
        'components of unequal variance ("anisotropic") count for fewer dimensions '
        "than they are: where few of them dominate, as in the family shown, the law does not become normal however "
        "large d_k is.",
        picks=(
            Pick("variance", {"head_dim": (4, 64, 1024)}),
            Pick("slope of ln variance on ln d_k", {"family": (None,)}),
            Pick("kurtosis of q·k", {"family": ("normal",), "head_dim": (1, 16, 64)}),
            Pick("variance of the scores over the weights", {"shared": (0.8,)}),
            Pick("variance of the scores within a row", {"shared": (0.8,)}),
        ),
    ),
    "saturation": Chapter(
        theory="Given its query, a row of standard normal inputs has n independent normal logits of standard "
        "deviation β: about √d_k without the scale, about 1 with it. The softmax over them is the random energy "
        "model (Derrida 1981). It freezes at β_c = √(2 ln n), which unscaled is d_k = 2 ln n: beyond, at a "
        "fixed β/β_c, a few keys keep a fixed share of the weight however many keys there are. At a fixed β they "
        "lose it again as n grows, since β_c grows. The curves are exact integrals at this n; at any finite n the "
        "transition is a gradual one.",
        caption="Top: entropy, largest weight and effective number of keys 1/Σp² against d_k, unscaled and scaled; "
        "lines are exact, marks are measured through each backend. Bottom left: measured largest weight of unscaled "
        "attention over n and d_k, with the freezing line. Bottom middle and right: rows whose logits have standard "
        "deviation β, against the temperature T = 1/β in units of T_c = 1/β_c; dashed and dotted lines are the "
        "limits far below and far above freezing, bars five standard errors.",
        lesson="For components of unit variance 1/√d_k keeps β at 1 at every d_k, below β_c (3.7 at n = 1024). In this "
        "model it is the standard deviation of a row's logits that decides, against √(2 ln n), and d_k enters through "
        "it alone.",
        picks=(
            Pick("largest_weight", {**_SIZE, "head_dim": (4, 16, 64, 256)}),
            Pick("entropy", {**_SIZE, "head_dim": (4, 64, 256)}),
        ),
    ),
    "vanishing_gradient": Chapter(
        theory="The gradient that reaches the logits of a row is Jg: g is the gradient of its weights, J = diag "
        "p − ppᵀ the Jacobian of the softmax. For a g of independent components of unit variance E|Jg|² = ‖J‖_F² "
        "= S₂ − 2S₃ + S₂², S_k = Σp^k. It is small at both ends: (n − 1)/n² for equal weights, 0 where one key "
        "has all the weight; at n = 1024 its mean is largest at 1.5 times the freezing β. So at d_k = 64 the "
        "unscaled rows have the larger mean square, and some of them next to nothing; with d_k their share grows. "
        "The mean square is an exact integral. Shares and quantiles are sampled from the random energy model, "
        "over strata of its largest logit, and carry the error of that.",
        caption="Top left: root mean square of ‖J‖_F against the standard deviation β of the logits; the line is "
        "exact. Top middle: root mean square, median and 5 % quantile; bars are predicted. Top right: share of "
        "the rows whose ‖J‖_F is below x; lines join the predictions. Bottom left: share below 1e-3 against "
        "d_k, without the scale. Bottom middle: the median against n, with it. Bottom right: the length of dL/dq, "
        "the scale included, unscaled over scaled. Vertical bars are five standard errors.",
        lesson="That ‖J‖ vanishes (is below 1e-3) without 1/√d_k is true of a share of the rows, at n = 1024 by the "
        "sampled law 2.6 % at d_k = 64 and more than half from d_k ≈ 1,600 on; its root mean square over rows does "
        "not. And with the scale ‖J‖ falls as √(e/n) for large n, in the median as in the root mean square. All of "
        "this is for standard normal queries and keys, before any training.",
        picks=(
            Pick("mean ‖J‖²", _SIZE),
            Pick("median ‖J‖", _SIZE),
            Pick("5 % quantile of ‖J‖", _SIZE),
            Pick("share of rows below", {**_SIZE, "norm": (1e-3,)}),
            Pick("share of rows below 1e-3 against d_k"),
            Pick("median ‖J‖ against d_k"),
            Pick("median ‖J‖ against n"),
            Pick("mean ‖dL/ds‖² by autograd"),
            Pick("rms |dL/dq|, unscaled over scaled"),
            Pick("median |dL/dq|, unscaled over scaled"),
        ),
    ),
    "thermodynamics": Chapter(
        theory="The weights p_j = e^{βs_j}/Z are a Boltzmann distribution: energies −s_j, inverse temperature β "
        "(τ = 1/β), Z the partition function. So d ln Z/dβ = ⟨s⟩, the mean under p; d² ln Z/dβ² = Var_p(s); the "
        "entropy is H = ln Z − β⟨s⟩ and falls with β as dH/dβ = −β Var_p(s); and the output o answers to a logit "
        "by a covariance, ∂o/∂s_j = p_j(v_j − o). These hold for every row. A backend can miss them only by "
        "rounding (allowed: 1e-11) or by the difference quotient that stands for a derivative (1e-8).",
        caption="Left and middle: ln Z, β⟨s⟩, entropy and heat capacity of rows of normal logits; lines are exact, "
        "bars five standard errors, the dashed line the freezing point of infinitely many keys. Right: the largest "
        "violation of each identity through each backend; a violation of exactly 0 is drawn at the left edge.",
        lesson="ln Z, ⟨s⟩, H, Σp² and ‖J‖ can be read from the outputs of any backend, without the n × n matrix. "
        "The experiments on this page measure fused kernels that way.",
        picks=(
            *(
                Pick(identity, {"beta": (2.0,)})
                for identity in (
                    "d ln Z/dβ = ⟨s⟩",
                    "d²ln Z/dβ² = Var_p(s)",
                    "H = ln Z − β⟨s⟩",
                    "dH/dβ = −β Var_p(s)",
                    "Σp² = Z(2β)/Z(β)²",
                    "∂o/∂s_j = p_j (v_j − o)",
                    "do/dβ = Cov_p(v, s)",
                )
            ),
            Pick("|Σp − 1| in float32", every=True),
            Pick("|Σp − 1| / √n·u in float32", every=True),
            *(
                Pick(name, {"beta / critical": (0.75,)})
                for name in ("log_partition", "entropy", "heat_capacity")
            ),
        ),
    ),
    "length": Chapter(
        theory="At a fixed standard deviation β of independent normal logits H approaches ln n − β²/2 as n grows, so "
        "that H/ln n tends to 1: the softmax disperses (Veličković et al. 2024). For a few keys to keep a share of "
        "the weight at every n, β must grow at least as √(2 ln n). "
        "With β = s ln n (Nakanishi 2025) it passes that once ln n > 2/s². And whatever the logits are, no "
        "weight exceeds 1/(1 + (n − 1)e^{−Δ}), Δ being the gap between the largest and the smallest.",
        caption="Left and middle: entropy and mean largest weight against n for four rules of scaling; lines are "
        "exact, bars five standard errors; the dashed line is where β = ½ ln n passes √(2 ln n). Right: the largest "
        "weight that a gap Δ allows; each circle is a weight of .9 measured at the gap which .9 needs at that n.",
        lesson="At a fixed β H/ln n tends to 1 as n grows. A weight of .9 over n keys needs a gap "
        "of ln 9(n − 1): 4.9 at n = 16, 9.1 at 1024, 14.0 at 131072. A soft cap c keeps logits within 2c of each "
        "other, so that a weight of .9 is out of reach beyond 1 + e^{2c}/9 keys: 7 at c = 2, 2,448 at c = 5, "
        "987,346 at c = 8, and 3·10⁴² at c = 50, which Gemma 2 uses.",
        picks=(
            Pick("entropy", {"keys": (128, 16384)}),
            Pick("largest_weight", {"keys": (128, 16384)}),
            Pick("weight at the gap that .9 needs"),
            Pick("weight at the gap of a soft cap"),
        ),
    ),
    "overflow": Chapter(
        theory="e^x overflows above ln(max) of its format, and the sum of n of them, for equal logits, above "
        "ln(max) − ln n: exp(s)/Σ exp(s) then gives 1/∞ = 0 for every key, and above ln(max) ∞/∞, a NaN. A "
        "softmax that first subtracts the row's largest logit has no exponent above 0 and cannot overflow. It "
        "underflows: a key whose logit lies Δ below n − 1 equal ones has the weight e^{−Δ}/(n − 1), which is "
        "rounded to 0 below half the smallest subnormal number. A kernel that flushes subnormal numbers loses it "
        "earlier: as soon as e^{−Δ} is below the smallest normal one, where it flushes the exponential, or the "
        "weight itself, where it flushes that.",
        caption="A row of n keys, of which one lies Δ below all others: the Δ at which its weight becomes 0, for "
        "each format and backend. Broad lines are predicted for subnormal numbers kept, dotted ones for flushed; "
        "dashed ones show where e^x itself overflows. Two keys are left to the scalar remainder of vectorised code "
        "and 64 are not, so that one kernel may do both. Without a mark: a backend that has not the format.",
        lesson="Subtract the largest logit; over 1024 equal logits exp(s)/Σ exp(s) fails in float16 above a "
        "logit of 4.16, and with zeros instead of an error. Keep scores of float16 inputs in float32: q·k can "
        "pass 65504 while the scaled logit is harmless, and then no subtraction helps.",
        picks=(
            Pick("unshifted softmax overflows above"),
            Pick("share of unshifted weights that are 0"),
            Pick("gap at which a weight becomes 0"),
        ),
    ),
    "error_growth": Chapter(
        theory="Rounding to nearest has a relative error of root mean square 0.42 u, u being 2⁻²⁴ in float32, "
        "2⁻¹¹ in float16 and 2⁻⁸ in bfloat16. In 16 bits these roundings outweigh all others, and carried "
        "through the softmax they predict the error of an implementation that rounds to its input's format only "
        "the output (full precision inside), the weights as well, or the scores as well. A comparison there is "
        "two-sided: the error must lie within five standard errors or a quarter of the nearest of the three "
        "predictions; a quarter, because roundings of numbers with similar mantissas differ from the average one "
        "by up to 1.36. The rounding of the output is no estimate but the exact output rounded: with large "
        "logits one weight is near 1 and the output nearly a value, which the format holds already, so that it "
        "is smaller there. In float32 the roundings inside count as much as the others, and the budget adds them "
        "up as sums taken in order: a bound for the root mean square, which blocked or wider sums stay below. In "
        "the worst case, which grows with n, all roundings would conspire: a bound for every element.",
        caption="Relative error ‖output − truth‖/‖truth‖ of each backend in three formats, against the number of "
        "keys, the head dimension and the size of the logits; the truth is float64 on the inputs as cast. In 16 "
        "bits the three upper lines are predictions; in float32 one line bounds all classes. The naive loop, "
        "where it is shown, computes in float64 and rounds once.",
        lesson="A tolerance can be derived instead of chosen, and in 16 bits the error then tells what a backend "
        "rounds. With large logits it matters: where the scores are rounded the predicted error grows with their "
        "standard deviation, where the weights are it does not.",
        picks=(
            Pick(
                "relative error",
                {"axis": ("keys",), "value": (4096,), "dtype": ("float16", "bfloat16")},
                every=True,
            ),
            Pick(
                "relative error",
                {"axis": ("logit_std",), "value": (16.0,), "dtype": ("bfloat16",)},
                every=True,
            ),
            Pick(
                "relative error of a gradient",
                {"axis": ("keys",), "value": (512,), "dtype": ("bfloat16",)},
                every=True,
            ),
            Pick("share of the stored weights that are 0", {"keys": (4096,)}),
            Pick("relative error of rounded weights / unit roundoff", {"keys": (4096,)}),
            Pick("largest whole number that a running sum of ones reaches"),
        ),
    ),
    "multihead": Chapter(
        theory="For inputs with |x|² = d_model, as after a layer norm, and independent projection weights of "
        "variance σ_w², a logit scaled by 1/√d_k has the variance (d_model σ_w²)² at initialisation: 1 only for "
        "one of the four usual schemes. Each of H heads of dimension d_model/H projects the whole embedding and "
        "takes 1/H of the operations of a full-width head; together they take 4 n² d_model operations for QKᵀ "
        "and PV, whatever H is, and H n² exponentials. They meet in W_O alone. In a stack of layers with a "
        "pre-norm |x|² is d_model each time, and so the dot products have the same variance at every depth, "
        "whatever the scale; without a norm |x|² grows by what each layer adds.",
        caption="Left: variance of the logits at four initialisations; bars are predicted, circles measured. "
        "Middle: E(q·k)²/d_k by layer, with bars of five standard errors. Right: operations and processor time of "
        "one call against the number of heads at the same d_model, over "
        "those of one full-width head. The times are of one thread in this process, without a prediction: a "
        "tendency, not a benchmark.",
        lesson="Many heads do the same arithmetic as one; their time is another matter and differs by backend. "
        "And the scale 1/√d_k alone does not make the logits start with variance 1; the initialisation decides.",
        picks=(
            Pick("variance of the logits at initialisation"),
            Pick("Var(q·k) / d_k", {"layer": (1, 6)}),
            Pick("elements of other heads changed by one head"),
            Pick("FLOPs / (4 n² d_model)", {"heads": (1, 16), "counted": ("by PyTorch",)}),
            Pick("FLOPs of one head / (4 n² d_model)", {"heads": (1, 16), "counted": ("by PyTorch",)}),
            Pick("heads changed by one coordinate of the embedding"),
            Pick("‖heads after the weighted sum − heads before it‖ / ‖heads before it‖"),
            Pick("time / time of one head", {"heads": (16,)}, every=True),
            Pick("peak memory, MiB", every=True),
        ),
    ),
    "training": Chapter(
        theory="A small transformer (d_model 32, one head of dimension d_k, an MLP, pre-norm) learns associative "
        "recall: a sequence pairs 16 of 32 keys with values, and is asked for each key's value. Weights start with "
        "variance 1/d_model, so that E(q·k)² = d_k. Adam divides each gradient by its own size: a factor that makes "
        "all of them smaller changes nothing, one before the softmax changes how far a step moves the scores. A scale "
        "on the scores and a learning rate for W_q and W_k can therefore stand in for one another, and each way "
        "to make scores is compared at equal learning rates and at its own best one. The learning rate is constant, "
        "without warm-up and clipping.",
        caption="Above: share of runs that learned, with 95 % intervals (Wilson); marks of one learning rate stand "
        "side by side. Below, each at its best learning rate: median steps until nine of ten answers are right; loss, "
        "entropy of the weights and gradient over the steps, with bands of one standard error over the seeds.",
        lesson="For this model and task the factor widens the range of learning rates that work and shortens "
        "learning; by Adam 1/d_k and normalised queries and keys widen the range further, and at their own best "
        "learning rates runs learn without it too. Nothing of this has been shown for other models here.",
        picks=(
            Pick("learned with 1/√d_k − without"),
            Pick("learned with 1/√d_k − without, at the best learning rates", {"head_dim": ("all",)}),
            Pick("best learning rate"),
            Pick("share of runs that learned at their best learning rate"),
            Pick("steps to learn, median"),
            Pick("mean square of the scores at the start"),
        ),
    ),
}
