"""A model's attention: captured, measured head by head, asked of every backend, raced, and kept as a value.

The truth of a backend's error is the exact answer to the inputs as they were captured, so that an error holds what
rounding query, key and value to the number format does, whoever computes; `INPUTS` is that part alone.
"""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.call import answer
from attnlab.backends.contender import Contender
from attnlab.backends.discovery import unasked
from attnlab.environment import environment
from attnlab.errors import Declined, Unavailable
from attnlab.lab import capture
from attnlab.lab import trained_model as models
from attnlab.lab.capture import exact_output
from attnlab.lab.heads import Head
from attnlab.lab.survey import one_thread
from attnlab.lab.untrained import ALIKE, DRAWN, Compared, all_heads, compared, spread_alike
from attnlab.plain import finite
from attnlab.race.compare import compare
from attnlab.race.limits import Limits
from attnlab.text import one_line
from attnlab.workload import captured as files
from attnlab.workload.grid import workloads
from attnlab.workload.inputs import Inputs
from attnlab.workload.vocabulary import DTYPES, ITEM_BYTES, OUTPUT
from attnlab.workload.workload import Workload

#: contenders of the race: the quickest of the backends, none that took this much longer than the quickest of all
_RACED, _NEAR = 3, 4.0
#: seconds of each contender's rounds, and its fresh processes: the least that give an interval on a ratio
_SECONDS, _PROCESSES = 0.6, 3
#: of the untrained control
_SEEDS = 3
FORMAT = 1
#: stands for the rounding of the inputs alone, the rest exact
INPUTS = "inputs rounded"
#: whose calls on all layers would take more seconds of processor time than this is not asked; a call on so many
#: queries and keys predicts it
_LONGEST, _SMALL = 10.0, 256
Array = NDArray[np.float64]
Attend = Callable[[Inputs], NDArray[Any]]


@dataclass(frozen=True)
class Layer:
    """One call of attention. module : its path in the model. label : its workload's; empty where it has none."""

    number: int
    module: str
    label: str


