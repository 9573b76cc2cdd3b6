"""Online softmax in one compiled, parallel loop by Numba: O(n) memory, no BLAS.

A block of queries goes through the keys tile by tile, as in Milakov and Gimelshein 2018 (arXiv:1805.02867,
algorithm 3); the blocks of all heads are shared among Numba's threads (``numba.njit(parallel=True)``,
https://numba.readthedocs.io/en/stable/user/parallel.html). Keys that causal, window and key lengths hide from
a whole block are not read.

ALiBi is computed from its slopes; any other bias is an array.

Time: 4·b·h·n_q·n_k·d floating-point operations in loops that LLVM turns into vector instructions, and one
exponential per score, by a polynomial in this file. Compiling takes about 20 s per dtype, in the first
call of each process. Memory: the output and four tiles per thread, O(n). float16 is computed in float32 and rounded at
the end; this takes the inputs and the output once more.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.library import required
from attnlab.workload.mask_kinds import band

numba = required("numba", extra="numba")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_compiled_when_called: Callable[..., Callable[[_Function], _Function]] = numba.njit

LIBRARY = "numba"
ON_REQUEST = "it compiles for seconds in every process"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 0, "outputs": 4.1}

#: queries of a block and keys of a tile: the four tiles then fit a core's L2 cache
ROWS = 64
KEYS = 128
#: the number of products that one pass over a row of the result adds
UNROLLED = 8

# 1.5·2^23 and 1.5·2^52: a number that is added is rounded to a whole number, which the last bits then hold
_MAGIC32, _MAGIC64 = np.float32(12582912.0), 6755399441055744.0
_LOG2E32, _HIGH32, _LOW32 = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOG2E64, _HIGH64, _LOW64 = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
# the logarithms of the smallest normal numbers: below them a weight is 0
_LEAST32, _LEAST64 = np.float32(-87.3), -708.3
_COEFFICIENTS32 = tuple(np.float32(1 / math.factorial(power)) for power in range(8))
_COEFFICIENTS64 = tuple(1 / math.factorial(power) for power in range(14))


def attend_with_log_sum(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    scale: float,
    causal: bool = False,
    causal_bottom_right: bool = False,
    window: tuple[int, int] | None = None,
    window_bottom_right: tuple[int, int] | None = None,
    key_lengths: tuple[int, ...] | None = None,
    mask: NDArray[np.bool_] | None = None,
    bias: NDArray[Any] | None = None,
    alibi_slopes: tuple[float, ...] | None = None,
    softcap: float | None = None,
    sinks: NDArray[Any] | None = None,
    enable_gqa: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in the sum of the softmax; and ln Z.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), mask and bias of four axes and
    broadcastable to (batch, heads, n_q, n_k), alibi_slopes and sinks (heads,). ln Z is (batch, heads, n_q), −inf where
    no key is seen.
    """
    batch, _, n_q, _ = query.shape
    n_k, value_dim = value.shape[-2:]
    inner = _inner(query.dtype)
    q, k, v = (array.astype(inner, copy=False) for array in (query, key, value))
    output = np.empty((*query.shape[:3], value_dim), dtype=inner)
    log_sum = np.empty(query.shape[:3], dtype=inner)
    lowest, highest = band(n_q, n_k, causal, causal_bottom_right, window, window_bottom_right)
    none = np.empty((0, 0, 0, 0), dtype=inner)
    asked = (
        inner.type(scale),
        lowest,
        highest,
        np.array(key_lengths or (n_k,) * batch, dtype=np.int64),
        none.astype(np.bool_) if mask is None else mask,
        none if bias is None else bias.astype(inner, copy=False),
        np.array(alibi_slopes or (), dtype=inner),
        inner.type(0 if softcap is None else softcap),
        none.reshape(-1) if sinks is None else sinks.astype(inner, copy=False),
    )
    _compiled(inner)((q, k, v, output, log_sum), asked)
    return output.astype(query.dtype, copy=False), log_sum


