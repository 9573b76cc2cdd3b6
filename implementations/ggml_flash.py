"""ggml's fused attention, ggml_flash_attn_ext, on the CPU: what llama.cpp runs.

``ggml_flash_attn_ext`` with ``ggml_flash_attn_ext_add_sinks`` (https://github.com/ggml-org/ggml, through
ggml-python, which pip compiles for this machine): online softmax over the keys of one query at a time, or over tiles if
there are many queries. The graph of this operator, with the precision flag GGML_PREC_F32, is made in the first call,
and reads and writes NumPy's memory. For float32, K and V are in float32. For float16, K and V stay as they are. The
query is converted to float32, which the operator needs, and the output is rounded at the end; both are part of the
timed call. Tiles are summed in float32. Without tiles, for fewer than 64 queries or dimensions that are not multiples
of 16, float16 values are added up in float16, key by key. The error was 2e-3 of the output's norm at 256 keys (with
tiles: 2e-4), so float16 without tiles is declined.

Every mask is an array of float16 that is added to the scores. The number of its rows is padded to a multiple of 64; it
is made in the first call. A bias in float32 is declined, because float16 would round it. For ALiBi the array holds the
distances, exact in float16 up to 2048. ggml multiplies them with slopes that it computes from `max_bias` = 8, for a
power of two of heads; other slopes are declined. A soft cap is declined if the last tile of keys is not full: ggml
0.0.45 gives weight to the empty places of this tile, an error of up to 10 % of the output. A NaN or an infinity in a
key, hidden by the mask or not, gives other keys of its tile a wrong weight, and the output does not show it.

Time: 4·b·h·n_q·n_k·d floating-point operations, fewer if keys are hidden. Memory: the output in float32, for float16 a
copy of it, and the mask in float16; O(n_q·n_k) with a mask, else O(n).
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.libraries.library import Made, Recipe, required
from attnlab.libraries.numpy_and_runtimes_library import run_ggml
from attnlab.workload.inputs import Alibi
from attnlab.workload.workload import GIVEN, Workload

ggml: Any = required("ggml", extra="ggml")

LIBRARY = "ggml"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 1.1, "outputs": 4.1}

#: the rows of a mask are padded to a multiple of this: GGML_KQ_MASK_PAD was 64 and 32; newer versions need no padding
_ROWS = 64
#: float16 holds every whole number up to this
_LARGEST_EXACT = 2048
#: ggml computes tiles, with sums in float32, from this number of queries on, if dimensions are multiples of the second
#: number; the third is the number of keys in a tile
_TILE, _MULTIPLE, _TILE_KEYS = 64, 16, 64
#: the `max_bias` at which ggml's slopes are 2^(−8(h+1)/heads)
_MAX_BIAS = 8.0


def attend(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    scale: float,
    attn_mask: NDArray[Any] | None = None,
    alibi_slopes: tuple[float, ...] | None = None,
    softcap: float | None = None,
    sinks: NDArray[Any] | None = None,
    enable_gqa: bool = False,
) -> NDArray[Any]:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in the sum of the softmax.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), attn_mask of four axes,
    broadcastable to (batch, heads, n_q, n_k), sinks (heads,). Raises Declined for slopes that ggml does not have.
    """
    batch, heads, n_q, _ = query.shape
    n_k, value_dim = value.shape[2:]
    alibi = alibi_slopes is not None
    if alibi and alibi_slopes != Alibi.of_heads(heads).slopes:
        raise Declined("ggml computes ALiBi's slopes itself, 2^(-8(h+1)/heads); others were given")
    wide = query.astype(np.float32, copy=False)
    inputs = [
        one if one.strides[-1] == one.itemsize else np.ascontiguousarray(one) for one in (wide, key, value)
    ]
    if attn_mask is not None:
        inputs.append(_MASK(attn_mask, n_q, n_k, alibi))
    elif alibi:
        inputs.append(_distances(n_q, n_k))
    masked = len(inputs) > 3
    if sinks is not None:
        inputs.append(sinks.astype(np.float32, copy=False).reshape(1, 1, 1, heads))
    recipe = Recipe(_attention, (scale, alibi, softcap or 0.0, masked, sinks is not None))
    output = np.empty((batch, n_q, heads, value_dim), dtype=np.float32)
    run_ggml(recipe, inputs, output)
    return output.swapaxes(1, 2).astype(query.dtype, copy=False)


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why ggml cannot do it, or None."""
    dims = (workload.head_dim, workload.value_dim)
    tiles = workload.queries >= _TILE and not any(one % _MULTIPLE for one in dims)
    if workload.softcap is not None and tiles and workload.keys % _TILE_KEYS:
        return (
            "softcap",
            f"under a soft cap ggml counts what fills its last tile of {_TILE_KEYS} keys up as keys, "
            f"got {workload.keys} keys",
        )
    if workload.dtype == "float16" and not tiles:
        return (
            "dtype",
            f"for fewer than {_TILE} queries, or dimensions that are no multiples of {_MULTIPLE}, ggml adds float16 "
            "values up in float16, key by key: off by ten times the rounding of the output",
        )
    if workload.bias in ("normal", GIVEN) and workload.dtype == "float32":
        return "bias", "ggml takes a bias in float16, which would round one in float32"
    if workload.bias == "alibi":
        if workload.heads & (workload.heads - 1):
            return (
                "bias",
                f"ggml's ALiBi has other slopes where heads are no power of two, got {workload.heads}",
            )
        longest = max(workload.queries, workload.keys) - 1
        if longest > _LARGEST_EXACT:
            return (
                "bias",
                f"ggml takes ALiBi's distances in float16, exact to {_LARGEST_EXACT}, got {longest}",
            )
    return None


def _attention(
    scale: float,
    alibi: bool,
    softcap: float,
    masked: bool,
    sinks: bool,
    module: Any,
    context: Any,
    inputs: Any,
) -> Any:
    """The only operator of the graph; inputs are query, key and value, then mask and sinks if there are any."""
    query, key, value, *rest = inputs
    mask = rest.pop(0) if masked else None
    bias = _MAX_BIAS if alibi else 0.0
    result = module.ggml_flash_attn_ext(context, query, key, value, mask, scale, bias, softcap)
    module.ggml_flash_attn_ext_set_prec(result, module.GGML_PREC_F32)
    if sinks:
        module.ggml_flash_attn_ext_add_sinks(result, rest[0])
    return result


def _filled_up(rows: int) -> int:
    return -(-rows // _ROWS) * _ROWS


def _made(attn_mask: NDArray[Any], n_q: int, n_k: int, alibi: bool) -> NDArray[np.float16]:
    """What is added to the scores, (batches, heads, rows, n_k): the mask as 0 and -inf, a bias, distances."""
    added = np.zeros((*attn_mask.shape[:2], _filled_up(n_q), n_k), np.float16)
    seen = added[:, :, :n_q]
    if alibi:
        seen += _distances(n_q, n_k)[:, :, :n_q]
    if attn_mask.dtype == np.bool_:
        np.copyto(seen, np.float16(-np.inf), where=~attn_mask)
    else:
        seen += attn_mask
    return added


_MASK = Made(_made)


@functools.lru_cache(maxsize=1)
def _distances(n_q: int, n_k: int) -> NDArray[np.float16]:
    """−|i + n_k − n_q − j|, (1, 1, rows, n_k), which ggml multiplies with the slopes."""
    own = np.arange(_filled_up(n_q))[:, None] + (n_k - n_q)
    return np.asarray(-np.abs(own - np.arange(n_k)), np.float16)[None, None]
