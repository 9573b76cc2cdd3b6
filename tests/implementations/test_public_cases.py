"""Small inputs that released attention code got wrong: every backend is right, or declines with a reason.

The right values follow from the definition. Each input comes from a public report, named beside it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from every import every, here, judged
from numpy.typing import NDArray

from attnlab.backends.attend import answer
from attnlab.correctness.expected import expect
from attnlab.correctness.weighing import weigh
from attnlab.errors import Declined, FieldError
from attnlab.workload.inputs import Inputs
from attnlab.workload.workload import OUTPUT, Workload

#: a backend may compute NaN and infinity on the way to a right answer, which makes NumPy warn
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

Array = NDArray[Any]
#: attnlab's own backends that loop over keys or blocks of keys: a hidden key has no effect on their answers
TIGHT = ("naive_loop", "numba_fused", "numpy_blocked")
#: backends on PyTorch's flash kernel for the CPU, which in 16-bit formats gives finite numbers for infinite scores
SWALLOWING = ("keras", "torch_sdpa", "torch_sdpa_flash")
#: backends in which a NaN in a key makes other numbers wrong, also if the mask hides it: ggml's kernel for many queries
DISTURBED = ("ggml_flash",)
#: tolerance of an answer compared with that to clean inputs, by number format
CLOSE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def found(name: str, inputs: Inputs, direction: str = "forward") -> dict[str, Array]:
    """The results of a backend by name; empty if it declines."""
    try:
        return answer(name, inputs, direction=direction)
    except Declined as declined:
        assert declined.refusal.reason
        return {}


def arrays(query: Any, key: Any, value: Any) -> dict[str, Array]:
    """Query, key and value as float32 arrays. A list becomes one head with one component."""
    given = {"query": query, "key": key, "value": value}
    shaped = {
        name: np.reshape(one, (1, 1, -1, 1)) if np.ndim(one) == 1 else one for name, one in given.items()
    }
    return {name: np.asarray(one, np.float32) for name, one in shaped.items()}


def drawn(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape)


ROW, MANY, CACHE = drawn(1, 2, 9, 16), drawn(1, 24, 65, 8), drawn(1, 2, 70, 16)
FEW, SOME = drawn(2, 2, 4, 8), drawn(2, 2, 6, 8)
ONES = np.ones((1, 1, 600, 8))
APART = abs(np.subtract.outer(np.arange(600), np.arange(600)))
SMALL = np.linspace(-90, -103, 63)
#: by name: the arrays, further arguments, and the right output (None: only the float64 reference)
CASES: dict[str, tuple[dict[str, Array], dict[str, Any], Any]] = {
    "a mask from the wrong corner, nntrainer#4333": (
        arrays([0, 0], [0, 0, 0], [2, 10, 50]), {"causal": "top_left"}, [2, 6],
    ),
    "the other corner": (arrays([0, 0], [0, 0, 0], [2, 10, 50]), {"causal": "bottom_right"}, [6, 62 / 3]),
    "both corners": (
        arrays([0, 0], [0, 0, 0], [2, 10, 50]), {"causal": "top_left", "mask": "causal(bottom_right)"}, [2, 6],
    ),
    "a mask that adds -1e10, nntrainer#4333": (
        arrays([1, 1], [0, 2e10], [2, 10]), {"causal": "top_left"}, [2, 10],
    ),
    "causal with one query, onnxruntime#29020": (
        arrays(ROW[:, :, :1], ROW, ROW), {"causal": "top_left"}, ROW[:, :, :1],
    ),
    "a mask before the cap, onnxruntime#28379": (
        arrays([0], [0, 0], [1, 1000]), {"softcap": 1.0, "bias": np.array([0, -np.inf], np.float32)}, 1,
    ),
    "a cap that overflows, vllm#56578": (arrays([1], [4400, 5000, -1e4], [1, 3, 1e6]), {"softcap": 50.0}, 2),
    "a float mask whose first block is hidden, pytorch#127055": (
        arrays(ONES, ONES, 3 * ONES), {"bias": np.where(APART <= 10, 0, -np.inf).astype(np.float32)}, 3 * ONES,
    ),
    "a window without a mask, jax#32300": (arrays(ROW, ROW, ROW), {"window": (0, 0)}, ROW),
    "subnormal weights, funes#148": (arrays([1], [0, *SMALL], [7, *SMALL]), {}, 7),
    "more keys than queries, MNN#4898": (arrays(ROW[:, :, :3], CACHE, CACHE), {}, None),
    "many heads, mlir-air#1427": (arrays(MANY, MANY, MANY), {"causal": "top_left"}, None),
    "grouped heads, pytorch#190523": (arrays(drawn(1, 8, 9, 16), CACHE, CACHE), {}, None),
    "no key for a batch element, onnxruntime#28904": (
        arrays(FEW, SOME, SOME), {"mask": np.array([True, False])[:, None, None, None]}, None,
    ),
    "more queries than keys, flashinfer-bench#429": (arrays(SOME, FEW, FEW), {"causal": "bottom_right"}, None),
    "a mask of one axis": (arrays(FEW, SOME, SOME), {"mask": np.arange(6) % 2 == 0}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", every())
def test_inputs_of_public_reports_are_answered_rightly(name: str) -> None:
    """Compared with the known output, if there is one, and with the budget of rounding; ln Z too if it is returned."""
    for case, (given, asked, right) in CASES.items():
        inputs = Inputs.of(**given, **asked)
        results = found(name, inputs, "forward_with_log_sum") or found(name, inputs)
        for what, result in results.items():
            judged = weigh(expect(inputs, log_sum=True)[what], result, directions=None)
            assert judged.passed, f"{case}: {judged.reason}"
            if what == OUTPUT and right is not None:
                wanted = np.reshape(right, (1, 1, -1, 1)) if np.ndim(right) < 2 else right
                np.testing.assert_allclose(result, wanted, rtol=1e-5, err_msg=case)


#: similar cases as workloads, as they are typed for a race; their inputs are drawn
RACED: tuple[dict[str, Any], ...] = (
    {"queries": 2, "keys": 3, "causal": "top_left"},
    {"queries": 7, "keys": 7, "head_dim": 1, "causal": "top_left", "distribution": "below_minus_50000"},
    {"queries": 1, "keys": 9, "causal": "top_left"},
    {"batch": 2, "queries": 4, "keys": 6, "key_lengths": (6, 0)},
    {"queries": 6, "keys": 6, "softcap": 1.0, "mask": "prefix(2)", "bias": "normal"},
    {"queries": 3, "keys": 5, "softcap": 50.0, "distribution": "above_1000"},
    {"queries": 150, "keys": 150, "mask": "window(3,3)"},
    {"queries": 8, "keys": 8, "window": (0, 0)},
    {"queries": 6, "keys": 4, "causal": "bottom_right"},
    {"queries": 3, "keys": 50},
    {"queries": 4, "keys": 64, "distribution": "subnormal"},
    {"heads": 24, "queries": 65, "keys": 65, "causal": "top_left"},
    {"heads": 32, "kv_heads": 8, "queries": 8, "keys": 40, "head_dim": 128},
    {"queries": 1, "keys": 700},
    {"batch": 2, "queries": 1, "keys": 40, "key_lengths": (7, 33), "storage": "paged"},
    {"batch": 2, "queries": 7, "keys": 40, "causal": "bottom_right", "storage": "packed"},
)
#: changes of a workload: number format, direction, heads and other fields
NEIGHBOURS: tuple[dict[str, Any], ...] = (
    {"dtype": "float16"}, {"direction": "training"}, {"dtype": "bfloat16"}, {"heads": 3, "kv_heads": 3},
    {"direction": "forward_with_log_sum"}, {"dtype": "float64"}, {"layout": "bshd"}, {"sinks": True},
    {"bias": "alibi"}, {"head_dim": 40, "value_dim": 24}, {"causal": "bottom_right"},
)  # fmt: skip


@pytest.mark.parametrize("name", every())
def test_workloads_like_them_are_answered_rightly_by_the_check_of_a_race(name: str) -> None:
    """Each workload is also tested with one change, a different one for each backend."""
    backend, first = here(name), every().index(name)
    for at, case in enumerate(RACED):
        for change in ({}, NEIGHBOURS[(first + at) % len(NEIGHBOURS)]):
            with contextlib.suppress(FieldError, Declined):  # a change may contradict the workload
                workload = Workload(**{"heads": 2, "head_dim": 16, **case, **change})
                backend.require(workload)
                found = judged(backend, workload)
                assert found.passed, f"{workload.label}: {found.reason}"


@pytest.mark.parametrize("name", every())
def test_the_first_of_more_queries_is_answered_alike(name: str) -> None:
    """With eight queries or nine, mlx#3573."""
    eight, nine = (found(name, Inputs.of(**arrays(ROW[:, :, :many], ROW, ROW))) for many in (8, 9))
    for what in eight:
        np.testing.assert_allclose(eight[what][:, :, 0], nine[what][:, :, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", every())
def test_what_is_no_number_comes_out_where_it_is_seen_and_nowhere_else(name: str, dtype: str) -> None:
    """NaN or infinity in a query, key or value. A hidden one may cause NaN; in `TIGHT` backends it has no effect."""
    given = arrays(abs(drawn(1, 1, 66, 32)), abs(drawn(1, 1, 140, 32)), drawn(1, 1, 140, 32))
    for asked in ({"key_lengths": [132]}, {"causal": "top_left"}):
        clean = found(name, Inputs.of(**given, **asked, dtype=dtype)).get(OUTPUT)
        for what, at, number in [(one, at, x) for one in given for at in (3, 135) for x in (np.nan, np.inf)]:
            if clean is None or at >= given[what].shape[2]:
                continue
            changed = {one: array.copy() for one, array in given.items()}
            changed[what][0, 0, at, 5] = number
            answered = found(name, Inputs.of(**changed, **asked, dtype=dtype))[OUTPUT]
            seen = np.zeros(clean.shape, bool)
            first = 0 if "key_lengths" in asked and at < 132 else at
            rows = slice(at, at + 1) if what == "query" else slice(first, None)
            seen[0, 0, rows, 5 if what == "value" else slice(None)] = True
            case = f"{number} in {what} {at}, {asked}"
            other = ~np.isclose(answered, clean, rtol=CLOSE[dtype], atol=CLOSE[dtype]) & ~seen
            swallowed = name in SWALLOWING and dtype in ("float16", "bfloat16") and number == np.inf
            disturbed = name in DISTURBED and what == "key"
            if not (swallowed or disturbed):
                assert not np.isfinite(answered[seen]).any(), (
                    f"{case} is swallowed; may it be, add {name} to SWALLOWING"
                )
                assert not (np.isfinite(answered) & other).any(), (
                    f"{case} changes others; may it, add {name} to DISTURBED"
                )
            assert not (other.any() and (name in TIGHT or what == "query")), f"{case} leaks"


@pytest.mark.parametrize("name", every())
def test_a_score_beyond_float16_makes_no_wrong_number(name: str) -> None:
    """The scores are 230,400 and 226,560: the first key wins, or NaN shows that scores are rounded to float16."""
    q, k = np.full((1, 1, 1, 64), 60.0), np.full((1, 1, 2, 64), [[60.0], [59.0]])
    for answered in found(name, Inputs.of(**arrays(q, k, k - 59), scale=1.0, dtype="float16")).values():
        assert ((answered == 1) | np.isnan(answered)).all()