def _inner(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which arrays of `dtype` are computed."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


@functools.cache
def _compiled(inner: np.dtype[Any]) -> Any:
    """The loop for one dtype, whatever the layout of its arrays, compiled now."""
    real = numba.from_dtype(inner)

    def array(dtype: Any, dimensions: int) -> Any:
        return numba.types.Array(dtype, dimensions, "A", readonly=True)

    types, arrays, of_heads = numba.types, array(real, 4), array(real, 1)
    written = (real[:, :, :, ::1], real[:, :, ::1])
    seen = (types.int64, types.int64, array(types.int64, 1), array(types.boolean, 4))
    asked = types.Tuple((real, *seen, arrays, of_heads, real, of_heads))
    signature = types.void(types.Tuple((arrays, arrays, arrays, *written)), asked)
    return numba.njit([signature], parallel=True)(_loop(inner))


def _loop(inner: np.dtype[Any]) -> Any:
    """The function that `_compiled` compiles."""
    attend_block = numba.njit(_block(_exponentials32 if inner == np.float32 else _exponentials64, inner.type))

    def loop(arrays: Any, asked: Any) -> None:
        batch, heads, n_q, _ = arrays[0].shape
        blocks = (n_q + ROWS - 1) // ROWS
        for turn in numba.prange(batch * heads * blocks):
            head, step = divmod(np.int64(turn), blocks)
            # blocks are taken from both ends in turn: under a causal mask every thread gets short and long ones
            block = step // 2 if step % 2 == 0 else blocks - 1 - step // 2
            attend_block(head // heads, head % heads, block * ROWS, arrays, asked)

    return loop


def _block(exponentials: Any, real: Any) -> Any:
    """The function that fills one block of the output, with the exponentials of its dtype."""

    def attend_block(b: int, h: int, start: int, arrays: Any, asked: Any) -> None:
        query, key, value, output, log_sum = arrays
        scale, lowest, highest, key_lengths, mask, bias, slopes, softcap, sinks = asked
        n_q, dim = query.shape[2:]
        value_dim = value.shape[3]
        of_keys = h // (query.shape[1] // key.shape[1])
        padded = (dim + UNROLLED - 1) // UNROLLED * UNROLLED
        count = min(ROWS, n_q - start)
        q = np.zeros((count, padded), real)
        k = np.zeros((padded, KEYS), real)
        v = np.zeros((KEYS, value_dim), real)
        s = np.empty((count, KEYS), real)
        o = np.zeros((count, value_dim), real)
        rounded = np.empty(KEYS, real)
        # a sink comes before all keys: its exponential, shifted by itself, is 1, and it has no value
        top = np.full(count, sinks[h] if len(sinks) else real(-np.inf), real)
        total = np.full(count, real(1) if len(sinks) else real(0), real)
        for r in range(count):
            for c in range(dim):
                q[r, c] = query[b, h, start + r, c] * scale
        first = max(0, start + lowest)
        stop = min(key_lengths[b], start + count + highest)
        for begin in range(first, stop, KEYS):
            width = min(KEYS, stop - begin)
            for j in range(width):
                for c in range(dim):
                    k[c, j] = key[b, of_keys, begin + j, c]
                for c in range(value_dim):
                    v[j, c] = value[b, of_keys, begin + j, c]
            strange = _has_strange(v, width)
            if width < KEYS:  # the weights there are 0, and 0 times NaN would be NaN
                k[:, width:] = 0
                v[width:] = 0
            s[:] = 0
            _add_product(q, k, s)
            for r in range(count):
                row, i = s[r], start + r
                if softcap > 0:
                    for j in range(width):
                        row[j] = softcap * math.tanh(row[j] / softcap)
                if bias.shape[0]:
                    _add_bias(row, bias, b, h, i, begin, width)
                if len(slopes):
                    own = i + key.shape[2] - n_q - begin
                    for j in range(width):
                        row[j] -= slopes[h] * real(abs(own - j))
                row[: min(max(i + lowest - begin, 0), KEYS)] = -np.inf
                row[max(min(i + highest + 1 - begin, width), 0) :] = -np.inf
                if mask.shape[0]:
                    _hide(row, mask, b, h, i, begin, width)
                largest = _largest(row)
                if not largest > -np.inf:  # no key is seen here, or there are NaN: comparisons are False
                    for j in range(width):
                        if row[j] != row[j]:
                            total[r] = row[j]
                    row[:] = 0
                    continue
                if largest > top[r]:
                    rescale = real(math.exp(top[r] - largest))
                    total[r] *= rescale
                    for c in range(value_dim):
                        o[r, c] *= rescale
                    top[r] = largest
                if strange:
                    _add_strange(row, v, o[r], width)
                total[r] += exponentials(row, top[r], rounded)
            if strange:
                v[:] = np.where(np.isfinite(v), v, real(0))
            _add_product(s, v, o)
        for r in range(count):
            for c in range(value_dim):
                output[b, h, start + r, c] = o[r, c] / total[r] if total[r] != 0 else real(0)
            log_sum[b, h, start + r] = top[r] + math.log(total[r]) if total[r] != 0 else real(-np.inf)

    return attend_block


@_compiled_when_called()
def _add_bias(row: Any, bias: Any, b: int, h: int, i: int, begin: int, width: int) -> None:
    batch, heads, queries, keys = bias.shape
    at = bias[b if batch > 1 else 0, h if heads > 1 else 0, i if queries > 1 else 0]
    for j in range(width):
        row[j] += at[begin + j if keys > 1 else 0]


@_compiled_when_called()
def _hide(row: Any, mask: Any, b: int, h: int, i: int, begin: int, width: int) -> None:
    batch, heads, queries, keys = mask.shape
    at = mask[b if batch > 1 else 0, h if heads > 1 else 0, i if queries > 1 else 0]
    for j in range(width):
        if not at[begin + j if keys > 1 else 0]:
            row[j] = -np.inf


@_compiled_when_called(fastmath={"reassoc"})
def _has_strange(v: Any, width: int) -> bool:
    """Whether a value is NaN or infinite: 0 times it is not 0."""
    total = v[0, 0] * 0
    for j in range(width):
        for c in range(v.shape[1]):
            total += v[j, c] * 0
    return bool(total != 0)


@_compiled_when_called()
def _add_strange(row: Any, v: Any, o: Any, width: int) -> None:
    """Add NaN and infinite values to a row that sees them; in a product a weight of 0 would not hide them."""
    for j in range(width):
        if row[j] != -np.inf:
            for c in range(v.shape[1]):
                if not np.isfinite(v[j, c]):
                    o[c] += v[j, c]


@_compiled_when_called(fastmath={"contract"})
def _add_product(a: Any, b: Any, c: Any) -> None:
    """c += a b for row-major matrices, `UNROLLED` rows of b at a time."""
    columns = c.shape[1]
    for r in range(c.shape[0]):
        of_c = c[r]
        for i in range(0, b.shape[0], 8):
            a0, a1, a2, a3 = a[r, i], a[r, i + 1], a[r, i + 2], a[r, i + 3]
            a4, a5, a6, a7 = a[r, i + 4], a[r, i + 5], a[r, i + 6], a[r, i + 7]
            b0, b1, b2, b3 = b[i], b[i + 1], b[i + 2], b[i + 3]
            b4, b5, b6, b7 = b[i + 4], b[i + 5], b[i + 6], b[i + 7]
            for n in range(columns):
                of_c[n] += (
                    a0 * b0[n]
                    + a1 * b1[n]
                    + a2 * b2[n]
                    + a3 * b3[n]
                    + a4 * b4[n]
                    + a5 * b5[n]
                    + a6 * b6[n]
                    + a7 * b7[n]
                )


@_compiled_when_called(fastmath={"reassoc", "nsz"})
def _largest(row: Any) -> Any:
    largest = row[0]
    for j in range(len(row)):
        largest = row[j] if row[j] > largest else largest
    return largest


@_compiled_when_called(fastmath={"reassoc"})
def _sum(row: Any) -> Any:
    total = row[0] * 0
    for j in range(len(row)):
        total += row[j]
    return total


@_compiled_when_called(fastmath={"contract"})
def _exponentials32(row: Any, top: Any, rounded: Any) -> Any:
    """row = e^(row − top), by 2^k e^r with a Taylor polynomial for |r| ≤ ln 2 / 2; returns the sum."""
    bits = rounded.view(np.int32)
    c0, c1, c2, c3, c4, c5, c6, c7 = _COEFFICIENTS32
    for j in range(len(row)):
        x = row[j] - top
        kept = _LEAST32 if x < _LEAST32 else x
        shifted = kept * _LOG2E32 + _MAGIC32
        rounded[j] = shifted
        whole = shifted - _MAGIC32
        r = kept - whole * _HIGH32 - whole * _LOW32
        power = c0 + r * (c1 + r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * (c6 + r * c7))))))
        row[j] = np.float32(0) if x < _LEAST32 else power
    for j in range(len(row)):
        bits[j] = (bits[j] << np.int32(23)) + np.int32(0x3F800000)
    for j in range(len(row)):
        row[j] *= rounded[j]
    return _sum(row)


@_compiled_when_called(fastmath={"contract"})
def _exponentials64(row: Any, top: Any, rounded: Any) -> Any:
    """As `_exponentials32`, in double precision."""
    bits = rounded.view(np.int64)
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13 = _COEFFICIENTS64
    for j in range(len(row)):
        x = row[j] - top
        kept = _LEAST64 if x < _LEAST64 else x
        shifted = kept * _LOG2E64 + _MAGIC64
        rounded[j] = shifted
        whole = shifted - _MAGIC64
        r = kept - whole * _HIGH64 - whole * _LOW64
        high = c7 + r * (c8 + r * (c9 + r * (c10 + r * (c11 + r * (c12 + r * c13)))))
        power = c0 + r * (c1 + r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * (c6 + r * high))))))
        row[j] = 0.0 if x < _LEAST64 else power
    for j in range(len(row)):
        bits[j] = (bits[j] << 52) + 0x3FF0000000000000
    for j in range(len(row)):
        row[j] *= rounded[j]
    return _sum(row)
