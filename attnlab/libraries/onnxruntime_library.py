"""ONNX Runtime on NumPy arrays, which its sessions read and write where they lie: sessions, threads, attestation."""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.library import Call
from attnlab.libraries.host import Programs
from attnlab.libraries.numpy_library import NO_BFLOAT16, NumPy


def _session(model: Callable[[], bytes], threads: int, profile_folder: str = "") -> Any:
    """A session with threads of its own, which spin for a while after a call, ONNX Runtime's default."""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    # its arena would keep what the first call took, and no later call would show its memory; without it calls were
    # as fast at n = 128, 512 and 2048
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # what fails is raised, too
    if profile_folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(profile_folder) / "profile")
    return runtime.InferenceSession(model(), options, providers=["CPUExecutionProvider"])


def _profiled(model: Callable[[], bytes], threads: int) -> Any:
    return _session(model, threads, tempfile.mkdtemp(prefix="attnlab-onnxruntime-"))


#: where the backends compute: a session for each model and number of threads; one that keeps a profile while watched
SESSIONS = Programs(_session, _profiled)


def compute(model: Callable[[], bytes], inputs: Mapping[str, NDArray[Any]], output: NDArray[Any]) -> None:
    """Compute a model's one output into `output`; no array is copied, so all have to be contiguous.

    model : makes the model; equal (and hashable) for equal models.
    """
    session = SESSIONS.get(model)
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    name = session.get_outputs()[0].name
    binding.bind_output(name, "cpu", 0, output.dtype.type, output.shape, output.ctypes.data)
    session.run_with_iobinding(binding)


#: since which MatMul is as it is
_MATMUL_OPSET = 13
#: the version of the format, which ONNX Runtime must know, and the opset of ONNX Runtime's own operators
_FORMAT, _OWN_OPSET = 11, 1


#: an operator, the names of its inputs, and its attributes; its output is called ``after N`` for the N-th
Node = tuple[str, Sequence[str], Mapping[str, Any]]


def one_operator(
    operator: str, opset: int, inputs: Mapping[str, str], dtype: str, *, own: bool, **attributes: Any
) -> bytes:
    """A model of one operator, see `graph`. `inputs` are "" where one is left out, `own` as there."""
    names = [name if one else "" for name, one in inputs.items()]
    return graph([(operator, names, attributes)], opset, inputs, dtype, own=own)


def graph(
    nodes: Sequence[Node],
    opset: int,
    inputs: Mapping[str, str],
    dtype: str,
    *,
    own: bool = False,
    constants: Mapping[str, float] = {},
) -> bytes:
    """A model, serialised, that computes `nodes` one after the other; the output of the last is its own.

    inputs : the dtype of each by name, "" for one that is left out; all shapes are open. dtype : of its output and
    its `constants`. own : the operators are ONNX Runtime's own (domain com.microsoft), not of the standard.
    """
    onnx = importlib.import_module("onnx")
    helper, known = onnx.helper, onnx.TensorProto
    types = {"float32": known.FLOAT, "float16": known.FLOAT16, "bool": known.BOOL}
    types |= {"int32": known.INT32, "int64": known.INT64}
    outputs = [*(f"after {at}" for at in range(1, len(nodes))), "output"]
    made = [
        helper.make_node(operator, names, [output], domain="com.microsoft" if own else "", **attributes)
        for (operator, names, attributes), output in zip(nodes, outputs, strict=True)
    ]
    given = [helper.make_tensor_value_info(name, types[one], None) for name, one in inputs.items() if one]
    output = helper.make_tensor_value_info("output", types[dtype], None)
    fixed = [helper.make_tensor(name, types[dtype], (), [value]) for name, value in constants.items()]
    opsets = [helper.make_opsetid("", opset)]
    if own:
        opsets.append(helper.make_opsetid("com.microsoft", _OWN_OPSET))
    made_graph = helper.make_graph(made, "attention", given, [output], fixed)
    model = helper.make_model(made_graph, opset_imports=opsets, ir_version=_FORMAT)
    found: bytes = model.SerializeToString()
    return found


def product(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """The product of two square matrices by the operator MatMul."""
    output = np.empty_like(one)
    compute(_multiplied(str(one.dtype)), {"one": one, "other": other}, output)
    return output


@lru_cache(maxsize=4)
def _multiplied(dtype: str) -> Callable[[], bytes]:
    return partial(one_operator, "MatMul", _MATMUL_OPSET, {"one": dtype, "other": dtype}, dtype, own=False)


def packed(array: NDArray[Any]) -> NDArray[Any]:
    """(batch, heads, length, dim) as (batch, length, heads · dim); a copy where it does not lie so already."""
    batch, _, length, _ = array.shape
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(batch, length, -1)


def unpacked(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """The inverse of `packed`, a view."""
    batch, length, _ = array.shape
    return array.reshape(batch, length, heads, -1).swapaxes(1, 2)


class OnnxRuntime(NumPy):
    """See `attnlab.backends.library.Library`."""

    name = "onnxruntime"
    modules = ("onnxruntime", "onnx")
    before_fork = ("onnxruntime",)
    runs = "attnlab runs ONNX Runtime"
    arrays_of = "numpy"
    product = staticmethod(product)
    programs = SESSIONS
    lacking: ClassVar[Mapping[str, str]] = {
        "bfloat16": NO_BFLOAT16,
        "float64": "ONNX Runtime has no kernel for Attention in float64; in smaller operators it rounds the scale",
    }
    without_gradients = "ONNX Runtime's inference sessions have no automatic differentiation"

    def attest(self, call: Call) -> str:
        """Operators and execution providers by ONNX Runtime's own profile of one call."""
        found: dict[str, set[str]] = {}
        for file in [Path(session.end_profiling()) for session in SESSIONS.used_by(call)]:
            for event in json.loads(file.read_text(encoding="utf-8")):
                if event.get("cat") == "Node" and "provider" in event["args"]:
                    found.setdefault(event["args"]["provider"], set()).add(event["args"]["op_name"])
            shutil.rmtree(file.parent)
        return "; ".join(f"{provider}: {' + '.join(sorted(names))}" for provider, names in found.items())


LIBRARIES = (OnnxRuntime,)
