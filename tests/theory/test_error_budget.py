"""The error budget and the worst case against attention computed for real.

What a class or the inner model predicts is compared from both sides with arithmetic that is written out here, each
rounding where the model has it. Kernels of a library differ between processors, and are compared from above only.
"""

import functools
import math

import numpy as np
import pytest
import torch

from attnlab.theory import classify, error_budget, precision_classes

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
HALVES = ("float16", "bfloat16")


def draw(seed, dtype, n=256, d=64, std=1.0, heads=2, mean=0.0):
    g = torch.Generator().manual_seed(seed)
    # drawn in float64: numbers of fewer bits have exact products, and their sums hardly round
    q, k, v = (torch.randn(1, heads, n, d, generator=g, dtype=torch.float64) for _ in range(3))
    return [x.to(DTYPES[dtype]) for x in (q * std + mean, k + mean, v)]


def arrays(tensors):
    return [(x if x.dtype == torch.float64 else x.float()).numpy() for x in tensors]


def eager(q, k, v, *, causal=False):
    return softmax((q @ k.mT) * (1 / math.sqrt(q.shape[-1])), causal) @ v


def softmax(s, causal):
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    return torch.softmax(s, -1)


def stored_eager(q, k, v, *, causal=False):
    """Each step stored in the dtype of the tensors, sums in float32; a scale that is a power of two rounds nothing."""
    return stored(stored(softmax(stored_scores(q, k), causal), q) @ v.float(), q)


def stored_scores(q, k):
    return stored(stored(q.float() @ k.float().mT, q) * (1 / math.sqrt(q.shape[-1])), q)


def stored(x, like):
    """`x` rounded to the dtype of `like`, in float32."""
    return x.to(like.dtype).float()


def weights_rounded(q, k, v, *, causal=False):
    weights = softmax(q.float() @ k.float().mT / math.sqrt(q.shape[-1]), causal)
    return (weights.to(v.dtype).float() @ v.float()).to(v.dtype)


def output_rounded(q, k, v, *, causal=False):
    return eager(q.float(), k.float(), v.float(), causal=causal).to(v.dtype)


def in_order(q, k, v, *, block=None, one_number=False):
    """Attention of one head in the arrays' own format, every partial sum rounded: what the inner model describes.

    block : terms that are summed in order before their sums are. one_number : weights are exp(s − ln Z).
    """
    s = summed((q[0, 0, :, c, None] * k[0, 0, None, :, c] for c in range(q.shape[3])), block)
    s = s * s.dtype.type(q.shape[3] ** -0.5)
    top = s.max(axis=1, keepdims=True)
    z = summed(np.exp(s - top).T, block)[:, None]
    p = np.exp(s - (top + np.log(z))) if one_number else np.exp(s - top)
    o = summed((p[:, j, None] * v[0, 0, j] for j in range(k.shape[2])), block)
    return (o if one_number else o / z)[None, None]


def summed(terms, block=None):
    """Of arrays, one after another, or of blocks of them."""
    terms = list(terms)
    step = block or len(terms)
    sums = [functools.reduce(np.add, terms[at : at + step]) for at in range(0, len(terms), step)]
    return functools.reduce(np.add, sums)


def relative(result, budget):
    found = result.double().numpy() if isinstance(result, torch.Tensor) else result
    error = found - budget.output
    return float(np.linalg.norm(error) / np.linalg.norm(budget.output))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("std", [1.0, 4.0])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_measured_errors_meet_the_budget_of_their_class(dtype, causal, std, seed):
    tensors = draw(seed, dtype, std=std)
    options = {"dtype": dtype, "causal": causal, "score_roundings": 1}
    budgets = precision_classes(*arrays(tensors), **options)  # the scale 1/8 is exact: one rounding
    cases = (output_rounded, weights_rounded, stored_eager)
    for compute, (name, budget) in zip(cases, budgets.items(), strict=True):
        ratio = relative(compute(*tensors, causal=causal), budget) / budget.relative
        allowed = 0.03 + 5 * budget.relative_scatter
        assert abs(ratio - 1) < allowed, (name, ratio)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_classes_are_told_apart(dtype):
    tensors = draw(9, dtype, n=1024)
    budgets = precision_classes(*arrays(tensors), dtype=dtype)
    named = [classify(relative(f(*tensors), budgets["scores rounded"]), budgets) for f in
             (output_rounded, weights_rounded, stored_eager)]  # fmt: skip
    assert named == ["full precision inside", "weights rounded", "scores rounded"]
    assert classify(1.0, budgets) is None


