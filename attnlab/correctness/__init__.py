"""Is an answer right? The truth in float64, the error that rounding may cause, and the examination of a backend.

``reference.py``: the truth. ``error_budget.py``, ``gradient_budget.py``: allowed errors, derived. ``expected.py``:
truth and budgets of one question. ``weighing.py``: is one answer right? ``questions.py``: what is asked.
``answering.py``: the process of a backend. ``check.py``: the examination. ``support.py``: what a backend can do.
"""
