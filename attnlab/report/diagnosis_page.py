"""The page of a diagnosis: what was found in sentences, two figures, the most frozen heads, errors, the race."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.figures import Drawn
from attnlab.lab.diagnosis import INPUTS, BackendError, Diagnosis
from attnlab.lab.heads import FROZEN, LOST, Head, entropies, spread
from attnlab.lab.theory import float_format
from attnlab.lab.untrained import ALIKE, BEYOND, DISTANCE, DRAWN, FIRST, Compared
from attnlab.report.layout import FIGURES, NONE, Writing, fill, markdown, plain, table
from attnlab.report.render import escaped
from attnlab.text import (
    bytes_text,
    counted,
    interval_text,
    listed,
    named,
    number_text,
    percent,
    ratio_text,
    seconds_text,
)

PAGE, STORE = "diagnosis.md", "diagnosis.json"
_SHOWN = 10


def write(found: Diagnosis, folder: Path) -> Path:
    """Write the page, its figures and ``diagnosis.json`` into `folder`, and return the page's path. Raises OSError."""
    drawn = {"spread": Drawn(*spread(found.heads)), "entropy": Drawn(*entropies(found.heads))}
    pictures = Writing(drawn, folder / FIGURES).finish()
    stored = json.dumps(found.to_json(), indent=1, allow_nan=False)
    (folder / STORE).write_text(stored + "\n", encoding="utf-8")
    page = folder / PAGE
    page.write_text(
        fill(
            "diagnosis.md.j2",
            model=escaped(found.model),
            about=_about(found),
            lines=sentences(found),
            pictures=pictures,
            frozen=_frozen_table(found),
            errors=error_table(found.errors),
            left_out=_left_out(found.errors),
            control=_control(found),
            race=_race(found),
            times=listed([f"{name} {seconds:.1f} s" for name, seconds in found.seconds.items()]),
            command=found.command.replace("```", "'''"),
            layer=found.raced_layer,
        ),
        encoding="utf-8",
    )
    return page


def sentences(found: Diagnosis) -> list[str]:
    """What was found, and what to do about it: a sentence a finding, each number with its condition."""
    parts = (_freezing, _chance, _untrained, _gradients, _sinks, _range, _formats, _fastest)
    return [text for part in parts if (text := part(found))]


def _freezing(found: Diagnosis) -> str:
    low, high = found.most_frozen[-1], found.most_frozen[0]
    half = sum(one.frozen_rows > 0.5 for one in found.heads)
    return (
        f"**{len(found.frozen)} of {counted(len(found.heads), 'head')} lie beyond the freezing line** "
        f"{_line(found)}: β runs from {number_text(low.beta)} ({_head(low)}) to {number_text(high.beta)} "
        f"({_head(high)}). Independent normal logits spread as far would be frozen: a few keys would hold most of the "
        f"weight. One key holds over half of it in most rows of {counted(half, 'head')}."
    )


def _line(found: Diagnosis) -> str:
    ends = sorted({round(one.critical, 3) for one in found.heads})
    return (
        f"√(2 ln n) = {number_text(ends[0])}"
        if len(ends) == 1
        else f"√(2 ln n), {number_text(ends[0])} to {number_text(ends[-1])}"
    )


def _chance(found: Diagnosis) -> str:
    away = [one.departure for one in found.heads]
    furthest = max(found.heads, key=lambda one: abs(one.departure))
    return (
        f"**Entropies are {number_text(statistics.median(map(abs, away)), 2)} nats (median over heads) from chance**, "
        f"that of independent logits of the same spread: below it in {sum(one < 0 for one in away)} of "
        f"{counted(len(away), 'head')}, above it in {sum(one > 0 for one in away)}, and at the furthest by "
        f"{number_text(abs(furthest.departure))} ({_head(furthest)}: {number_text(furthest.entropy)} measured, "
        f"{number_text(furthest.expected_entropy)} by chance)."
    )


