"""Backends: one implementation of attention each.

``discovery.py``: what a backend file may define, and how it is found and loaded. ``keywords.py``: the keywords of its
``attend``. ``backend.py``: what a backend declines, and its calls, also over packed and paged keys, and in a multi-head
block. ``contender.py``: a backend with settings, ``torch_sdpa[threads=1]``. ``attend.py``: `attnlab.attend` and other
functions that call a backend on NumPy arrays.
"""
