"""What theory predicts: pure functions of numbers and of a `Problem`, in float64.

NumPy alone is imported here; SciPy loads with the first formula that needs it.
"""

from .error_budget import ErrorBudget as ErrorBudget
from .error_budget import classify as classify
from .error_budget import error_budget as error_budget
from .error_budget import log_sum_budget as log_sum_budget
from .error_budget import merged_budget as merged_budget
from .error_budget import precision_classes as precision_classes
from .exact_attention import LogSums as LogSums
from .exact_attention import exact_gradients as exact_gradients
from .exact_attention import log_sums as log_sums
from .gradient_budget import GRADIENT_CLASSES as GRADIENT_CLASSES
from .gradient_budget import GradientBudgets as GradientBudgets
from .gradient_budget import gradient_budgets as gradient_budgets
from .laws import Bounds as Bounds
from .laws import DotProductMoments as DotProductMoments
from .laws import dot_product_moments as dot_product_moments
from .laws import initial_logit_variance as initial_logit_variance
from .laws import jacobian_norm_squared as jacobian_norm_squared
from .laws import largest_possible_weight as largest_possible_weight
from .laws import log_partition_bounds as log_partition_bounds
from .laws import output_response as output_response
from .laws import required_gap as required_gap
from .laws import scalable_softmax_beta as scalable_softmax_beta
from .laws import scalable_softmax_freezing_length as scalable_softmax_freezing_length
from .laws import scaled_log_partition_bounds as scaled_log_partition_bounds
from .laws import score_cdf as score_cdf
from .laws import score_characteristic_function as score_characteristic_function
from .laws import soft_cap_largest_weight as soft_cap_largest_weight
from .numbers import ROUNDING_RMS as ROUNDING_RMS
from .numbers import FloatFormat as FloatFormat
from .numbers import float_format as float_format
from .numbers import overflow_threshold as overflow_threshold
from .numbers import underflow_threshold as underflow_threshold
from .numbers import unit_roundoff as unit_roundoff
from .random_energy import RandomEnergy as RandomEnergy
from .random_energy import attention_under_random_inputs as attention_under_random_inputs
from .random_energy import critical_beta as critical_beta
from .random_energy import extreme_level as extreme_level
from .random_energy import freezing_head_dim as freezing_head_dim
from .random_energy import random_energy as random_energy
from .random_energy import random_energy_frozen as random_energy_frozen
from .random_energy import random_energy_high_temperature as random_energy_high_temperature