@dataclass(frozen=True)
class BackendError:
    """What one backend's answers are off by in one number format: relative Frobenius errors, dimensionless.

    error : over all heads of all layers. worst : of the worst head, `layer` and `head`. seconds : of its quickest call,
    in this process, as a guide to what is worth a race. reason : why there is none of all that, empty otherwise.
    """

    backend: str
    dtype: str
    error: float = 0.0
    worst: float = 0.0
    layer: int = 0
    head: int = 0
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What was found. heads, errors and race are of the first text, whose first `tokens` were read of `tokens_there`
    (0: not known). more_texts : names of the others. control : all texts, against untrained models of so many `seeds`;
    empty for a module. race : a comparison of
    the quickest backends as plain data, on the inputs of `raced_layer`; empty where there was none, `no_race` says why.
    seconds : what each part took; peak_bytes : of this process."""

    model: str
    text: str
    tokens: int
    tokens_there: int
    dtype: str
    layers: tuple[Layer, ...]
    heads: tuple[Head, ...]
    errors: tuple[BackendError, ...]
    more_texts: tuple[str, ...] = ()
    control: tuple[Compared, ...] = ()
    seeds: int = 0
    race: Mapping[str, Any] = field(default_factory=dict)
    raced_layer: int = 0
    no_race: str = ""
    race_sentences: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    def __repr__(self) -> str:
        counts = (
            f"{len(self.layers)} layers, {len(self.heads)} heads, {len(self.frozen)} beyond the freezing line"
        )
        return f"Diagnosis({self.model} on {self.tokens} tokens of {self.text}: {counts})"

    @property
    def most_frozen(self) -> list[Head]:
        """All heads, the furthest beyond its freezing line first."""
        return sorted(self.heads, key=lambda one: one.critical / one.beta if one.beta else math.inf)

    @property
    def frozen(self) -> list[Head]:
        """The heads beyond the freezing line, the furthest first."""
        return [one for one in self.most_frozen if one.beyond]

    def to_json(self) -> dict[str, Any]:
        """Plain data, `from_json` undoes it; a number that does not exist is None."""
        return {"format": FORMAT, **finite(asdict(self), named=False)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Diagnosis:
        """The inverse of `to_json`. Raises ValueError for another format."""
        if data.get("format") != FORMAT:
            raise ValueError(f"a diagnosis of format {FORMAT} is needed, got {data.get('format')!r}")
        plain = {name: value for name, value in data.items() if name != "format"}
        kinds = {"layers": Layer, "heads": Head, "errors": BackendError, "control": Compared}
        for name, kind in kinds.items():
            plain[name] = tuple(
                kind(**{key: math.nan if one is None else one for key, one in row.items()})
                for row in plain.get(name, ())
            )
        names = ("race_sentences", "more_texts")
        return cls(**{**plain, **{name: tuple(plain.get(name, ())) for name in names}})


def diagnose(
    model: Any,
    inputs: Any,
    *,
    length: int | None = None,
    backends: Sequence[str] | None = None,
    folders: Sequence[str] = (),
    race: bool = True,
    save_inputs: Path | str | None = None,
    text_name: str | Sequence[str] = "",
    command: str = "",
    on_event: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """What attention does in `model` on `inputs`.

    model : a folder with a transformers model (config.json, *.safetensors, a tokenizer), and then `inputs` is a text,
    of which the first `length` tokens are taken (512 by default, or as many as the model takes), or several: heads,
    backends and race are of the first, and all are read by untrained models of the same configuration too. Or a torch
    module on the CPU, and then `inputs` are what it is called with: keywords, a tuple of arguments, or one tensor.
    backends : whose errors are measured and of which the quickest race; by default all that set up fast.
    folders : hold further backends.
    race : whether the quickest race.
    save_inputs : a safetensors file for the query, key and value of every layer.
    text_name, command : of the text, of several a sequence, for the page; what repeats it.
    on_event : is told what happens.

    Raises ValueError, in one line, for a model without attention or with its own kernels, on another device, quantised,
    pickled or without a tokenizer, and for a length that the model or the text does not have; Unavailable without the
    libraries of the extra `diagnose`.
    """
    told = environment()  # before libraries are there whose threads a fork does not survive
    seconds: dict[str, float] = {}

    @contextmanager
    def part(name: str) -> Iterator[None]:
        """Tells that a part begins, and keeps what it took."""
        on_event(name)
        began = time.monotonic()
        yield
        seconds[name] = time.monotonic() - began

    if save_inputs is not None:
        files.Captured.parse(str(save_inputs))
    names = list(backends) if backends is not None else unasked(folders)
    for name in names:
        Contender.parse(name).require(folders)
    with part("loading"):
        name, module, givens = called(model, inputs, length)
    given = givens[0]
    with part("running the model"):
        calls = attention_calls(module, given.inputs)
    problems = {number: call.problem for number, call in enumerate(calls)}
    if save_inputs is not None:
        save(Path(save_inputs), problems, name)
    with part("measuring heads"):
        heads = all_heads(calls, given.separators)
    control: list[Compared] = []
    if isinstance(model, str | Path):
        with part("the untrained control"):
            control = _control(module, givens, heads)
    text, *more = (text_name,) if isinstance(text_name, str) else text_name
    spread = [max(one.beta / one.critical for one in heads if one.layer == number) for number in problems]
    order = sorted(problems, key=lambda number: -spread[number])  # the layer with the most frozen head first
    with part("asking backends"), one_thread():
        in_order = {number: problems[number] for number in order}
        errors = errors_on(in_order, names, folders, lambda text: on_event(f"asking backends: {text}"))
    raced: dict[str, Any] = {"no_race": "it was not asked for"}
    if race:
        with part("racing the quickest"):
            raced = _raced(order[0], problems[order[0]], errors, folders)
    return Diagnosis(
        model=one_line(name, 80),
        text=one_line(text, 120),
        more_texts=tuple(one_line(one, 120) for one in more),
        control=tuple(control),
        seeds=_SEEDS if control else 0,
        tokens=given.count or problems[0].shape.queries,
        tokens_there=given.there,
        dtype=problems[0].dtype,
        layers=tuple(
            Layer(number, one_line(call.module, 120), Workload.of_problem(call.problem).label)
            for number, call in enumerate(calls)
        ),
        heads=tuple(heads),
        errors=tuple(errors),
        seconds=seconds,
        # macOS tells bytes, Linux kibibytes
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024),
        environment=told,
        command=command,
        raced_layer=order[0],
        **raced,
    )


def save(file: Path, problems: Mapping[int, Inputs], model: str) -> None:
    """Write every layer's inputs into `file`, as `layer0`, `layer1`, ...; errors as `problem.inputs.save`."""
    files.save(
        file, {f"layer{number}": one for number, one in problems.items()}, {"model": one_line(model, 80)}
    )


