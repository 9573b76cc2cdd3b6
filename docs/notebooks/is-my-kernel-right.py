# %% [markdown]
# # Is my kernel right?
#
# Your attention looks like PyTorch's. How close must it be? This page computes what an honest error may be, and lets
# `attnlab check` find three mistakes.
#
# The **error** here is ‖out − truth‖ / ‖truth‖, the length of the difference over the length of the answer. The
# **truth** is computed in float64 from the inputs as your kernel gets them.

# %%
from pathlib import Path

import numpy as np

import attnlab

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 4, 256, 64)).astype(np.float32) for _ in range(3))
truth = attnlab.attend("numpy_vectorized", *(x.astype(np.float64) for x in (q, k, v)))


def error(out):
    """Length of the difference over the length of the truth."""
    return np.linalg.norm(out - truth) / np.linalg.norm(truth)


# %% [markdown]
# ## 1. An honest error follows from where a kernel rounds
#
# Over log-uniform digits a stored number that is not subnormal is off by 0.42 u of itself (rms). The *unit roundoff*
# u is 2⁻⁸ in bfloat16. Carried through the softmax, these roundings predict the error. It depends on what is stored:
# only the output, the weights too, or the scores as well. A score is rounded once here (`score_roundings`): the
# scale, 1/8, is a power of two and rounds nothing. Other scales round it twice.

# %%
from attnlab.lab.theory import classify, error_budget
from attnlab.workload.inputs import Inputs

inputs = [x.astype("bfloat16").astype(np.float32) for x in (q, k, v)]
truth = attnlab.attend("numpy_vectorized", *(x.astype(np.float64) for x in inputs))
budgets = error_budget(
    Inputs.of(*inputs, dtype="bfloat16"), score_roundings=1
).classes()
for name, budget in budgets.items():
    print(f"{name:22} predicted error {budget.relative:.2e}")

# %%
for backend in ("torch_eager", "torch_sdpa", "torch_sdpa_math"):
    found = error(attnlab.attend(backend, *inputs, dtype="bfloat16"))
    print(f"{backend:16} measured error {found:.2e}: {classify(found, budgets)}")

# %% [markdown]
# At logits of order 1, as here, the error suggests what each implementation rounds.
#
# ## 2. A mistake that looks right
#
# A backend is a file with a function `attend`. This one has a scale that is one percent too large.

# %%
folder = Path("my_backends")
folder.mkdir()
RIGHT = '''"""My attention."""

import numpy as np

LIBRARY = "numpy"


def attend(query, key, value, *, causal, scale):
    scores = scale * query @ key.swapaxes(-1, -2)
    if causal:
        scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights @ value / weights.sum(axis=-1, keepdims=True)
'''
(folder / "right_one.py").write_text(RIGHT)
(folder / "wrong_scale.py").write_text(
    RIGHT.replace("scale * query", "1.01 * scale * query")
)

truth = attnlab.attend("numpy_vectorized", *(x.astype(np.float64) for x in (q, k, v)))
out = attnlab.attend("wrong_scale", q, k, v, folders=[folder])
print(
    f"error {error(out):.4f}; allclose within 0.02: {np.allclose(out, truth, rtol=0.02, atol=0.02)}"
)

# %% [markdown]
# A tolerance of 0.02 accepts this. The check asks it about 150 questions of different
# shapes, logits, masks and layouts. It weighs the size *and the direction* of each error. An error along the
# derivative of the answer in the scale suggests a wrong scale.

# %%
found = attnlab.check("wrong_scale", folders=[str(folder)], dtypes=["float32"])
print(found.passed, "|", found.reason)

# %% [markdown]
# ## 3. A mistake that only some inputs show
#
# A softmax that does not subtract the largest score is right for many inputs. It is wrong if an exponential or a sum
# overflows, and inaccurate or NaN if the largest exponential is subnormal or 0. A causal mask that is off by one is
# wrong at once.

# %%
(folder / "no_maximum.py").write_text(
    RIGHT.replace(" - scores.max(axis=-1, keepdims=True)", "")
)
(folder / "sees_ahead.py").write_text(RIGHT.replace("bool), 1)", "bool), 2)"))
for name in ("no_maximum", "sees_ahead"):
    found = attnlab.check(name, folders=[str(folder)], dtypes=["float32"])
    print(f"{name}: passed {found.passed}\n  {found.reason}")

# %% [markdown]
# ## 4. And the right one
#
# It passes. `declined` counts questions on options that its signature does not name.

# %%
found = attnlab.check("right_one", folders=[str(folder)], dtypes=["float32"])
one = found.formats["float32"]
print(
    f"passed {found.passed}, {one.asked} questions answered, {one.declined} more declined"
)
print(
    found.precision["float32"]["class"],
    f"{found.precision['float32']['budget_ratio']:.2f} of its budget",
)

# %% [markdown]
# From the command line: `attnlab check right_one --implementations my_backends`. [What the check
# catches, and how the tolerance is derived](../robustness.md).
