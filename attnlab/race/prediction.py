"""What a call will cost, before it is tried: from what smaller calls of the same contender cost.

Time grows at least as the pairs that the mask keeps, and memory as a part that grows with the score matrix plus a
part that grows with the output; both parts are fitted with non-negative coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from attnlab.backends.storage import STORED
from attnlab.problem.dtypes import ITEM_BYTES, carrier
from attnlab.problem.mask_parts import Part, Shape
from attnlab.problem.masks import Mask
from attnlab.problem.workload import CONTIGUOUS, GIVEN, Workload

#: a call this much smaller (in FLOPs and in scores) than the one asked for still predicts it
REACH = 16
_FIRST_LENGTH = 64
#: score matrices, in the workload's dtype, that no implementation is expected to exceed: a dozen in float64
_WORST_SCORES = 24
#: a worker keeps the NumPy arrays of inputs up to this, beside what its library made of them, to place them anew
PLACED_BYTES = 2**28
#: keys and values of so many heads in float64, and so many bytes beside them, are what the right answer takes beside
#: the inputs: two heads where it was measured, 0.5 GiB at 64 heads of 131072 keys
_REFERRED, _BLOCKS = 4, 2**27
#: bytes of inputs; they are drawn some ten times as fast on a core of one's own
_DRAWN_PER_SECOND = 2**26


@dataclass
class History:
    """What one contender's calls have cost so far, for workloads that differ in their sizes alone (`sort_of`)."""

    #: FLOPs, elements of the score matrix, seconds
    seconds: list[tuple[int, int, float]] = field(default_factory=list)
    peaks: list[tuple[int, int, int]] = field(default_factory=list)

    def saw_seconds(self, workload: Workload, seconds: float) -> None:
        """One call of `workload` took `seconds`."""
        self.seconds.append((*_work(workload), seconds))

    def saw_peak(self, workload: Workload, peak_bytes: int) -> None:
        """One call of `workload` held `peak_bytes` at most."""
        self.peaks.append((workload.score_bytes, workload.output_bytes, peak_bytes))

    def predict_seconds(self, workload: Workload) -> float | None:
        """Seconds per call of `workload`, or None where nothing seen is within reach of it.

        In proportion to the FLOPs: of a backend that computes what the mask hides as well, too few.
        """
        flops, scores = _work(workload)
        near = [one for one in self.seconds if one[0] * REACH >= flops and one[1] * REACH >= scores]
        if not near:
            return None
        # of several calls of one size the fastest: the first one of a process does more than its work
        nearest = min(near, key=lambda one: (abs(one[0] - flops), one[2]))
        return nearest[2] * flops / nearest[0]

    @property
    def sizes_seen(self) -> int:
        """Of how many different sizes a peak was seen."""
        return len({(scores, output) for scores, output, _ in self.peaks})

    def saw_size(self, workload: Workload) -> bool:
        """Whether a peak was seen of a call of this size, or of one that takes as much."""
        return any(one[:2] == (workload.score_bytes, workload.output_bytes) for one in self.peaks)

    def predict_peak(self, workload: Workload) -> int | None:
        """Peak bytes of `workload`, or None with fewer than three sizes seen.

        Two cannot tell what grows with the output from a share of the score matrix beside a workspace, nor can three
        of which one call took more than its size explains; from four sizes on the others outweigh it. Errors are
        relative to what was seen, so that a call far above the rest counts for no more than any other. More than
        `worst_peak_bytes` is not believed.
        """
        if self.sizes_seen < 3:
            return None
        import numpy as np
        from scipy.optimize import nnls

        seen = np.array(self.peaks, dtype=float)
        weight = 1 / np.maximum(seen[:, 2], 1.0)
        design = np.column_stack([seen[:, :2], np.full(len(seen), 2.0**20)])
        coefficients, _ = nnls(design * weight[:, None], seen[:, 2] * weight)
        sizes = np.array([workload.score_bytes, workload.output_bytes, 2.0**20])
        return min(int(sizes @ coefficients), worst_peak_bytes(workload))


def sort_of(workload: Workload) -> Workload:
    """What is left of `workload` without its sizes, scale and inputs: calls of one sort predict one another."""
    one = smaller(workload, 1, 1)
    softcap = None if one.softcap is None else 1.0
    # 2, because rotary positions turn pairs
    return one.with_(head_dim=2, value_dim=2, scale=1.0, softcap=softcap, seed=0, distribution="normal")


def smaller(workload: Workload, queries: int, keys: int) -> Workload:
    """One head of keys of `workload` at these lengths, with the query heads that share it; its mask as far as it fits.

    Of a block all heads.

    A window is cut to the keys, as are the most keys of any batch element; a further part that the smaller
    shape does not allow, such as a prefix beyond its keys, is left out.
    """
    window, lengths = workload.window, workload.key_lengths
    return workload.with_(
        batch=1,
        heads=workload.heads if workload.d_model else workload.heads // workload.kv_heads,
        kv_heads=workload.kv_heads if workload.d_model else 1,
        queries=queries,
        keys=keys,
        window=window and tuple(min(side, keys) for side in window),
        key_lengths=lengths and (min(max(lengths), keys),),
        mask=GIVEN if workload.mask == GIVEN else _fitting(workload.mask, Shape(1, 1, queries, keys)),
    )


