"""The exponent of a power law from measured points, with its standard error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def log_log_slope(x: Sequence[float], y: Sequence[float], y_error: Sequence[float]) -> tuple[float, float]:
    """Slope of ln y on ln x and its standard error, each point weighted by 1/(relative error)².

    Points are independent, the errors known and small beside y (weighted least squares; Press et al., Numerical
    Recipes, section 15.2). Raises ValueError for fewer than two different x, or an x, y or error not above 0.
    """
    log_x, values, errors = np.log(np.asarray(x, float)), np.asarray(y, float), np.asarray(y_error, float)
    if not (np.isfinite(log_x).all() and values.min() > 0 and errors.min() > 0):
        raise ValueError("a slope needs x, y and errors above 0")
    weights = (values / errors) ** 2
    centred = log_x - np.average(log_x, weights=weights)
    spread = float(weights @ centred**2)
    if spread <= 0:
        raise ValueError("a slope needs at least two different x")
    return float(weights @ (centred * np.log(values))) / spread, spread**-0.5