SIZES = [(64, 8, 1, 0), (256, 64, 1, 0), (256, 64, 8, 0), (600, 32, 1, 0), (128, 64, 1, 3)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "d", "std", "mean"), SIZES)
def test_no_library_kernel_has_more_than_the_inner_model(dtype, n, d, std, mean, seed):
    """The model bounds a sum in order, one term after another. Kernels sum in lanes, by how many is their affair."""
    tensors = draw(seed, dtype, n=n, d=d, std=std, mean=mean)
    budget = error_budget(*arrays(tensors), output_dtype=dtype)
    fused = torch.nn.functional.scaled_dot_product_attention(*tensors)
    for result in (eager(*tensors), fused):
        assert relative(result, budget) < 1.25 * budget.relative * (1 + 3 * budget.relative_scatter)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "d", "std", "mean"), SIZES)
def test_the_inner_model_is_the_error_of_sums_in_order(n, d, std, mean, seed):
    """From both sides. Not in float64, whose truth is a library's: it would be compared with sums in order or not."""
    inputs = [x[:, :1] for x in arrays(draw(seed, "float32", n=n, d=d, std=std, mean=mean))]
    budget = error_budget(*inputs, output_dtype="float32")
    ratio = relative(in_order(*inputs), budget) / budget.relative
    slack = 3 * budget.relative_scatter
    assert 0.6 * (1 - slack) < ratio < 1.1 * (1 + slack)


@pytest.mark.parametrize("mean", [0, 3])
def test_the_model_of_blocked_sums_is_the_error_of_blocked_sums(mean):
    """A mean of 3 makes partial sums grow: the drift that a sum in order has, blocks of 8 have far less of."""
    inputs = [x[:, :1] for x in arrays(draw(0, "float32", n=256, d=64, mean=mean))]
    whole, blocked = (error_budget(*inputs, output_dtype="float32", summation_block=b) for b in (None, 8))
    ratio = relative(in_order(*inputs, block=8), blocked) / blocked.relative
    assert 0.4 < ratio < 1.1
    assert blocked.relative < 0.7 * whole.relative


@pytest.mark.parametrize(("d", "roundings"), [(64, 1), (48, 2)])
@pytest.mark.parametrize("dtype", HALVES)
def test_the_number_of_score_roundings_shows_in_the_pooled_error(dtype, d, roundings):
    """1/√64 is a power of two and 1/√48 is not, so that eager attention rounds its scores once or twice."""
    seeds, measured, predicted, scatter = 8, 0.0, 0.0, 0.0
    for seed in range(seeds):
        tensors = draw(100 + seed, dtype, n=384, d=d, std=4.0)
        budget = precision_classes(*arrays(tensors), dtype=dtype, score_roundings=roundings)["scores rounded"]
        measured += relative(stored_eager(*tensors), budget) ** 2
        predicted += budget.relative**2
        scatter += budget.relative_scatter / seeds
    assert abs(measured / predicted - 1) < 0.03 + 5 * 2 * scatter / math.sqrt(seeds)