def _untrained(found: Diagnosis) -> str:
    """What of the trained model an untrained one does not show, each with its distance in standard errors."""
    if not found.control:
        return ""
    rows = {(one.quantity, one.control): one for one in found.control}
    told = [
        _against(rows[BEYOND, DRAWN], "heads beyond the freezing line"),
        _against(rows[FIRST, DRAWN], "of the weight on the first token"),
        _against(
            rows[DISTANCE, ALIKE], "nats from chance (median over heads) where its logits are spread as far"
        ),
    ]
    return f"**Against the same architecture untrained** ({_sample(found)}): {'; '.join(told)}."


def _against(one: Compared, what: str) -> str:
    apart = "no error from one text" if math.isnan(one.difference_error) else _apart(one)
    return f"{number_text(one.trained)} against {number_text(one.untrained)} {what} ({apart})"


def _apart(one: Compared) -> str:
    """The difference in its standard errors, in words."""
    if math.isnan(one.errors_apart):
        return NONE if one.difference_error else "the same in all" if not one.difference else "no scatter"
    return f"{number_text(one.errors_apart, 2)} standard errors apart"


def _sample(found: Diagnosis) -> str:
    return f"{counted(1 + len(found.more_texts), 'text')}, {counted(found.seeds, 'seed')}"


def _control(found: Diagnosis) -> str:
    """The table of the comparison, and what it is of."""
    if not found.control:
        return (
            "Without an untrained control nothing here tells what training did: give the model as a folder."
        )
    columns: Mapping[str, Callable[[Compared], object]] = {
        "mean over texts": lambda one: one.quantity,
        "control": lambda one: one.control,
        "trained": lambda one: _with_error(one.trained, one.trained_error),
        "control's": lambda one: _with_error(one.untrained, one.untrained_error),
        "difference": lambda one: _with_error(one.difference, one.difference_error),
        "in standard errors": lambda one: (
            NONE if math.isnan(one.errors_apart) else number_text(one.errors_apart, 2)
        ),
    }
    more = f" and of {listed([f'`{escaped(one)}`' for one in found.more_texts])}" if found.more_texts else ""
    few = f" ({len(found.more_texts)} degrees of freedom)" if more else ""
    return (
        f"The same configuration with random weights, {_sample(found)}: the text above{more}. *{ALIKE.capitalize()}*: "
        "with the queries of each head multiplied so that its β is the trained head's on that text.\n\n"
        + table(found.control, columns, left=2)
        + f"\n\n± is one standard error: over texts{few}, and for a control and the difference, which is taken text by "
        "text, over seeds too. The random weights are those that the library draws, not those that this training "
        "began from."
    )


def _with_error(value: float, error: float) -> str:
    return number_text(value) if math.isnan(error) else f"{number_text(value)} ± {number_text(error, 2)}"


def _gradients(found: Diagnosis) -> str:
    worst = max(found.heads, key=lambda one: one.lost_rows)
    if not worst.lost_rows:
        return f"**No row has ‖J‖ below {LOST:g}**, J the Jacobian of the softmax. No gradient was measured."
    count = sum(one.lost_rows > 0 for one in found.heads)
    less = sum(one.jacobian_norm < worst.jacobian_norm for one in found.heads)
    return (
        f"**‖J‖ is below {LOST:g} in {percent(worst.lost_rows)} of the rows of {_head(worst)}**, the most of all; "
        f"{counted(count, 'head')} {'has' if count == 1 else 'have'} such rows. Of a gradient on the "
        f"weights of such a row at most {LOST:g} of its size would reach the logits, and queries and "
        f"keys through them alone. Over all its rows the "
        f"root mean square of ‖J‖ is {number_text(worst.jacobian_norm)}, and {counted(less, 'head')} "
        f"{'has' if less == 1 else 'have'} less. No gradient was measured: the model ran forward."
    )


