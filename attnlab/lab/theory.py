"""What theory predicts: pure functions of numbers and of a `Inputs`, in float64.

NumPy alone is imported here; SciPy loads with the first formula that needs it.
"""

from attnlab.correctness.error_budget import ErrorBudget as ErrorBudget
from attnlab.correctness.error_budget import classify as classify
from attnlab.correctness.error_budget import error_budget as error_budget
from attnlab.correctness.error_budget import precision_classes as precision_classes
from attnlab.correctness.gradient_budget import GRADIENT_CLASSES as GRADIENT_CLASSES
from attnlab.correctness.gradient_budget import gradient_budgets as gradient_budgets
from attnlab.correctness.numbers import ROUNDING_RMS as ROUNDING_RMS
from attnlab.correctness.numbers import float_format as float_format
from attnlab.correctness.numbers import overflow_threshold as overflow_threshold
from attnlab.correctness.numbers import underflow_threshold as underflow_threshold
from attnlab.correctness.numbers import unit_roundoff as unit_roundoff
from attnlab.lab.laws import dot_product_moments as dot_product_moments
from attnlab.lab.laws import initial_logit_variance as initial_logit_variance
from attnlab.lab.laws import jacobian_norm_squared as jacobian_norm_squared
from attnlab.lab.laws import largest_possible_weight as largest_possible_weight
from attnlab.lab.laws import output_response as output_response
from attnlab.lab.laws import required_gap as required_gap
from attnlab.lab.laws import scalable_softmax_beta as scalable_softmax_beta
from attnlab.lab.laws import scalable_softmax_freezing_length as scalable_softmax_freezing_length
from attnlab.lab.laws import soft_cap_largest_weight as soft_cap_largest_weight
from attnlab.lab.random_energy import attention_under_random_inputs as attention_under_random_inputs
from attnlab.lab.random_energy import critical_beta as critical_beta
from attnlab.lab.random_energy import extreme_level as extreme_level
from attnlab.lab.random_energy import freezing_head_dim as freezing_head_dim
from attnlab.lab.random_energy import random_energy as random_energy