def shortened(workload: Workload, length: int) -> Workload:
    """`smaller`, with queries and keys no more than `length`."""
    return smaller(workload, min(length, workload.queries), min(length, workload.keys))


def rungs(workload: Workload) -> Iterator[Workload]:
    """Smaller workloads of one head of keys, up to `workload`, each at most about 16 times the one before in FLOPs.

    None where the mask of `workload` keeps nothing; a rung whose mask keeps nothing is left out.
    """
    length = _FIRST_LENGTH
    while True:
        rung = shortened(workload, length)
        if rung.flops >= workload.flops:
            return
        if rung.flops:
            yield rung
        if length >= max(workload.queries, workload.keys):
            return
        length *= 4


def extrapolated(first: tuple[int, float], last: tuple[int, float], flops: int) -> float:
    """Seconds of a call of `flops`, from the FLOPs and seconds of the first and the last rung that was measured.

    What all calls have in common, such as waiting for threads on a busy machine, does not grow: what grows is the
    difference of the two. From one rung alone: in proportion.
    """
    (least, overhead), (size, seconds) = first, last
    if size <= least:
        return seconds * flops / size
    return seconds + max(0.0, seconds - overhead) / (size - least) * (flops - size)


def too_long(predicted: float, limit: float) -> str:
    """Why a call is not tried, in words: both in seconds."""
    return f"predicted {predicted:.3g} s a call from smaller sizes, over the limit of {limit:.3g} s"


def drawn_bytes(workload: Workload) -> int:
    """What the inputs take as NumPy arrays: bfloat16 travels in float32."""
    return workload.input_bytes // ITEM_BYTES[workload.dtype] * carrier(workload.dtype).itemsize


def drawing_seconds(workload: Workload) -> float:
    """How long a worker may take to draw the inputs, on a busy machine."""
    return drawn_bytes(workload) / _DRAWN_PER_SECOND


def held_bytes(workload: Workload) -> int:
    """What a worker holds of the inputs from call to call."""
    drawn = drawn_bytes(workload)
    return workload.input_bytes + (drawn if drawn <= PLACED_BYTES else 0)


def preparing_bytes(workload: Workload) -> int:
    """What a worker holds at most while the inputs are drawn and its library takes them over.

    Large ones are given up array by array. What is not standard normal is drawn in float64, all at once.
    """
    w, drawn, item = workload, drawn_bytes(workload), ITEM_BYTES[workload.dtype]
    rows = w.batch * w.heads * w.queries, w.batch * w.kv_heads * w.keys, w.batch * w.kv_heads * w.keys
    sizes = [count * dim for count, dim in zip(rows, (w.head_dim, w.head_dim, w.value_dim), strict=True)]
    left, taken = drawn, w.input_bytes - sum(sizes) * item  # a bias and a gradient are there twice
    most = drawn
    for size in sizes:
        taken += size * item
        most = max(most, left + taken)
        if drawn > PLACED_BYTES:
            left -= size * carrier(w.dtype).itemsize
    return most if w.distribution == "normal" else max(most, drawn + 8 * sum(sizes))


def referred_bytes(workload: Workload) -> int:
    """What the right answer takes where it is worked out: the inputs, and one head of keys and values in float64."""
    head = workload.keys * (workload.head_dim + workload.value_dim) * 8
    return drawn_bytes(workload) + _REFERRED * head + _BLOCKS


def least_peak_bytes(workload: Workload) -> int:
    """What any implementation holds at once: its inputs, as often as their storage does, and a bias included."""
    further = 0
    if workload.storage != CONTIGUOUS:
        of_keys = workload.kv_heads * workload.keys * (workload.head_dim + workload.value_dim)
        further = (STORED[workload.storage].copies - 1) * workload.batch * of_keys
    return workload.input_bytes + workload.output_bytes + further * ITEM_BYTES[workload.dtype]


def worst_peak_bytes(workload: Workload) -> int:
    """More than any implementation is expected to hold: a dozen score matrices in float64, and all arrays twice.

    As many matrices again with gradients, for what is stored and computed. Only where this would not fit is it worth
    finding out what the contender really needs.
    """
    matrices = _WORST_SCORES * (2 if workload.backward else 1)
    return matrices * workload.score_bytes + 16 * least_peak_bytes(workload)


def _work(workload: Workload) -> tuple[int, int]:
    """FLOPs, at least 1, and elements of the score matrix."""
    return max(1, workload.flops), workload.batch * workload.heads * workload.queries * workload.keys


def _fitting(mask: str, shape: Shape) -> str:
    return Mask(tuple(part for part in Mask.parse(mask).parts if _fits(part, shape))).text


def _fits(part: Part, shape: Shape) -> bool:
    try:
        part.check(shape)
    except ValueError:
        return False
    return True