def _sinks(found: Diagnosis) -> str:
    first = max(found.heads, key=lambda one: one.first)
    mean = statistics.fmean(one.first for one in found.heads)
    text = (
        f"**The first token takes {percent(mean)} of the weight** over all heads ({percent(1 / found.tokens)} if all "
        f"keys were alike), most in {_head(first)}: {percent(first.first)}"
    )
    known = [one for one in found.heads if not math.isnan(one.separators)]
    if known:
        most = max(known, key=lambda one: one.separators)
        mean = statistics.fmean(one.separators for one in known)
        text += f"; special tokens after it take {percent(mean)}, most in {_head(most)}: {percent(most.separators)}"
    learned = max(found.heads, key=lambda one: one.sink)
    if learned.sink:
        text += f"; learned sinks take up to {percent(learned.sink)} ({_head(learned)})"
    return text + ". What leaves the first token out, a window or a cache, leaves out that share."


def _range(found: Diagnosis) -> str:
    product = max(found.heads, key=lambda one: one.largest_product)
    logit = max(found.heads, key=lambda one: one.largest_logit)
    largest = float_format("float16").largest
    held = product.largest_product < largest
    return (
        f"**float16 {'holds' if held else 'does not hold'} every score**: the largest q·k is "
        f"{number_text(product.largest_product)} in size ({_head(product)}), {percent(product.float16_share)} of "
        f"float16's largest number, {largest:,.0f}; the largest logit is {number_text(logit.largest_logit)}"
        f"{'.' if held else ': compute in bfloat16 or float32, or scale the queries before the product.'}"
    )


def _formats(found: Diagnosis) -> str:
    known = [one for one in found.errors if one.backend == INPUTS and one.error > 0]
    if not known:
        return ""
    parts = [
        f"{percent(one.error)} in {one.dtype} (worst head {one.layer}.{one.head}, {percent(one.worst)})"
        for one in known
    ]
    best = min(known, key=lambda one: one.error)
    text = f"**Rounding query, key and value alone moves the outputs** by {listed(parts)}"
    others = [one for one in known if one is not best and one.error > best.error]
    if not others:
        return text + "."
    other = max(others, key=lambda one: one.error)
    return f"{text}: {best.dtype} costs {number_text(other.error / best.error, 2)} times less than {other.dtype}."


def _fastest(found: Diagnosis) -> str:
    if found.no_race:
        return f"No backends raced: {escaped(found.no_race)}."
    if not any(one["seconds_median"] for one in found.race["contenders"]):
        return "No backend could be measured."
    timed = [one for one in found.race["contenders"] if _counts(one)]
    if not timed:
        return "No turn of the race counts: other programs used the cores."
    best = min(timed, key=lambda one: one["seconds_median"])
    return (
        f"**Quickest of {counted(len(timed), 'backend')} that raced is `{escaped(best['name'])}`**, "
        f"median {seconds_text(best['seconds_median'])} a call at {_shape(found)} on the inputs of layer "
        f"{found.raced_layer}; whether that is decided stands below."
    )


def _counts(one: Mapping[str, Any]) -> bool:
    """Whether a contender of the race has a time: one of its turns at least was not disturbed."""
    return bool(one["seconds_median"]) and one["disturbed_rounds"] < one["rounds"]


def _shape(found: Diagnosis) -> str:
    label = next((one.label for one in found.layers if one.number == found.raced_layer), "")
    return f"`{escaped(label)}`"


def _head(one: Head) -> str:
    return f"layer {one.layer}, head {one.head}"


def _about(found: Diagnosis) -> str:
    of = f" of {found.tokens_there:,}" if found.tokens_there > found.tokens else ""
    text = f" of `{escaped(found.text)}`" if found.text else ""
    cpu = escaped(str(found.environment.get("cpu")))
    heads = len(found.heads) // max(1, len(found.layers))
    return (
        f"{len(found.layers)} layers of {heads} heads, in {found.dtype}, on the first {found.tokens}{of} tokens{text}; "
        f"{sum(found.seconds.values()):.0f} s on {cpu}, {bytes_text(found.peak_bytes)} at most in this process."
    )