@pytest.mark.parametrize(
    ("std", "detour", "one_number"),
    [(1.0, 0.0, False), (8.0, 0.0, False), (1.0, 30.0, False), (1.0, 0.0, True), (8.0, 0.0, True)],
)
def test_a_recursive_float32_attention_has_the_error_of_the_model(std, detour, one_number):
    """`detour` sends the partial sums of every score far out and back, the score itself staying small.

    `one_number`: weights are exp(s − ln Z). The model allows that, so that who keeps m and l apart has less.
    """
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 1, 600, 64)).astype(np.float32) for _ in range(3))
    q *= np.float32(std)
    q[..., 0] += np.float32(detour)
    q[..., -1] -= np.float32(detour)
    k[..., [0, -1]] += np.float32(detour)
    budget = error_budget(q, k, v, output_dtype="float32")
    ratio = relative(in_order(q, k, v, one_number=one_number), budget) / budget.relative
    assert (0.75 if one_number else 0.65) < ratio < 0.95


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("std", [1.0, 8.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_correct_result_exceeds_the_worst_case(dtype, std, causal, seed):
    tensors = draw(seed, dtype, n=96, d=16, std=std)
    inputs = arrays(tensors)
    budget = error_budget(*inputs, causal=causal, output_dtype=dtype)
    low = {"weights_dtype": dtype, "scores_dtype": dtype, "score_roundings": 2}
    options = {"causal": causal, "output_dtype": dtype, "worst_case": True}
    loose, tight = (error_budget(*inputs, **options, **one).worst_case for one in (low, {}))
    assert loose is not None and tight is not None
    if dtype in HALVES:
        assert (
            np.abs(output_rounded(*tensors, causal=causal).double().numpy() - budget.output) <= tight
        ).all()
    assert (np.abs(eager(*tensors, causal=causal).double().numpy() - budget.output) <= loose).all()
    assert (tight <= loose).all()


def written_out(q, k, v):
    """Softmax as its formula reads; each step is stored in the dtype of the tensors."""
    s = stored_scores(q, k)
    e = stored(torch.exp(stored(s - s.amax(-1, keepdim=True), q)), q)
    return stored(stored(e / stored(e.sum(-1, keepdim=True), q), q) @ v.float(), q)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("std", [0.02, 1.0, 8.0])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_softmax_that_is_written_out_has_the_error_of_any_unfused_form(dtype, std, seed):
    """Also where scores are nearly 0, so that what is left is e^{s − m}, its sum and the quotient."""
    tensors = draw(seed, dtype, std=std)
    budget = precision_classes(*arrays(tensors), dtype=dtype, any_unfused=True, worst_case=True)[
        "scores rounded"
    ]
    result = written_out(*tensors)
    assert 0.6 < relative(result, budget) / budget.relative < 1.1
    assert (np.abs(result.double().numpy() - budget.output) <= budget.worst_case).all()


@pytest.mark.parametrize("shift", [0.0, 1e3, -5e4])
@pytest.mark.parametrize("std", [1.0, 8.0])
def test_ln_z_in_one_number_stays_below_the_worst_case(std, shift):
    """All scores are moved alike, which moves ln Z and no weight; but for the rounding of ln Z.

    They are multiples of 2^-8, so that no score is rounded.
    """
    q, k, v = draw(6, "float32", n=70, d=16, std=std)
    q, k = (torch.round(8 * x) / 8 for x in (q, k))
    q[..., 0], k[..., 0] = 4.0, shift
    s = q @ k.transpose(-1, -2) * 0.25
    result = torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v
    budget = error_budget(*arrays([q, k, v]), output_dtype="float32", worst_case=True)
    error = result.double().numpy() - budget.output
    assert (np.abs(error) <= budget.worst_case).all()
    assert np.linalg.norm(error) < 1.1 * np.linalg.norm(budget.rms)
    if shift:
        apart = eager(q, k, v).double().numpy() - budget.output
        assert np.linalg.norm(error) > 20 * np.linalg.norm(apart)


def test_a_wrong_scale_is_outside_every_float32_budget():
    q, k, v = draw(2, "float32")
    budgets = precision_classes(*arrays([q, k, v]), dtype="float32")
    assert classify(relative(eager(q * 1.0001, k, v), budgets["scores rounded"]), budgets) is None


def test_chosen_rows_are_those_of_the_whole():
    inputs = arrays(draw(3, "bfloat16", n=50))
    options = {"output_dtype": "bfloat16", "causal": True, "worst_case": True}
    whole, part = error_budget(*inputs, **options), error_budget(*inputs, rows=[49, 0, 17], **options)
    for name in ("output", "rms", "worst_case"):
        expected = getattr(whole, name)[:, :, [49, 0, 17]]
        assert getattr(part, name) == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_blocks_of_rows_leave_no_seam(monkeypatch):
    inputs = arrays(draw(4, "float16", n=50))
    options = {"dtype": "float16", "causal": True}
    whole = precision_classes(*inputs, **options)["scores rounded"]
    monkeypatch.setattr("attnlab.theory.exact_attention._BLOCK", 7 * 50)
    parts = precision_classes(*inputs, **options)["scores rounded"]
    assert parts.rms == pytest.approx(whole.rms, rel=1e-12)
    assert parts.relative_scatter == pytest.approx(whole.relative_scatter, rel=1e-12)


def test_alignment_and_masks_show_the_stated_keys():
    q, k, v = arrays(draw(6, "float32", n=6, d=4))
    few = q[:, :, :2]
    for alignment, first in (("top_left", 1), ("bottom_right", 5)):
        seen = np.arange(6)[None, :] <= np.arange(2)[:, None] + first - 1
        aligned = error_budget(few, k, v, causal=alignment, output_dtype="float32", worst_case=True)
        masked = error_budget(few, k, v, mask=seen, output_dtype="float32", worst_case=True)
        for name in ("output", "rms", "worst_case"):
            assert getattr(aligned, name) == pytest.approx(getattr(masked, name), rel=1e-12)


def test_zero_values_have_no_relative_error():
    q, k, v = arrays(draw(8, "float32", n=4, d=4))
    budget = error_budget(q, k, 0 * v, output_dtype="float32")
    assert (budget.rms == 0).all()
    assert math.isnan(budget.relative)


def test_subnormal_float16_outputs_are_within_their_budget():
    q, k, v = draw(9, "float16", n=128)
    v = (v.float() * 1e-5).to(torch.float16)
    budgets = precision_classes(*arrays([q, k, v]), dtype="float16")
    budget = budgets["full precision inside"]
    error = output_rounded(q, k, v).double().numpy() - budget.output
    assert relative(output_rounded(q, k, v), budget) / budget.relative == pytest.approx(1, abs=0.05)
    assert (np.abs(error) / budget.rms).max() < 6


X = np.zeros((1, 2, 3, 4))
GOOD = {"q": X, "k": X, "v": X, "output_dtype": "float32"}


@pytest.mark.parametrize(
    "change",
    [
        {"q": X[0]},
        {"q": X[..., :3]},
        {"q": X[:, :, :0]},
        {"q": X[:, :1]},
        {"k": X[:, :, :2]},
        {"v": np.full_like(X, math.nan)},
        {"k": np.full_like(X, math.inf)},
        {"output_dtype": "float8"},
        {"weights_dtype": "int8"},
        {"inner_dtype": "half"},
        {"score_roundings": 1},
        {"score_roundings": -1, "scores_dtype": "float16"},
        {"scale": math.nan},
        {"rows": [3]},
        {"rows": []},
        {"rows": [0.5]},
        {"mask": np.ones((3, 3))},
        {"mask": np.ones((2, 3), dtype=bool)},
        {"causal": "middle"},
        {"weights_stored": "twice"},
        {"summation_block": 0},
    ],
)
def test_bad_input_is_refused_in_one_line(change):
    with pytest.raises(ValueError, match="must") as caught:
        error_budget(**{**GOOD, **change})
    assert "\n" not in str(caught.value)


def test_a_measured_error_that_is_no_number_is_refused():
    budgets = precision_classes(X, X, X + 1, dtype="float16")
    for bad in (math.nan, -1.0, math.inf):
        with pytest.raises(ValueError, match="relative_error must"):
            classify(bad, budgets)
    with pytest.raises(ValueError, match="source must be one of"):
        budgets["weights rounded"].restricted_to("luck")
