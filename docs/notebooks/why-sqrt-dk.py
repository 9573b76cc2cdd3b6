# %% [markdown]
# # Why divide by √d_k?
#
# Attention weights the values by softmax(q·k / √d_k). Every paper writes the root; few say what happens without it.
# This lecture predicts what happens, then measures it *through* PyTorch's own kernel, which never shows its weights,
# and ends with what the root does not do. It needs no GPU and takes some seconds.
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
# ## 1. A dot product grows with its dimension
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
# So dividing by √d_k leaves a standard deviation of 1, whatever d_k is. But why should a *softmax* care how large its
# inputs are?
#
# ## 2. A softmax freezes
#
# Take n logits that are independent and normal with standard deviation β. Two things compete. A key far above the
# others has an exponentially larger weight; but there are many more keys in the middle. For small β the many win, and
# the weights are spread out. For large β the few win: one key takes nearly everything. In physics this is the *random
# energy model* (Derrida 1981), and it changes from one regime to the other at β_c = √(2 ln n).

# %%
beta_c = attnlab.theory.critical_beta(N)
print(f"over n = {N} keys the softmax freezes around β = {beta_c:.2f}")
print(
    f"that is an unscaled head dimension of {attnlab.theory.freezing_head_dim(N):.1f}"
)

# %% [markdown]
# Without the root β is about √d_k, so that everything beyond 14 dimensions is frozen over 1024 keys. With it β is 1,
# far on the other side, for every d_k. **That is the reason for the root**: not that large numbers are bad, but that
# the softmax has a temperature at which it freezes, and common head dimensions lie beyond it.
#
# ## 3. Seen through a fused kernel
#
# `attnlab.observe` reads entropy, largest weight and more of every row out of any backend. PyTorch's
# `scaled_dot_product_attention` returns outputs only; cleverly chosen keys and values make these outputs tell the
# rest. The curves are exact integrals of the theory, drawn before anything was measured.

# %% Largest weight and entropy of a row against d_k, unscaled and scaled: measured points lie on the predicted curves
dims = (2, 4, 8, 16, 32, 64, 128)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for name, scale, colour in (
    ("unscaled", lambda d: 1.0, "#D55E00"),
    ("times 1/√d_k", lambda d: d**-0.5, "#1F5FBF"),
):
    theory = [
        attnlab.theory.attention_under_random_inputs(N, d, scale(d)) for d in dims
    ]
    rows = [attnlab.observe("torch_sdpa", *drawn(d), scale=scale(d)) for d in dims]
    left.plot(dims, [one.largest_weight for one in theory], color=colour)
    left.plot(
        dims, [one.largest_weight.mean() for one in rows], "o", color=colour, label=name
    )
    right.plot(dims, [one.entropy for one in theory], color=colour)
    right.plot(
        dims, [one.entropy.mean() for one in rows], "o", color=colour, label=name
    )
for axes, title in (
    (left, "largest weight of a row"),
    (right, "entropy of a row, in nats"),
):
    axes.axvline(attnlab.theory.freezing_head_dim(N), color="grey", linestyle=":")
    axes.set(xscale="log", xlabel="d_k", title=title)
left.legend()

# %% [markdown]
# The dotted line is d_k = 2 ln n. Lines are theory, points are measured through the kernel. The scaled softmax hardly
# notices d_k.
#
# ## 4. What it does to learning
#
# The gradient that reaches the logits passes through the softmax's Jacobian J = diag p − p pᵀ. In a frozen row p is
# nearly one 1 and zeros, J is nearly 0, and nothing is learned from that row. How small is it?

# %%
for name, scale in (("unscaled", 1.0), ("scaled", 64**-0.5)):
    rows = attnlab.observe("torch_sdpa", *drawn(64, queries=256), scale=scale)
    size = np.sqrt(rows.jacobian_norm_squared)
    exact = (
        attnlab.theory.attention_under_random_inputs(N, 64, scale).jacobian_norm_squared
        ** 0.5
    )
    print(
        f"{name:8}  rms {np.sqrt((size**2).mean()):.3f} (predicted {exact:.3f}), "
        f"median {np.median(size):.3f}, rows below 0.001: {(size < 1e-3).mean():.1%}"
    )

# %% [markdown]
# Look twice. On average the *unscaled* Jacobian is larger! What is often taught, "without the root the gradients
# vanish", is true of a tail of rows: a few percent at d_k = 64, more with d_k, and the median row only from d_k of
# about 1,600 on. The scaled rows have small Jacobians too, because their weight is spread over a thousand keys, but
# none of them is dead.
#
# ## 5. What the root does not do
#
# It removes d_k, and nothing else. Components with a standard deviation σ leave a variance of σ⁴; a mean that is not
# 0 adds to it; and training moves all of this. What counts in a trained model is β against √(2 ln n):

# %%
for sigma in (1.0, 2.0, 3.0):
    found = attnlab.theory.attention_under_random_inputs(N, 64, sigma**2 / 8)
    print(
        f"components of standard deviation {sigma}: β = {sigma**2:.0f}, largest weight {found.largest_weight:.3f}"
    )

# %% [markdown]
# Nor does a fixed scale follow the length of the sequence: β_c grows with n, so that a head that is sharp at 1,000
# keys spreads out at 100,000.

# %%
for n in (1_000, 10_000, 100_000):
    found = attnlab.theory.random_energy(n, beta=4.0)
    limit = attnlab.theory.critical_beta(n)
    print(
        f"n = {n:7,}   β_c = {limit:.2f}   largest weight at β = 4: {found.largest_weight:.3f}"
    )

# %% [markdown]
# ## Questions to take home
#
# 1. Predict before you run it: what is the largest weight over 1024 keys with the scale 1/d_k in place of 1/√d_k?
#    Then ask `attnlab.theory.attention_under_random_inputs(1024, 64, 1 / 64)`.
# 2. Run section 3 through another backend (`attnlab.backends()` lists them). Should the points move? Do they?
# 3. Queries and keys of ±1 in place of normal numbers: which of the predictions change, and from which d_k on do you
#    see it?
#
# [The theory](../theory.md) goes on from here, and `attnlab numerics` measures all of it through every backend of
# your machine.