def _control(module: Any, givens: Sequence[models.Given], heads: list[Head]) -> list[Compared]:
    """All texts by the model, of which `heads` are the first's, and by untrained ones."""

    def read(model: Any, given: models.Given) -> list[capture.Call]:
        return capture.captured(model, given.inputs)

    trained = [heads, *(all_heads(read(module, given), given.separators) for given in givens[1:])]
    drawn: dict[str, list[list[list[Head]]]] = {DRAWN: [], ALIKE: []}
    for seed in range(_SEEDS):
        model = models.untrained(module, seed)
        for texts in drawn.values():
            texts.append([])
        for given, wanted in zip(givens, trained, strict=True):
            calls = read(model, given)
            own = all_heads(calls, given.separators)
            drawn[DRAWN][-1].append(own)
            drawn[ALIKE][-1].append(all_heads(spread_alike(calls, wanted, own), given.separators))
    return compared(trained, drawn)


def called(model: Any, inputs: Any, length: int | None) -> tuple[str, Any, list[models.Given]]:
    """The model's name, its module, and what it is called with, text by text."""
    import torch

    if isinstance(model, str | Path):
        texts = (
            [inputs] if isinstance(inputs, str) else list(inputs) if isinstance(inputs, list | tuple) else []
        )
        if not texts or not all(isinstance(one, str) for one in texts):
            raise ValueError(
                f"a folder's model reads a text, got {type(inputs).__name__}; load it and give the module"
            )
        module, tokenizer = models.load(Path(model))
        models.check_module(module)
        read = [models.tokens(module, tokenizer, one, length) for one in texts]
        return Path(model).resolve().name, module, read
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model must be a folder or a torch module, got {type(model).__name__}")
    if isinstance(inputs, str):
        raise ValueError("a module takes tensors: give its tokens, or the model's folder with a text")
    if length is not None:
        raise ValueError("length cuts a text; cut the tensors that a module is called with yourself")
    models.check_module(model)
    given = inputs if isinstance(inputs, Mapping | tuple) else (inputs,)
    limit, ids = models.token_limit(model), given.get("input_ids") if isinstance(given, Mapping) else given[0]
    counted = isinstance(ids, torch.Tensor) and ids.ndim == 2 and not ids.is_floating_point()
    tokens = ids.shape[1] if ids is not None and counted else 0
    if tokens > limit:
        raise ValueError(f"the model takes at most {limit} tokens, got {tokens}")
    return type(model).__name__, model, [models.Given(given)]


def attention_calls(module: Any, given: Any) -> list[capture.Call]:
    """The calls of attention; ValueError where there are none, or where they compute something else."""
    try:
        calls = capture.captured(module, given)
    except ValueError:
        raise
    except Exception as fault:  # the model is other people's code
        raise ValueError(
            f"the model cannot be called: {type(fault).__name__}: {one_line(str(fault), 200)}"
        ) from None
    name = type(module).__name__
    if not calls:
        heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
        what = "computes attention with kernels of its own" if heads else "calls no attention"
        raise ValueError(
            f"{name} {what}: what is captured are transformers' attention interface and "
            "torch.nn.functional.scaled_dot_product_attention"
        )
    for number, call in enumerate(calls):
        off = capture.disagreement(call)
        if off is not None:
            raise ValueError(
                f"layer {number} ({one_line(call.module, 80)}) of {name} does more than softmax(scale·q kᵀ + bias) v: "
                f"its answer lies {off:.2g} of its size away, so that what is measured would not be the model's"
            )
    return calls


