"""What is not tried, because it would clearly take too long or more memory than there is.

Time is told by smaller calls of the same contender, of memory what any implementation holds: its inputs and results.
What a call takes beyond that shows when it is made: a worker gets no more than is free, and is ended at a deadline.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from attnlab.backends.storage import STORED
from attnlab.race.limits import Limits
from attnlab.race.participant import Participant
from attnlab.race.worker_process import Ended, Refused
from attnlab.text import bytes_text, percent, seconds_text
from attnlab.workload.mask_kinds import Part, Shape
from attnlab.workload.masks import Mask
from attnlab.workload.result import Outcome
from attnlab.workload.vocabulary import CONTIGUOUS, GIVEN, ITEM_BYTES, carrier
from attnlab.workload.workload import Workload

#: of the memory that is free, this share may be planned with
USABLE = 0.85
#: a call this much smaller (in FLOPs and in scores) than the one asked for still predicts it
REACH = 16
_FIRST_LENGTH = 64
#: a smaller call whose threads had to wait for a core is made again so often, ...
_RETAKES = 2
#: ... and if that does not help, a call may be predicted to take so many times the limit: beside a process that
#: computed, teams of two threads took up to five times as long as alone
_BUSY = 5
#: a worker keeps the NumPy arrays of inputs up to this, beside what its library made of them, to place them anew
PLACED_BYTES = 2**28
#: keys and values of so many heads in float64, and so many bytes beside them, are what the right answer takes beside
#: the inputs: two heads where it was measured, 0.5 GiB at 64 heads of 131072 keys
_REFERRED, _BLOCKS = 4, 2**27
#: bytes of inputs; they are drawn some ten times as fast on a core of one's own
_DRAWN_PER_SECOND = 2**26


class Admission:
    """What calls have cost so far in a run, and whether the next one is tried."""

    def __init__(self) -> None:
        #: of each contender and sort of workload: FLOPs, elements of the score matrix, seconds
        self._seen: dict[tuple[str, Workload], list[tuple[int, int, float]]] = defaultdict(list)

    def saw(self, participant: Participant) -> None:
        """Learn from the seconds of the participant's calls so far."""
        self._note(participant, participant.workload, participant.call_seconds)

    def require(self, participant: Participant, limits: Limits, contenders: int, prepared: int) -> None:
        """Raises Ended, with the reason, where the participant's workload is not to be tried.

        contenders : that race. prepared : those of them that hold its inputs already.
        """
        workload, limit = participant.workload, limits.longest_call(contenders)
        needed, held = needed_bytes(workload, prepared), held_bytes(workload)
        free = participant.ask("free_bytes", device=workload.device)
        if needed > free * USABLE:
            said = f"it needs {bytes_text(needed)}, its inputs alone {bytes_text(held)}; {bytes_text(free)} are free, "
            said += f"{percent(USABLE)} of it may be used"
            if prepared:
                held *= prepared
                said += f"; the {prepared} before it in the race hold {bytes_text(held)}: race fewer together"
            raise Ended(Outcome.OVER_BUDGET, said)
        flops, scores = _work(workload)
        seen = self._seen[participant.name, sort_of(workload)]
        near = [one for one in seen if one[0] * REACH >= flops and one[1] * REACH >= scores]
        waited: list[Workload] = []
        predicted: float | None
        if near:  # in proportion; of several calls of one size the fastest
            nearest = min(near, key=lambda one: (abs(one[0] - flops), one[2]))
            predicted = nearest[2] * flops / nearest[0]
        else:
            predicted = predicted_seconds(workload, partial(self._tried, participant, limits, waited), limit)
        if predicted is not None and predicted > limit * (_BUSY if waited else 1):
            raise Ended(
                Outcome.OVER_BUDGET, too_long(predicted, limit, limits.allowing(predicted, contenders))
            )

    def _tried(
        self, participant: Participant, limits: Limits, waited: list[Workload], smaller: Workload
    ) -> float | None:
        """Seconds of one call of a smaller workload; None where that is declined. `waited` takes disturbed ones."""
        try:
            participant.ask("prepare", workload=smaller)
        except Refused as refusal:
            if refusal.kind == "declined":
                return None
            raise
        least = math.inf
        for _ in range(_RETAKES + 1):
            found = participant.ask("calibrate", warmup_seconds=0.0)
            least = min(least, found["seconds"])
            if not found["waited"] > limits.run_delay:
                break
        else:
            waited.append(smaller)
        self._note(participant, smaller, least)
        return least

    def _note(self, participant: Participant, workload: Workload, seconds: float) -> None:
        self._seen[participant.name, sort_of(participant.workload)].append((*_work(workload), seconds))


# -- time ------------------------------------------------------------------------------------------


