"""OpenVINO on NumPy arrays, which its requests read and write where they lie: models, precision, attestation."""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.library import Call
from attnlab.libraries.host import Programs
from attnlab.libraries.numpy_library import NO_BFLOAT16, NumPy


@functools.cache
def _core() -> Any:
    return importlib.import_module("openvino").Core()


def _request(model: Callable[[], Any], precision: str, threads: int) -> Any:
    settings = {
        # OpenVINO's own default is bfloat16 where the processor has it, whatever the inputs are
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    return _core().compile_model(model(), "CPU", settings).create_infer_request()


#: where the backends compute: a request of a compiled model for each model, precision and number of threads
REQUESTS = Programs(_request)


def compute(
    model: Callable[[], Any], precision: str, inputs: Sequence[NDArray[Any]], output: NDArray[Any]
) -> None:
    """Compute a model's one output into `output`; no array is copied, so all have to be contiguous.

    model : makes the model; equal (and hashable) for equal models. precision : what it may compute in, "f32", "bf16" or
    "f16".
    """
    request = REQUESTS.get(model, precision)
    tensor = importlib.import_module("openvino").Tensor
    for index, array in enumerate(inputs):
        request.set_input_tensor(index, tensor(_open(array), shared_memory=True))
    request.set_output_tensor(0, tensor(output, shared_memory=True))
    request.infer()


def product(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """The product of two square matrices of float32 by the operator MatMul."""
    output = np.empty_like(one)
    compute(_multiplied(len(one)), "f32", (one, other), output)
    return output


@lru_cache(maxsize=16)
def _multiplied(size: int) -> Callable[[], Any]:
    def model() -> Any:
        openvino = importlib.import_module("openvino")
        operators = importlib.import_module("openvino.opset13")
        inputs = [operators.parameter([size, size], np.float32) for _ in range(2)]
        return openvino.Model([operators.matmul(*inputs, False, False)], inputs)

    return model


def _open(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory without NumPy's lock: OpenVINO takes no locked array, and writes into no input."""
    if array.flags.writeable:
        return array
    memory = memoryview((ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)).cast("B")
    return np.ndarray(array.shape, array.dtype, memory)


#: what the plugin calls the precisions in which it can compute
_CAPABILITIES = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}


def lacks(precision: str) -> str | None:
    """Why OpenVINO does not compute in `precision` on this processor, or None."""
    has = _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if _CAPABILITIES[precision] in has:
        return None
    return f"OpenVINO's CPU plugin has no {precision} on this processor, only {', '.join(sorted(has))}"


#: what a node of the executed graph tells of itself, and which are no computation
_TOLD = ("layerType", "primitiveType")
_FRAME = ("Input", "Output", "Const", None)


class OpenVino(NumPy):
    """See `attnlab.backends.library.Library`."""

    name = "openvino"
    modules = ("openvino",)
    runs = "attnlab runs OpenVINO"
    arrays_of = "numpy"
    product = staticmethod(product)
    programs = REQUESTS
    lacking: ClassVar[Mapping[str, str]] = {
        "bfloat16": NO_BFLOAT16,
        "float16": "OpenVINO's answers in float16 are off by up to 0.5 %, more than the rounding of float16 explains",
        "float64": "OpenVINO's CPU plugin computes float64 in float32",
    }
    without_gradients = "OpenVINO has no automatic differentiation"

    @classmethod
    def opened(cls) -> Any:
        """The module, without its telemetry.

        On import it would start a process that reports its use over the network, beside whoever is timed, and keep an
        identifier in the home folder. Where that package cannot be imported it does without.
        """
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        return super().opened()

    def attest(self, call: Call) -> str:
        """What computes the attention, by OpenVINO's own graph of the model that ran: kernels and their precision."""
        found = []
        for compiled in (request.get_compiled_model() for request in REQUESTS.used_by(call)):
            for node in compiled.get_runtime_model().get_ops():
                about = node.get_rt_info()
                told = {
                    name: str(getattr(about[name], "value", about[name])) for name in _TOLD if name in about
                }
                if told.get("layerType") not in _FRAME:
                    found.append(f"{told.get('layerType')} {told.get('primitiveType')}")
            found.append(f"allowed {compiled.get_property('INFERENCE_PRECISION_HINT').get_type_name()}")
        return ", ".join(dict.fromkeys(found))


LIBRARIES = (OpenVino,)
