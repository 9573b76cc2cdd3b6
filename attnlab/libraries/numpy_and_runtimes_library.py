"""NumPy, and the libraries that compute on its arrays without copying them: Numba, ONNX Runtime, OpenVINO and ggml.

For each of the last three, a function computes the only output of a model into an array (`run_onnx`, `run_openvino`,
`run_ggml`). A model is made once for each number of threads and cached (`Programs`). `Programs` also records which
models a call uses, and `attest` reads from these models what ran.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.library import Call, Library, Programs, Recipe
from attnlab.workload.number_formats import round_to

#: why libraries that compute on NumPy's arrays get no bfloat16
NO_BFLOAT16 = "NumPy, in whose arrays attnlab hands it over, has no bfloat16"


class NumPy(Library):
    """NumPy; also the base class of the libraries that compute on its arrays."""

    name = "numpy"
    before_fork: ClassVar[tuple[str, ...] | None] = ("numpy",)
    runs = "NumPy computes"
    functions = np
    #: those of the BLAS libraries that its wheels and distributions contain
    thread_variables: ClassVar[tuple[str, ...]] = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    )
    lacking: ClassVar[Mapping[str, str]] = {"bfloat16": "NumPy has no bfloat16"}
    without_gradients = "NumPy has no automatic differentiation"

    @classmethod
    def opened(cls) -> Any:
        """The first of its modules, or NumPy, which is always installed. Raises Unavailable if a module is missing."""
        return super().opened() if cls.modules else np

    def from_numpy(self, array: NDArray[Any], dtype: str) -> NDArray[Any]:
        return np.ascontiguousarray(array if array.dtype == np.bool_ else round_to(array, dtype))

    def to_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(array)

    def shares_memory(self, one: Any, other: Any) -> bool:
        arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        return arrays and np.shares_memory(one, other)

    def taking(self, places: NDArray[np.int64]) -> Callable[[Any], Any]:
        return lambda array: array.take(places, axis=0)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """float16 is computed in float32, because NumPy's product in float16 is slow; the bias is added in place."""
        wide = [one.astype(np.float32) if one.dtype == np.float16 else one for one in (x, weight, bias)]
        found = wide[0] @ wide[1].T
        found += wide[2]
        return found.astype(x.dtype, copy=False)


class Numba(NumPy):
    """Loops that Numba compiles, on NumPy's arrays."""

    name = "numba"
    modules = ("numba", "llvmlite")
    before_fork = ("numba",)
    runs = "attnlab's Numba loops run"
    arrays_of = "numpy"
    thread_variables = ("NUMBA_NUM_THREADS",)
    lacking: ClassVar[Mapping[str, str]] = {"bfloat16": "Numba has no bfloat16"}
    without_gradients = "Numba has no automatic differentiation"

    @classmethod
    def opened(cls) -> Any:
        """Numba with its threads started. If both share OpenMP, this changes PyTorch's threads too; it is undone."""
        from threadpoolctl import threadpool_limits

        numba = super().opened()
        with threadpool_limits():
            numba.get_num_threads()
        return numba

    def attest(self, call: Call) -> str:
        """The threading layer that ran the loop, and for which instructions it was compiled."""
        call()
        cpu = importlib.import_module("llvmlite.binding").get_host_cpu_name()
        threads, layer = self.module.get_num_threads(), self.module.threading_layer()
        return f"LLVM for {cpu}, {threads} threads of Numba's {layer}"

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        self.module.set_num_threads(min(count, self.module.config.NUMBA_NUM_THREADS))


# -- ONNX Runtime --------------------------------------------------------------------------------------


def _session(model: Recipe, threads: int, profiled: bool = False) -> Any:
    """A session with its own threads, which spin for a while after a call: ONNX Runtime's default.

    profiled : the session writes a profile into a new folder.
    """
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    # the arena would keep the memory of the first call, and so hide the memory of later calls; without the arena calls
    # were as fast at n = 128, 512 and 2048
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # errors are raised anyway
    if profiled:
        options.enable_profiling = True
        options.profile_file_prefix = tempfile.mkdtemp(prefix="attnlab-onnxruntime-") + "/profile"
    return runtime.InferenceSession(model(), options, providers=["CPUExecutionProvider"])


#: a session for each model and number of threads; an observed call gets a session that writes a profile
_SESSIONS = Programs(_session, functools.partial(_session, profiled=True))