def predicted_seconds(
    workload: Workload, seconds_of: Callable[[Workload], float | None], limit: float
) -> float | None:
    """Seconds of a call of `workload`, from calls of smaller ones, each 16 times the one before, while they are short.

    `seconds_of` makes one such call, and says None where there is none. None where `workload` is as small itself, or
    nothing could be called. What all calls have in common, such as the start of threads, is taken not to grow: what
    grows is the difference of the last and the first.
    """
    predicted: float | None = None
    first: tuple[int, float] | None = None
    for rung in rungs(workload):
        seconds = seconds_of(rung)
        if seconds is None:
            continue
        # of the first rung a long call may be all overhead: the next one tells
        affordable = limit / REACH if first else limit
        if seconds > affordable:  # once more: the first call of a process starts threads and may compile
            seconds = min(seconds, seconds_of(rung) or seconds)
        size = rung.flops
        if first is None:
            first = size, seconds
            predicted = seconds * workload.flops / size
        else:
            grown = max(0.0, seconds - first[1]) / (size - first[0])
            predicted = seconds + grown * (workload.flops - size)
        if predicted > limit and seconds > affordable:
            break
    return predicted


def too_long(predicted: float, limit: float, mend: str) -> str:
    """Why a call is not tried, in words, and what would allow it: both in seconds."""
    said = f"predicted roughly {seconds_text(predicted)} a call, by single calls of smaller sizes"
    return f"{said}, over the limit of {limit:.3g} s; {mend} would allow it"


def rungs(workload: Workload) -> Iterator[Workload]:
    """Smaller workloads of one head of keys, up to `workload`, each at most about 16 times the one before in FLOPs.

    None where the mask of `workload` keeps nothing; a rung whose mask keeps nothing is left out.
    """
    length, largest = _FIRST_LENGTH, 0
    while True:
        rung = shortened(workload, length)
        if rung.flops >= workload.flops:
            return
        if rung.flops > largest:
            largest = rung.flops
            yield rung
        if length >= max(workload.queries, workload.keys):
            return
        length *= 4


def shortened(workload: Workload, length: int) -> Workload:
    """One head of keys of `workload` with the query heads that share it, of a block all heads; no longer than `length`.

    Its mask as far as it fits: a window is cut to the keys, as are the most keys of any batch element; a further part
    that the smaller shape does not allow, such as a prefix beyond its keys, is left out.
    """
    queries, keys = min(length, workload.queries), min(length, workload.keys)
    window, lengths = workload.window, workload.key_lengths
    mask = workload.mask
    if mask != GIVEN:
        shape = Shape(1, 1, queries, keys)
        mask = Mask(tuple(part for part in Mask.parse(mask).parts if _fits(part, shape))).text
    return workload.with_(
        batch=1,
        heads=workload.heads if workload.d_model else workload.heads // workload.kv_heads,
        kv_heads=workload.kv_heads if workload.d_model else 1,
        queries=queries,
        keys=keys,
        window=window and tuple(min(side, keys) for side in window),
        key_lengths=lengths and (min(max(lengths), keys),),
        mask=mask,
    )


def sort_of(workload: Workload) -> Workload:
    """What is left of `workload` without its sizes, scale and inputs: calls of one sort predict one another."""
    one = shortened(workload, 1)
    softcap = None if one.softcap is None else 1.0
    # 2, because rotary positions turn pairs
    return one.with_(head_dim=2, value_dim=2, scale=1.0, softcap=softcap, seed=0, distribution="normal")


def _work(workload: Workload) -> tuple[int, int]:
    """FLOPs, at least 1, and elements of the score matrix."""
    return max(1, workload.flops), workload.batch * workload.heads * workload.queries * workload.keys


def _fits(part: Part, shape: Shape) -> bool:
    try:
        part.check(shape)
    except ValueError:
        return False
    return True


# -- memory ----------------------------------------------------------------------------------------


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

    Large ones are given up array by array, so that of the largest of three there are two at once. What is not standard
    normal is drawn in float64, all at once.
    """
    drawn, taken = drawn_bytes(workload), workload.input_bytes
    if workload.distribution != "normal":
        return drawn + 8 * (taken // ITEM_BYTES[workload.dtype])
    return drawn + (taken if drawn <= PLACED_BYTES else taken // 2)


def needed_bytes(workload: Workload, prepared: int) -> int:
    """What has to be free for `workload` at least, where so many contenders hold its inputs already."""
    held, ready = held_bytes(workload), preparing_bytes(workload)
    if workload.backward:
        ready += held  # the gradients that are checked have inputs of their own
    if workload.device == "cpu" and not prepared:  # the right answer is worked out before, in the conductor
        head = workload.keys * (workload.head_dim + workload.value_dim) * 8
        ready = max(ready, drawn_bytes(workload) + _REFERRED * head + _BLOCKS)
    return max(held - workload.input_bytes + least_peak_bytes(workload), ready)


def least_peak_bytes(workload: Workload) -> int:
    """What any implementation holds at once: its inputs, as often as their storage does, and a bias included."""
    further = 0
    if workload.storage != CONTIGUOUS:
        of_keys = workload.kv_heads * workload.keys * (workload.head_dim + workload.value_dim)
        further = (STORED[workload.storage].copies - 1) * workload.batch * of_keys
    return workload.input_bytes + workload.output_bytes + further * ITEM_BYTES[workload.dtype]
