"""Functions compiled by torch.compile, once for each kind of call: not again on the clock, and never run uncompiled.

torch.compile stores all compiled versions with the code of the function, searches them at every call, and after eight
kinds of arguments silently runs the function uncompiled. Here each kind of call has its own copy of the code, and a
function that cannot be compiled as a whole raises.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import types
import warnings
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
import torch.fx.experimental._config
from torch import Tensor

from attnlab.errors import Unavailable

#: with at least this many scores in a head a call is compiled for its own shapes, else once for many shapes
OWN_SHAPES = 2**16


def require_compiler() -> None:
    """Raises Unavailable if torch.compile cannot build its code: Inductor's loops for the CPU are C++."""
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise Unavailable(
            f"torch.compile needs a C++ compiler, and {compiler} is not there; install g++, or set CXX"
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise Unavailable(
            f"torch.compile needs Python's headers, and {headers} has none; install python3-dev"
        )


class Compiled:
    """`function`, compiled when a kind of call is first made. The result stays for the life of the process."""

    def __init__(self, function: Callable[..., Any]) -> None:
        assert isinstance(function, types.FunctionType), "what is compiled has code"
        self._function = function
        self._found: dict[Hashable, Callable[..., Any]] = {}

    def __call__(
        self,
        asked: tuple[Hashable, ...],
        arrays: tuple[Any, ...],
        arguments: tuple[Any, ...],
        own: bool = False,
        **options: Any,
    ) -> Any:
        """``function(*arguments, **options)``.

        asked : the numbers and flags among the arguments that decide the code; fractions are compiled in. arrays : the
        tensors among the arguments, query and key first, or None. own : compile for these shapes even if they are
        small. If shapes are left open, whole numbers in `asked` are left open too.
        """
        own = own or arrays[0].shape[2] * arrays[1].shape[2] >= OWN_SHAPES
        # torch.compile compiles 0 and 1 in; other whole numbers are left open
        opened = ["whole number" if type(one) is int and one not in (0, 1) else one for one in asked]
        kind = (
            asked if own else tuple(opened),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            *[None if one is None else _kind(one, own) for one in arrays],
        )
        found = self._found.get(kind)
        if found is not None:
            return found(*arguments, **options)
        compiled = torch.compile(_copied(self._function), fullgraph=True, dynamic=not own)
        with _settings():
            output = compiled(*arguments, **options)
        self._found[kind] = compiled
        return output


def _kind(array: Tensor, own: bool) -> Hashable:
    """The properties of an array that decide the code: its sizes, or, if they are left open, which of them are 1."""
    shape, strides = tuple(array.shape), array.stride()
    if own:
        return array.dtype, array.requires_grad, shape, strides
    return (
        array.dtype,
        array.requires_grad,
        array.is_contiguous(),
        tuple(one == 1 for one in shape),
        tuple(min(one, 2) for one in strides),
    )


def _copied(function: types.FunctionType) -> types.FunctionType:
    """The same function with code of its own."""
    copied = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _settings() -> ExitStack:
    """PyTorch's own settings while something is compiled."""
    stack = ExitStack()
    # PyTorch imports parts of its own now that warn of deprecation
    stack.enter_context(warnings.catch_warnings(action="ignore"))
    # a scale is compiled in: as an input it would keep Inductor from recognising attention
    stack.enter_context(torch._dynamo.config.patch(specialize_float=True))
    # no pool of processes that would stay during the measurement
    stack.enter_context(torch._inductor.config.patch(compile_threads=1))
    # two lengths that happen to be equal are two lengths
    stack.enter_context(torch.fx.experimental._config.patch(use_duck_shape=False))  # type: ignore[attr-defined]
    return stack
