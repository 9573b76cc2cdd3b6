"""Whether answers are right: exact results in float64, the errors that rounding may cause, and the check of a backend.

``reference.py``: exact results. ``error_budget.py``, ``gradient_budget.py``: the errors that rounding may cause.
``expected.py``: exact results and error budgets of one question. ``weighing.py``: whether one answer is right.
``questions.py``: the questions of a check. ``answering.py``: the process that runs a backend. ``check.py``: the check
of a backend. ``support.py``: what a backend supports.
"""
