"""A model's attention: captured, measured head by head, asked of every backend, raced, and kept as a value."""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnlab.backend.contender import Contender, parse_all
from attnlab.backend.discovery import unasked
from attnlab.environment import environment
from attnlab.errors import Declined
from attnlab.experiments import capture
from attnlab.experiments import trained_model as models
from attnlab.experiments.diagnosis_errors import INPUTS, BackendError, errors_on
from attnlab.experiments.heads import Head, heads_of
from attnlab.experiments.survey import one_thread
from attnlab.judge.verdicts import verdicts_against
from attnlab.plain import finite
from attnlab.problem import distributions as files
from attnlab.problem.grid import workloads
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload
from attnlab.race.compare import Comparison
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.text import one_line

#: contenders of the race: the quickest of the backends, none that took this much longer than the quickest of all
_RACED, _NEAR = 3, 4.0
#: seconds of each contender's rounds, and its fresh processes: the least that give an interval on a ratio
_SECONDS, _PROCESSES = 0.6, 3
FORMAT = 1


@dataclass(frozen=True)
class Layer:
    """One call of attention. module : its path in the model. label : its workload's; empty where it has none."""

    number: int
    module: str
    label: str


@dataclass(frozen=True)
class Diagnosis:
    """What was found. tokens : of the text, of which there were `tokens_there` (0: not known). race : a comparison of
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
    race: Mapping[str, Any] = field(default_factory=dict)
    raced_layer: int = 0
    no_race: str = ""
    race_sentences: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: int = 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

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
        kinds = {"layers": Layer, "heads": Head, "errors": BackendError}
        for name, kind in kinds.items():
            plain[name] = tuple(
                kind(**{key: math.nan if one is None else one for key, one in row.items()})
                for row in plain[name]
            )
        return cls(**{**plain, "race_sentences": tuple(plain["race_sentences"])})


def diagnose(
    model: Any,
    inputs: Any,
    *,
    length: int | None = None,
    backends: Sequence[str] | None = None,
    folders: Sequence[str] = (),
    race: bool = True,
    save_inputs: Path | str | None = None,
    text_name: str = "",
    command: str = "",
    on_event: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """What attention does in `model` on `inputs`.

    model : a folder with a transformers model (config.json, *.safetensors, a tokenizer), and then `inputs` is a text,
    of which the first `length` tokens are taken (512 by default, or as many as the model takes). Or a torch module on
    the CPU, and then `inputs` are what it is called with: keywords, a tuple of arguments, or one tensor.
    backends : whose errors are measured and of which the quickest race; by default all that set up fast.
    folders : hold further backends.
    race : whether the quickest race.
    save_inputs : a safetensors file for the query, key and value of every layer.
    text_name, command : of the text, for the page; what repeats it.
    on_event : is told what happens.

    Raises ValueError, in one line, for a model without attention or with its own kernels, on another device, quantised,
    pickled or without a tokenizer, and for a length that the model or the text does not have; Unavailable without the
    libraries of the extra `diagnose`.
    """
    told = environment()  # before libraries are there whose threads a fork does not survive
    clock = _Clock(on_event)
    clock.begin("loading")
    if save_inputs is not None:
        files.Captured.parse(str(save_inputs))
    names = list(backends) if backends is not None else unasked(folders)
    for name in names:
        Contender.parse(name).require(folders)
    module, given, about = _called(model, inputs, length)
    clock.begin("running the model")
    calls = _captured(module, given)
    problems = {number: call.problem for number, call in enumerate(calls)}
    if save_inputs is not None:
        save(Path(save_inputs), problems, about.model)
    clock.begin("measuring heads")
    heads: list[Head] = []
    for number, problem in problems.items():
        heads += heads_of(number, problem, [at for at in about.separators if at < problem.shape.keys])
    spread = [max(one.beta / one.critical for one in heads if one.layer == number) for number in problems]
    order = sorted(problems, key=lambda number: -spread[number])  # the layer with the most frozen head first
    clock.begin("asking backends")
    with one_thread():
        errors = errors_on(problems, order, names, folders, clock.detail)
    raced: dict[str, Any] = {"no_race": "it was not asked for"}
    if race:
        clock.begin("racing the quickest")
        raced = _raced(order[0], problems[order[0]], errors, folders)
    clock.begin("")
    return Diagnosis(
        model=one_line(about.model, 80),
        text=one_line(text_name, 120),
        tokens=about.tokens or problems[0].shape.queries,
        tokens_there=about.there,
        dtype=problems[0].dtype,
        layers=tuple(
            Layer(number, one_line(call.module, 120), Workload.of_problem(call.problem).label)
            for number, call in enumerate(calls)
        ),
        heads=tuple(heads),
        errors=tuple(errors),
        seconds=clock.seconds,
        # macOS tells bytes, Linux kibibytes
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024),
        environment=told,
        command=command,
        raced_layer=order[0],
        **raced,
    )


def save(file: Path, problems: Mapping[int, Problem], model: str) -> None:
    """Write every layer's inputs into `file`, as `layer0`, `layer1`, ...; errors as `problem.distributions.save`."""
    files.save(
        file, {f"layer{number}": one for number, one in problems.items()}, {"model": one_line(model, 80)}
    )


@dataclass(frozen=True)
class _About:
    """What is known of a model and of what it is called with: its name, tokens of the text and how many there are."""

    model: str
    tokens: int = 0
    there: int = 0
    separators: tuple[int, ...] = ()


def _called(model: Any, inputs: Any, length: int | None) -> tuple[Any, Any, _About]:
    """The module, what it is called with, and what a page says of both."""
    import torch

    if isinstance(model, str | Path):
        if not isinstance(inputs, str):
            raise ValueError(
                f"a folder's model reads a text, got {type(inputs).__name__}; load it and give the module"
            )
        loaded = models.load(Path(model))
        text = models.tokens(loaded, inputs, length)
        models.check_module(loaded.model)
        return loaded.model, text.inputs, _About(loaded.name, text.count, text.there, text.separators)
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
    if limit is not None and tokens > limit:
        raise ValueError(f"the model takes at most {limit} tokens, got {tokens}")
    return model, given, _About(type(model).__name__)


def _captured(module: Any, given: Any) -> list[capture.Call]:
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
    layer: int, problem: Problem, errors: Sequence[BackendError], folders: Sequence[str]
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
        seconds = _SECONDS * len(near)
        limits = Limits(workload_seconds=seconds, processes=_PROCESSES, most_processes=_PROCESSES)
        with Conductor(parse_all(near), folders=folders, limits=limits, memory=False) as conductor:
            results = tuple(conductor.race(workload))
    verdicts = verdicts_against(results, near[0])
    found = Comparison(workload, near[0], results, verdicts, sets=_PROCESSES)
    plain = found.to_json()
    plain.pop("command")  # the file is gone; the page says how to write it again
    plain["workload"].pop("distribution")
    return {"race": plain, "race_sentences": tuple(map(one_line, found.sentences()))}


class _Clock:
    """What each part takes, and who is told that it begins."""

    def __init__(self, on_event: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._told, self._name, self._began = on_event, "", 0.0

    def begin(self, name: str) -> None:
        """Another part begins, or with no name nothing more."""
        now = time.monotonic()
        if self._name:
            self.seconds[self._name] = now - self._began
        if name:
            self._told(name)
        self._name, self._began = name, now

    def detail(self, text: str) -> None:
        self._told(f"{self._name}: {text}")
