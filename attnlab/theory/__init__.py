"""What theory predicts: pure functions of numbers, in float64.

NumPy alone is imported here; SciPy loads with the first formula that needs it.
"""

from .dot_product import DotProductMoments, dot_product_moments
from .dropout import dropout_variance
from .error_budget import ErrorBudget, error_budget, worst_case_bound
from .exact_gradients import exact_gradients
from .floating_point import (
    ROUNDING_RMS,
    FloatFormat,
    float_format,
    overflow_threshold,
    softmax_relative_error_bound,
    underflow_threshold,
    unit_roundoff,
)
from .gradient_budget import GRADIENT_CLASSES, GradientBudgets, gradient_budgets
from .initialisation import initial_logit_variance
from .jacobian import SpectralBounds, jacobian_norm_squared, jacobian_spectral_bounds
from .precision_class import classify, precision_classes
from .random_energy import RandomEnergy, critical_beta, extreme_level, freezing_head_dim, random_energy
from .random_energy_limits import (
    frozen_tail,
    poisson_dirichlet_entropy,
    poisson_dirichlet_largest,
    random_energy_frozen,
    random_energy_high_temperature,
)
from .random_inputs import attention_under_random_inputs, average_over_query_norm
from .scalings import (
    LogitMoments,
    aligned_logit,
    is_frozen,
    largest_possible_weight,
    required_gap,
    scalable_softmax_beta,
    scalable_softmax_freezing_length,
    soft_cap_largest_weight,
)
from .score_law import (
    score_cdf,
    score_characteristic_function,
    score_density,
    score_moment_generating_function,
)
from .softmax_identities import (
    Bounds,
    Thermodynamics,
    entropy_slope_in_temperature,
    log_partition_bounds,
    output_response,
    power_sum,
    scaled_log_partition_bounds,
    softmax_weights,
    temperature_response,
    thermodynamics,
    total_variation_bound,
    zero_temperature_weights,
)

__all__ = [
    "GRADIENT_CLASSES",
    "ROUNDING_RMS",
    "Bounds",
    "DotProductMoments",
    "ErrorBudget",
    "FloatFormat",
    "GradientBudgets",
    "LogitMoments",
    "RandomEnergy",
    "SpectralBounds",
    "Thermodynamics",
    "aligned_logit",
    "attention_under_random_inputs",
    "average_over_query_norm",
    "classify",
    "critical_beta",
    "dot_product_moments",
    "dropout_variance",
    "entropy_slope_in_temperature",
    "error_budget",
    "exact_gradients",
    "extreme_level",
    "float_format",
    "freezing_head_dim",
    "frozen_tail",
    "gradient_budgets",
    "initial_logit_variance",
    "is_frozen",
    "jacobian_norm_squared",
    "jacobian_spectral_bounds",
    "largest_possible_weight",
    "log_partition_bounds",
    "output_response",
    "overflow_threshold",
    "poisson_dirichlet_entropy",
    "poisson_dirichlet_largest",
    "power_sum",
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
    "score_density",
    "score_moment_generating_function",
    "soft_cap_largest_weight",
    "softmax_relative_error_bound",
    "softmax_weights",
    "temperature_response",
    "thermodynamics",
    "total_variation_bound",
    "underflow_threshold",
    "unit_roundoff",
    "worst_case_bound",
    "zero_temperature_weights",
]
