"""What theory predicts: pure functions of numbers and of a `Problem`, in float64.

NumPy alone is imported here; SciPy loads with the first formula that needs it.
"""

from .error_budget import ErrorBudget, classify, error_budget, precision_classes
from .exact_attention import exact_gradients
from .gradient_budget import GRADIENT_CLASSES, GradientBudgets, gradient_budgets
from .identities import (
    Bounds,
    initial_logit_variance,
    jacobian_norm_squared,
    largest_possible_weight,
    log_partition_bounds,
    output_response,
    required_gap,
    scalable_softmax_beta,
    scalable_softmax_freezing_length,
    scaled_log_partition_bounds,
    soft_cap_largest_weight,
)
from .log_sum_budget import LogSums, log_sum_budget, log_sums, merged_budget
from .numbers import (
    ROUNDING_RMS,
    FloatFormat,
    float_format,
    overflow_threshold,
    underflow_threshold,
    unit_roundoff,
)
from .random_energy import (
    RandomEnergy,
    attention_under_random_inputs,
    critical_beta,
    extreme_level,
    freezing_head_dim,
    random_energy,
    random_energy_frozen,
    random_energy_high_temperature,
)
from .scores import DotProductMoments, dot_product_moments, score_cdf, score_characteristic_function

__all__ = [
    "GRADIENT_CLASSES",
    "ROUNDING_RMS",
    "Bounds",
    "DotProductMoments",
    "ErrorBudget",
    "FloatFormat",
    "GradientBudgets",
    "LogSums",
    "RandomEnergy",
    "attention_under_random_inputs",
    "classify",
    "critical_beta",
    "dot_product_moments",
    "error_budget",
    "exact_gradients",
    "extreme_level",
    "float_format",
    "freezing_head_dim",
    "gradient_budgets",
    "initial_logit_variance",
    "jacobian_norm_squared",
    "largest_possible_weight",
    "log_partition_bounds",
    "log_sum_budget",
    "log_sums",
    "merged_budget",
    "output_response",
    "overflow_threshold",
    "precision_classes",
    "random_energy",
    "random_energy_frozen",
    "random_energy_high_temperature",
    "required_gap",
    "scalable_softmax_beta",
    "scalable_softmax_freezing_length",
    "scaled_log_partition_bounds",
    "score_cdf",
    "score_characteristic_function",
    "soft_cap_largest_weight",
    "underflow_threshold",
    "unit_roundoff",
]
