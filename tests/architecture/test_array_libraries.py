"""Ceilings are measured through the libraries that have a matrix product of their own, and through no other."""

from __future__ import annotations

import importlib

from attnlab.backends.library import array_libraries, library_names, products

BASES = {"NumPy": "numpy", "Torch": "torch"}


def test_a_library_on_the_arrays_of_another_says_so() -> None:
    for name in library_names():
        module = importlib.import_module(f"attnlab.libraries.{name}_library")
        own = [
            one
            for one in vars(module).values()
            if isinstance(one, type) and one.__module__ == module.__name__
        ]
        bases = {base.__name__ for one in own for base in one.__mro__[1:]}
        on = {BASES[base] for base in bases & BASES.keys()}
        assert on == ({module.ARRAYS_OF} if hasattr(module, "ARRAYS_OF") else set()), name


def test_no_ceiling_is_asked_of_a_library_without_a_product_of_its_own() -> None:
    assert {"numpy", "torch", "jax", "mlx"} <= set(array_libraries())
    assert {*array_libraries(), "openvino", "onnxruntime"} == set(products())
