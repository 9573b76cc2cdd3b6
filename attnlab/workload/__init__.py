"""Workloads, their inputs and their results, as plain data.

``workload.py``: the fields of a workload, and with them every option (``--causal``, ``--softcap``, ...); FLOPs, bytes.
``mask_kinds.py``: one class for each kind of mask. ``masks.py``: how masks are combined, counted and written.
``inputs.py``: arrays, checked; multi-head blocks; ALiBi. ``input_generation.py``: from a workload to its arrays.
``distributions.py``: how inputs are drawn, or which file holds them. ``number_formats.py``: float16 to float64.
``grid.py``: workloads from options and plan files. ``result.py``: outcomes, samples, accuracy, ceilings.
"""
