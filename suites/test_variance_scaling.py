"""Does the variance of the logits grow as d_k in the backends themselves, and does 1/sqrt(d_k) stop it?"""

from attnlab.pytest_plugin.plugin import Confirmed


def test_variance_scaling(confirmed: Confirmed, backend: str) -> None:
    """Var(logit) is scale² d_k at every d_k, scaled and unscaled, within five standard errors."""
    confirmed("variance_scaling", backend)
