# %% [markdown]
# # Why divide by √d_k?
#
# Attention weights the values by softmax(q·k / √d_k). What happens without the root? This lecture predicts it, then
# measures it *through* PyTorch's own kernel, which never shows its weights.
#
# Words used: a **query** q and **keys** $k_1 \dots k_n$ are vectors of d_k numbers (the *head dimension*). The
# **logit** of a key is its score $s_j = \text{scale}\cdot q\cdot k_j$. The **weights** are
# $p_j = e^{s_j} / \sum_l e^{s_l}$.

# %%
import matplotlib.pyplot as plt
import numpy as np

import attnlab

rng = np.random.default_rng(0)
N = 1024  # keys


def drawn(d_k, queries=64):
    """Standard normal queries and keys of 16 heads, (batch, heads, length, d_k)."""
    q = rng.standard_normal((1, 16, queries, d_k))
    k = rng.standard_normal((1, 16, N, d_k))
    return q, k


# %% [markdown]
# ## 1. A dot product grows as √d_k
#
# q·k is a sum of d_k products. If all components are independent, with mean 0 and variance 1, each product has
# variance 1, and variances of independent numbers add up: Var(q·k) = d_k. Its standard deviation is √d_k. Measured,
# beside the prediction:

# %%
for d_k in (4, 16, 64, 256):
    q, k = drawn(d_k)
    logits = q @ k.swapaxes(-1, -2)
    predicted = attnlab.theory.dot_product_moments(d_k)
    print(
        f"d_k = {d_k:3}   variance {logits.var():6.1f}, predicted {predicted.variance:3.0f}"
    )

# %% [markdown]
# So dividing by √d_k leaves a standard deviation of 1. But why should a *softmax* care how large its inputs are?
#
# ## 2. A softmax freezes
#
# Take n logits that are independent and normal with standard deviation β. Two things compete. A key far above the
# others has an exponentially larger weight. But many more keys lie lower. For small β the many win, and the weights
# are spread out. For large β a few keys win. In physics this is the *random energy model* (Derrida
# 1981), and a softmax is **frozen** beyond β_c = √(2 ln n): a few keys hold the weight.
# The change is sharp only as n → ∞; at 1024 keys it is gradual.

# %%
beta_c = attnlab.theory.critical_beta(N)
print(f"over n = {N} keys the softmax freezes around β = {beta_c:.2f}")
print(f"that is an unscaled head dimension of {beta_c**2:.1f}")

# %% [markdown]
# Without the root β is about √d_k. Over 1024 keys, a softmax then freezes around 14 dimensions. With the
# root β is about 1 from some 16 dimensions on. **So the root keeps standard normal inputs from freezing.**
#
# ## 3. Seen through a fused kernel
#
# PyTorch's `scaled_dot_product_attention` returns outputs only. With keys and values chosen for the purpose,
# `attnlab.observe` reads entropy and largest weight of every row out of them. The curves join exact integrals of
# the theory.

# %% Unscaled, the largest weight grows with d_k to 0.8, entropy falls to 0.6 nats; scaled, both stay. Theory agrees
law = attnlab.theory.attention_under_random_inputs
curve = (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
dims = curve[::2]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for name, scale, mark, colour in (
    ("unscaled", lambda d: 1.0, "o", "#D55E00"),
    ("times 1/√d_k", lambda d: d**-0.5, "s", "#1F5FBF"),
):
    theory = [law(N, d, scale(d)) for d in curve]
    rows = [attnlab.observe("torch_sdpa", *drawn(d), scale=scale(d)) for d in dims]
    for axes, what in ((left, "largest_weight"), (right, "entropy")):
        measured = [getattr(one, what).mean() for one in rows]
        axes.plot(curve, [getattr(one, what) for one in theory], color=colour)
        axes.plot(dims, measured, mark, color=colour)
        axes.text(165, measured[-1], name, color=colour, va="center")
for axes, title, y in (
    (left, "Unscaled, few keys take the weight", "largest weight of a row"),
    (right, "Scaled, entropy stays at ln n − ½", "entropy of a row, in nats"),
):
    axes.axvline(beta_c**2, color="grey", linestyle=":")
    top = axes.get_xaxis_transform()
    axes.text(beta_c**2, 1.03, "d_k = 2 ln n", ha="center", transform=top)
    axes.set(xscale="log", xlabel="d_k", ylabel=y, title=f"{title}\n")
    axes.set_xticks(dims, dims)
    axes.minorticks_off()

# %% [markdown]
# ## 4. What it does to gradients
#
# The gradient that reaches the logits passes through the softmax's Jacobian J = diag p − p pᵀ. If one key had all the
# weight, J would be 0. Is it, in rows that are frozen?

# %%
for name, scale in (("unscaled", 1.0), ("scaled", 64**-0.5)):
    rows = attnlab.observe("torch_sdpa", *drawn(64, queries=256), scale=scale)
    size = np.sqrt(rows.jacobian_norm_squared)
    exact = law(N, 64, scale).jacobian_norm_squared ** 0.5
    print(
        f"{name:8}  rms {np.sqrt((size**2).mean()):.3f} (predicted {exact:.3f}), "
        f"median {np.median(size):.3f}, rows below 0.001: {(size < 1e-3).mean():.1%}"
    )

# %% [markdown]
# On average the *unscaled* Jacobian is larger here! "Without the root the gradients vanish" is true of a tail of rows:
# a few percent at d_k = 64, more at a larger d_k. The median row is below 0.001 only from a d_k between 1,024 and 4,096
# on, where about 45 % and 67 % of sampled rows are. Freezing leaves a few keys.
# J → 0 needs a single one: at fixed n most rows get there only at β ≫ β_c. The scaled rows have small Jacobians too,
# because their weight is spread: one over the mean of Σp² is some 375 keys.
# Whether a model *learns* without the root is another question, about training.
#
# ## 5. What the root does not do
#
# For independent components of mean 0 it removes d_k from the variance, and nothing else.
# Components with a standard deviation σ leave a variance of σ⁴. A mean of the
# queries raises the variance within a row, on average. A mean of the keys shifts a row, which the softmax does not
# see. Training may move all of this. For independent normal logits only β and n count:

# %%
for sigma in (1.0, 2.0, 3.0):
    found = attnlab.theory.attention_under_random_inputs(N, 64, sigma**2 / 8)
    print(
        f"components of standard deviation {sigma}: β = {sigma**2:.0f}, largest weight {found.largest_weight:.3f}"
    )

# %% [markdown]
# Nor does a fixed scale follow the length, because β_c grows with n. At β = 4 the largest weight averages .43 over
# 1,000 keys and .21 over 100,000 (`attnlab.theory.random_energy`).
#
# ## Questions to take home
#
# 1. Predict before you run it: what is the largest weight over 1024 keys with the scale 1/d_k in place of 1/√d_k?
#    Then ask `attnlab.theory.attention_under_random_inputs(1024, 64, 1 / 64)`.
# 2. Run section 3 through another backend (`attnlab.backends()` lists them). Should the points move?
# 3. Queries and keys of ±1 in place of normal numbers: which predictions change? (Among others
#    freezing, to d_k = 3.05 ln n.)
#
# [The theory](../theory.md) goes on from here, and `attnlab numerics` measures it through many backends.