def run_onnx(model: Recipe, inputs: Mapping[str, NDArray[Any]], output: NDArray[Any]) -> None:
    """Compute the one output of an ONNX model into `output`. No array is copied, so all must be contiguous.

    model : makes the serialised model.
    """
    session = _SESSIONS.get(model)
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    name = session.get_outputs()[0].name
    binding.bind_output(name, "cpu", 0, output.dtype.type, output.shape, output.ctypes.data)
    session.run_with_iobinding(binding)


#: the opset of the current MatMul
_MATMUL_OPSET = 13
#: the version of the file format, which ONNX Runtime must know, and the opset of ONNX Runtime's own operators
_FORMAT, _OWN_OPSET = 11, 1
#: an operator, the names of its inputs, and its attributes; the output of the N-th node is called ``after N``
Node = tuple[str, Sequence[str], Mapping[str, Any]]


def one_operator(
    operator: str, opset: int, inputs: Mapping[str, str], dtype: str, *, own: bool, **attributes: Any
) -> bytes:
    """A model of one operator; `inputs` and `own` as for `graph`."""
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
    """A serialised model that computes `nodes` in order; the output of the last node is that of the model.

    inputs : the dtype of each input by name, "" for an input that is left out; all shapes are open. dtype : that of the
    output and the `constants`. own : the operators are ONNX Runtime's own (domain com.microsoft), not the standard's.
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


def _onnx_product(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """The product of two square matrices by the operator MatMul."""
    output, inputs = np.empty_like(one), {"one": one, "other": other}
    run_onnx(Recipe(_onnx_matmul, (str(one.dtype),)), inputs, output)
    return output


def _onnx_matmul(dtype: str) -> bytes:
    return one_operator("MatMul", _MATMUL_OPSET, {"one": dtype, "other": dtype}, dtype, own=False)


def packed(array: NDArray[Any]) -> NDArray[Any]:
    """(batch, heads, length, dim) as (batch, length, heads · dim); a copy unless it already has this layout."""
    batch, _, length, _ = array.shape
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(batch, length, -1)


def unpacked(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """The inverse of `packed`, a view."""
    batch, length, _ = array.shape
    return array.reshape(batch, length, heads, -1).swapaxes(1, 2)


class OnnxRuntime(NumPy):
    """ONNX Runtime's sessions, with threads of their own."""

    name = "onnxruntime"
    modules = ("onnxruntime", "onnx")
    before_fork = ("onnxruntime",)
    runs = "attnlab runs ONNX Runtime"
    arrays_of = "numpy"
    product = staticmethod(_onnx_product)
    programs = _SESSIONS
    lacking: ClassVar[Mapping[str, str]] = {
        "bfloat16": NO_BFLOAT16,
        "float64": "ONNX Runtime has no kernel for Attention in float64; in smaller operators it rounds the scale",
    }
    without_gradients = "ONNX Runtime's inference sessions have no automatic differentiation"

    def attest(self, call: Call) -> str:
        """Operators and execution providers, from ONNX Runtime's own profile of one call."""
        found: dict[str, set[str]] = {}
        for file in [Path(session.end_profiling()) for session in _SESSIONS.used_by(call)]:
            for event in json.loads(file.read_text(encoding="utf-8")):
                if event.get("cat") == "Node" and "provider" in event["args"]:
                    found.setdefault(event["args"]["provider"], set()).add(event["args"]["op_name"])
            shutil.rmtree(file.parent)
        return "; ".join(f"{provider}: {' + '.join(sorted(names))}" for provider, names in found.items())


# -- OpenVINO ------------------------------------------------------------------------------------------


@functools.cache
def openvino_core() -> Any:
    """OpenVINO's plugins on this machine."""
    return importlib.import_module("openvino").Core()