def _raced(
    layer: int, problem: Inputs, errors: Sequence[BackendError], folders: Sequence[str]
) -> dict[str, Any]:
    """The quickest backends on the inputs of one layer, through the race."""
    able = sorted(
        (one for one in errors if one.dtype == problem.dtype and not one.reason and one.backend != INPUTS),
        key=lambda one: one.seconds,
    )
    near = [one.backend for one in able if one.seconds <= _NEAR * able[0].seconds][:_RACED]
    if len(near) < 2:
        return {"no_race": f"{near[0] if near else 'no backend'} has no rival here"}
    with tempfile.TemporaryDirectory(prefix="attnlab-") as folder:
        file = Path(folder) / "inputs.safetensors"
        try:
            save(file, {layer: problem}, "")
            (workload,) = workloads({"distribution": str(file)}, grid=False)
        except (ValueError, Declined) as reason:
            return {"no_race": one_line(str(reason))}
        limits = Limits(
            workload_seconds=_SECONDS * len(near), processes=_PROCESSES, most_processes=_PROCESSES
        )
        found = compare(*near, workload=workload, folders=folders, limits=limits)
    plain = found.to_json()
    plain.pop("command")  # the file is gone; the page says how to write it again
    plain["workload"].pop("distribution")
    return {"race": plain, "race_sentences": tuple(map(one_line, found.sentences()))}


def errors_on(
    problems: Mapping[int, Inputs],
    backends: Sequence[str],
    folders: Sequence[str] = (),
    on_event: Callable[[str], None] = lambda text: None,
) -> list[BackendError]:
    """The errors of `backends` on layers, in that order, in every format no wider than the layers' own.

    Raises ValueError for an unknown backend; one that cannot be asked, or raises, has its reason.
    """
    exact = {layer: exact_output(problem) for layer, problem in problems.items()}
    first = next(iter(problems.values()))
    asked = [one for one in DTYPES if ITEM_BYTES[one] <= ITEM_BYTES[first.dtype]]  # narrow first
    some = first.query[:1, : first.group, :_SMALL], first.key[:1, :1, :_SMALL], first.value[:1, :1, :_SMALL]
    part = Inputs.of(*some, scale=first.scale, dtype=first.dtype)
    calls = math.prod(first.shape) / math.prod(part.shape) * len(problems)
    found = [_measured(BackendError(INPUTS, dtype), problems, exact, exact_output) for dtype in asked]
    for name in backends:
        on_event(name)
        attend = partial(_output, name, folders)
        for one in [BackendError(name, dtype) for dtype in asked]:
            if _seconds(attend, part.cast(one.dtype)) * calls > _LONGEST:
                found.append(replace(one, reason=f"its calls would take more than {_LONGEST:g} s"))
            else:
                found.append(_measured(one, problems, exact, attend))
    return found


def _output(name: str, folders: Sequence[str], problem: Inputs) -> NDArray[Any]:
    return answer(name, problem, folders=folders)[OUTPUT]


def _seconds(attend: Attend, problem: Inputs) -> float:
    """Of processor time, of the quicker of two calls; 0 where it raises, which is told on the inputs themselves."""
    found = []
    for _ in range(2):
        begun = time.process_time()
        with suppress(Exception):
            attend(problem)
            found.append(time.process_time() - begun)
    return min(found, default=0.0)


def _measured(
    one: BackendError, problems: Mapping[int, Inputs], exact: Mapping[int, Array], attend: Attend
) -> BackendError:
    """`one` with the errors of `attend` in its number format on all layers, or with the reason why there are none."""
    wrong, size, least = 0.0, 0.0, math.inf
    for layer, problem in problems.items():
        begun = time.monotonic()
        try:
            with np.errstate(all="ignore"):  # what overflows shows in the error
                found = attend(problem.cast(one.dtype)).astype(np.float64)
        except (Declined, Unavailable) as reason:
            return replace(one, reason=one_line(str(reason)))
        except Exception as fault:  # other people's code, on inputs that nobody chose
            return replace(one, reason=one_line(f"raised {type(fault).__name__}: {fault}"))
        least = min(least, time.monotonic() - begun)
        off, whole = (np.square(each).sum(axis=(0, 2, 3)) for each in (found - exact[layer], exact[layer]))
        heads = np.sqrt(off / np.where(whole > 0, whole, 1.0))
        head = int(np.argmax(np.where(np.isnan(heads), np.inf, heads)))
        wrong, size = wrong + float(off.sum()), size + float(whole.sum())
        if not heads[head] <= one.worst:
            one = replace(one, worst=float(heads[head]), layer=layer, head=head)
    return replace(one, error=math.sqrt(wrong / size) if size else 0.0, seconds=least)