def _frozen_table(found: Diagnosis) -> str:
    columns: Mapping[str, Callable[[Head], object]] = {
        "layer": lambda one: one.layer,
        "head": lambda one: one.head,
        "β": lambda one: number_text(one.beta),
        "β / β_c": lambda one: number_text(one.beta / one.critical),
        "H": lambda one: number_text(one.entropy),
        "H by chance": lambda one: number_text(one.expected_entropy),
        "max p": lambda one: number_text(one.largest_weight),
        "max p by chance": lambda one: number_text(one.expected_largest_weight),
        "keys that take part, 1/Σp²": lambda one: number_text(1 / one.participation),
        f"rows with max p > {FROZEN:g}": lambda one: percent(one.frozen_rows),
        "‖J‖": lambda one: number_text(one.jacobian_norm),
        "‖J‖ by chance": lambda one: number_text(one.expected_jacobian_norm),
        "first token": lambda one: percent(one.first),
        "largest logit": lambda one: number_text(one.largest_logit),
        "exponentials that are 0 in float16": lambda one: percent(one.underflow),
    }
    return f"The {_SHOWN} most frozen heads:\n\n" + table(found.most_frozen[:_SHOWN], columns, left=0)


def error_table(errors: Sequence[BackendError]) -> str:
    """A row a backend, a column a number format; empty without errors."""
    asked = [one for one in errors if not one.reason]
    dtypes = list(dict.fromkeys(one.dtype for one in asked))
    by_name: dict[str, dict[str, BackendError]] = {}
    for one in asked:
        by_name.setdefault(one.backend, {})[one.dtype] = one
    rows = [
        [
            name if name == INPUTS else f"`{escaped(name)}`",
            *(_error(found.get(dtype)) for dtype in dtypes),
        ]
        for name, found in by_name.items()
    ]
    return markdown(["backend", *dtypes], rows)


def _error(one: BackendError | None) -> str:
    if one is None:
        return NONE
    if not (math.isfinite(one.error) and math.isfinite(one.worst)):
        return "not finite"
    return f"{one.error:.1e} ({one.worst:.1e})" if one.error else "0"


def _left_out(errors: Sequence[BackendError]) -> str:
    """Who was asked in no number format, gathered by the reason of the widest one."""
    answered = {one.backend for one in errors if not one.reason}
    last = {one.backend: one.reason for one in errors if one.reason and one.backend not in answered}
    names: dict[str, list[str]] = {}
    for backend, reason in last.items():
        why = re.sub(rf"^{re.escape(backend)} declines .*?: ", "", reason)
        why = re.sub(r"^\w+ is not installed; .*", "not installed", why)
        names.setdefault(escaped(why), []).append(backend)
    told = [f"{named(who)} ({why})" for why, who in names.items()]
    return f"Left out: {'; '.join(told)}." if told else ""


def _race(found: Diagnosis) -> str:
    if found.no_race:
        return f"No race: {escaped(found.no_race)}."
    rows = [
        [
            f"`{escaped(one['name'])}`",
            one["outcome"],
            seconds_text(one["seconds_median"]) if _counts(one) else NONE,
            ratio_text(one["ratio"]) if one["ratio"] else NONE,
            interval_text(one["ratio_low"], one["ratio_high"])
            if one["ratio_low"] and one["ratio_high"]
            else NONE,
            one["verdict"] or NONE,
        ]
        for one in found.race["contenders"]
    ]
    raced = markdown(["contender", "outcome", "median", "ratio", "95 % interval", "verdict"], rows)
    told = "\n".join(f"- {escaped(one)}" for one in found.race_sentences)
    return (
        f"The quickest backends raced at {_shape(found)}, on the inputs of layer {found.raced_layer}, "
        f"{found.race['sets']} fresh processes of each:\n\n{raced}\n\n{told}"
    )


def summary(found: Diagnosis) -> list[str]:
    """The sentences without their Markdown, for a terminal."""
    return [plain(one) for one in sentences(found)]