def _request(model: Recipe, precision: str, threads: int) -> Any:
    settings = {
        # by default OpenVINO computes in bfloat16 if the processor has it, whatever the inputs are
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    return openvino_core().compile_model(model(), "CPU", settings).create_infer_request()


#: a request of a compiled model for each model, precision and number of threads
_REQUESTS = Programs(_request)


def run_openvino(model: Recipe, precision: str, inputs: Sequence[NDArray[Any]], output: NDArray[Any]) -> None:
    """Compute the one output of an OpenVINO model into `output`. No array is copied, so all must be contiguous.

    model : makes the model. precision : the format in which it may compute: "f32", "bf16" or "f16".
    """
    request = _REQUESTS.get(model, precision)
    tensor = importlib.import_module("openvino").Tensor
    for index, array in enumerate(inputs):
        request.set_input_tensor(index, tensor(_unlocked(array), shared_memory=True))
    request.set_output_tensor(0, tensor(output, shared_memory=True))
    request.infer()


def _openvino_product(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """The product of two square matrices of float32 by the operator MatMul."""
    output = np.empty_like(one)
    run_openvino(Recipe(_openvino_matmul, (len(one),)), "f32", (one, other), output)
    return output


def _openvino_matmul(size: int) -> Any:
    operators = importlib.import_module("openvino.opset13")
    inputs = [operators.parameter([size, size], np.float32) for _ in range(2)]
    return importlib.import_module("openvino").Model([operators.matmul(*inputs, False, False)], inputs)


def _unlocked(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory, writeable: OpenVINO refuses read-only arrays, although it does not write into inputs."""
    if array.flags.writeable:
        return array
    memory = memoryview((ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)).cast("B")
    return np.ndarray(array.shape, array.dtype, memory)


#: the properties that are read from a node of the executed graph; the types of nodes that compute nothing
_TOLD = ("layerType", "primitiveType")
_FRAME = ("Input", "Output", "Const", None)


class OpenVino(NumPy):
    """OpenVINO's requests of compiled models."""

    name = "openvino"
    modules = ("openvino",)
    runs = "attnlab runs OpenVINO"
    arrays_of = "numpy"
    product = staticmethod(_openvino_product)
    programs = _REQUESTS
    lacking: ClassVar[Mapping[str, str]] = {
        "bfloat16": NO_BFLOAT16,
        "float16": "OpenVINO's answers in float16 are off by up to 0.5 %, more than the rounding of float16 explains",
        "float64": "OpenVINO's CPU plugin computes float64 in float32",
    }
    without_gradients = "OpenVINO has no automatic differentiation"

    @classmethod
    def opened(cls) -> Any:
        """The module, without its telemetry.

        On import OpenVINO would start a process that reports its use over the network, while something else is timed,
        and store an identifier in the home folder. Without the telemetry package it does neither.
        """
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        return super().opened()

    def attest(self, call: Call) -> str:
        """Kernels and their precision, from OpenVINO's own graph of the model that ran."""
        found = []
        for compiled in (request.get_compiled_model() for request in _REQUESTS.used_by(call)):
            for node in compiled.get_runtime_model().get_ops():
                about = node.get_rt_info()
                told = {
                    name: str(getattr(about[name], "value", about[name])) for name in _TOLD if name in about
                }
                if told.get("layerType") not in _FRAME:
                    found.append(f"{told.get('layerType')} {told.get('primitiveType')}")
            found.append(f"allowed {compiled.get_property('INFERENCE_PRECISION_HINT').get_type_name()}")
        return ", ".join(dict.fromkeys(found))


# -- ggml ----------------------------------------------------------------------------------------------

_TYPES = {"float32": "GGML_TYPE_F32", "float16": "GGML_TYPE_F16"}
#: sets of vector instructions that ggml may be built for, best first
_INSTRUCTIONS = ("avx512", "avx2", "avx", "sve", "neon")


class Layout(NamedTuple):
    """The memory layout of an array of four axes. Strides in bytes; that of an axis of length 1 as if contiguous."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: NDArray[Any]) -> Layout:
        """The layout of `array`."""
        strides, within = [], array.itemsize
        for length, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
            strides.append(within if length == 1 else stride)
            within = strides[-1] * length
        return cls(str(array.dtype), array.shape, tuple(reversed(strides)))


class Graph:
    """A graph with one result. Its inputs and its output lie in NumPy's memory, set for each call, not in ggml's.

    Memory for intermediate results is allocated in every call and freed after it.
    """

    def __init__(self, recipe: Recipe, layouts: Sequence[Layout], threads: int) -> None:
        ggml = self._ggml = importlib.import_module("ggml")
        room = 16 * ggml.ggml_tensor_overhead() + ggml.ggml_graph_overhead()
        context = ggml.ggml_init(ggml.ggml_init_params(mem_size=room, mem_buffer=None, no_alloc=True))
        weakref.finalize(self, ggml.ggml_free, context)
        self._inputs = [_tensor(ggml, context, layout) for layout in layouts]
        self._result = recipe(ggml, context, self._inputs)
        self._graph = ggml.ggml_new_graph(context)
        ggml.ggml_build_forward_expand(self._graph, self._result)
        nodes = [ggml.ggml_graph_node(self._graph, at) for at in range(ggml.ggml_graph_n_nodes(self._graph))]
        self._between = [(one, ggml.ggml_nbytes(one)) for one in nodes[:-1]]
        self._plan = ggml.ggml_graph_plan(self._graph, threads, None)
        self._work = np.empty(self._plan.work_size, dtype=np.uint8)
        self._plan.work_data = self._work.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))

    def compute(self, inputs: Sequence[NDArray[Any]], output: NDArray[Any]) -> None:
        """Compute the result of `inputs`, in the layouts of this graph, into `output`, which is contiguous."""
        for tensor, array in zip(self._inputs, inputs, strict=True):
            tensor.contents.data = array.ctypes.data
        self._result.contents.data = output.ctypes.data
        taken = []
        for tensor, size in self._between:
            node = tensor.contents
            if node.view_src:  # computed in place
                node.data = node.view_src.contents.data + node.view_offs
            else:
                taken.append(np.empty(size, dtype=np.uint8))
                node.data = taken[-1].ctypes.data
        status = self._ggml.ggml_graph_compute(self._graph, ctypes.byref(self._plan))
        if status:
            raise RuntimeError(f"ggml could not compute its graph (status {status})")

    def told(self) -> str:
        """Its operators with the formats of their inputs, and the number of threads."""
        ggml, found = self._ggml, []
        for index in range(ggml.ggml_graph_n_nodes(self._graph)):
            node = ggml.ggml_graph_node(self._graph, index).contents
            read = [ggml.ggml_type_name(one.contents.type).decode() for one in node.src if one]
            found.append(f"{ggml.ggml_op_name(node.op).decode()} of {' '.join(read)}")
        return f"{', '.join(found)}, {self._plan.n_threads} threads"


def _tensor(ggml: Any, context: Any, layout: Layout) -> Any:
    """A tensor without memory. ggml puts the last axis first."""
    kind = getattr(ggml, _TYPES[layout.dtype])
    tensor = ggml.ggml_new_tensor_4d(context, kind, *reversed(layout.shape))
    for axis, stride in enumerate(reversed(layout.strides)):
        tensor.contents.nb[axis] = stride
    return tensor


#: a graph for each recipe, layouts of its inputs, and number of threads
_GRAPHS = Programs(Graph)


def run_ggml(recipe: Recipe, inputs: Sequence[NDArray[Any]], output: NDArray[Any]) -> None:
    """Compute the graph of `recipe` on `inputs`, which have four axes, into `output`.

    recipe : makes the tensor that is computed, from the module, a context and the input tensors.
    """
    _GRAPHS.get(recipe, tuple(map(Layout.of, inputs))).compute(inputs, output)


class Ggml(NumPy):
    """Graphs of ggml's operators."""

    name = "ggml"
    runs = "attnlab runs ggml"
    modules = ("ggml",)
    arrays_of = "numpy"
    programs = _GRAPHS
    lacking: ClassVar[Mapping[str, str]] = {
        "bfloat16": NO_BFLOAT16,
        "float64": "ggml has no attention in float64",
    }
    without_gradients = "ggml's attention has no backward pass"

    def attest(self, call: Call) -> str:
        """Operators, formats and threads of the graphs that one call computes, and the vector instructions."""
        graphs = dict.fromkeys(graph.told() for graph in _GRAPHS.used_by(call))
        built = [one for one in _INSTRUCTIONS if getattr(self.module, f"ggml_cpu_has_{one}")()]
        return f"{'; '.join(graphs)}, {built[0].upper() if built else 'no vector instructions'}"

    def versions(self) -> dict[str, str]:
        own = f"{self.module.ggml_version().decode()} ({self.module.ggml_commit().decode()})"
        return {**super().versions(), "ggml": own, "ggml-python": str(self.module.__version__)}


LIBRARIES = (NumPy, Numba, OnnxRuntime, OpenVino, Ggml)
