"""Requirement: the variance of logits at initialisation, from the projections' law alone.

With |x|² = d_model (after a layer norm) and weights of variance σ_w², a component of q or k has variance
d_model σ_w², and so Var(logit) = (d_model σ_w²)² under the scale 1/√d_k, at any d_k.
"""

from .checks import one_of, real, whole

SCHEMES = ("fused_xavier", "xavier", "linear_default", "normal")


def initial_logit_variance(model_dim: int, scheme: str, weight_std: float | None = None) -> float:
    """Var(q·k/√d_k) at initialisation for an input with |x|² = model_dim, dimensionless.

    model_dim : E >= 1.
    scheme : "fused_xavier", one Xavier-uniform (3E)×E matrix as in `nn.MultiheadAttention`, ¼;
        "xavier", separate E×E Xavier matrices, 1; "linear_default", `nn.Linear`'s uniform ±1/√E with bias,
        (1/3 + 1/(3E))²; "normal", N(0, weight_std²), (E σ_w²)².
    weight_std : σ_w >= 0, for "normal" and only there.

    Glorot and Bengio 2010 for Xavier. Raises ValueError for other schemes or sizes, or a missing or idle
    `weight_std`.
    """
    width = whole("model_dim", model_dim, 1)
    one_of("scheme", scheme, SCHEMES)
    if (scheme == "normal") != (weight_std is not None):
        need = "needs weight_std" if scheme == "normal" else "takes no weight_std"
        raise ValueError(f"scheme {scheme!r} {need}")
    if weight_std is not None:
        return (width * real("weight_std", weight_std, least=0.0) ** 2) ** 2
    component = {"fused_xavier": 1 / 2, "xavier": 1.0, "linear_default": 1 / 3 + 1 / (3 * width)}[scheme]
    return component * component
