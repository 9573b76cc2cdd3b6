"""ggml on NumPy arrays, which its graphs read and write where they lie: graphs, threads, attestation."""

from __future__ import annotations

import ctypes
import importlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.library import Call
from attnlab.libraries.host import Programs
from attnlab.libraries.numpy_library import NO_BFLOAT16, NumPy

#: (the module, a context, input tensors) -> the tensor that is computed of them
Recipe = Callable[[Any, Any, Sequence[Any]], Any]

_TYPES = {"float32": "GGML_TYPE_F32", "float16": "GGML_TYPE_F16"}
#: sets of vector instructions that ggml may be built for, best first
_INSTRUCTIONS = ("avx512", "avx2", "avx", "sve", "neon")


class Layout(NamedTuple):
    """How an array of four axes lies in memory; strides in bytes, of an axis of length 1 as if it were contiguous."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: NDArray[Any]) -> Layout:
        """How `array` lies."""
        strides, within = [], array.itemsize
        for length, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
            strides.append(within if length == 1 else stride)
            within = strides[-1] * length
        return cls(str(array.dtype), array.shape, tuple(reversed(strides)))


class Graph:
    """A graph of one result, on memory that is named when it is computed. ggml allocates nothing for the arrays.

    What lies between inputs and result is taken anew in every call, and given back.
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
        """Compute the result of `inputs`, which lie as was said, into `output`, which is contiguous."""
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
        """Its operators with the formats of what they read, and the threads."""
        ggml, found = self._ggml, []
        for index in range(ggml.ggml_graph_n_nodes(self._graph)):
            node = ggml.ggml_graph_node(self._graph, index).contents
            read = [ggml.ggml_type_name(one.contents.type).decode() for one in node.src if one]
            found.append(f"{ggml.ggml_op_name(node.op).decode()} of {' '.join(read)}")
        return f"{', '.join(found)}, {self._plan.n_threads} threads"


def _tensor(ggml: Any, context: Any, layout: Layout) -> Any:
    """A tensor without memory; ggml names the last axis first."""
    kind = getattr(ggml, _TYPES[layout.dtype])
    tensor = ggml.ggml_new_tensor_4d(context, kind, *reversed(layout.shape))
    for axis, stride in enumerate(reversed(layout.strides)):
        tensor.contents.nb[axis] = stride
    return tensor


#: where the backends compute: a graph for each recipe, layouts of its inputs, and number of threads
GRAPHS = Programs(Graph)


def compute(recipe: Recipe, inputs: Sequence[NDArray[Any]], output: NDArray[Any]) -> None:
    """Compute what `recipe` makes of `inputs`, which have four axes, into `output`.

    recipe : makes the graph's result; equal (and hashable) for equal graphs.
    """
    GRAPHS.get(recipe, tuple(map(Layout.of, inputs))).compute(inputs, output)


class Ggml(NumPy):
    """See `attnlab.backends.library.Library`."""

    name = "ggml"
    runs = "attnlab runs ggml"
    modules = ("ggml",)
    arrays_of = "numpy"
    programs = GRAPHS
    lacking: ClassVar[Mapping[str, str]] = {
        "bfloat16": NO_BFLOAT16,
        "float64": "ggml has no attention in float64",
    }
    without_gradients = "ggml's attention has no backward pass"

    def attest(self, call: Call) -> str:
        """Operators, formats and threads of the graphs that one call computes, and the vector instructions."""
        graphs = dict.fromkeys(graph.told() for graph in GRAPHS.used_by(call))
        built = [one for one in _INSTRUCTIONS if getattr(self.module, f"ggml_cpu_has_{one}")()]
        return f"{'; '.join(graphs)}, {built[0].upper() if built else 'no vector instructions'}"

    def versions(self) -> dict[str, str]:
        own = f"{self.module.ggml_version().decode()} ({self.module.ggml_commit().decode()})"
        return {**super().versions(), "ggml": own, "ggml-python": str(self.module.__version__)}


LIBRARIES = (Ggml,)
