"""A synthetic run made from cost models, so that the right conclusions are known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attnlab.lab import CHAPTER_FILE
from attnlab.lab.experiments import Finding
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run
from attnlab.workload.result import Accuracy, Ceiling, Measurement, Outcome, Result
from attnlab.workload.workload import Workload

BASELINE = "torch_eager"
Cost = Callable[[Workload], float]

#: seconds of a call: a fixed cost, a cost per query-key pair, and the FLOPs at some rate
COSTS: dict[str, Cost] = {
    "naive_loop": lambda w: 2e-5 + 1.6e-6 * w.pairs,
    "numpy_vectorized": lambda w: 9e-6 + w.flops / 90e9 + 1.9e-9 * w.pairs,
    "numpy_blocked": lambda w: 14e-6 * math.ceil(w.keys / 128) + w.flops / 85e9 + 2.0e-9 * w.pairs,
    "torch_eager": lambda w: 30e-6 + w.flops / 150e9 + 1.0e-9 * w.pairs,
    "torch_sdpa": lambda w: 17e-6 + w.flops / 170e9 + 0.25e-9 * w.pairs,
    "torch_sdpa_math": lambda w: 48e-6 + w.flops / 140e9 + 1.3e-9 * w.pairs,
    "torch_sdpa_flash": lambda w: 17e-6 + w.flops / 170e9 + 0.25e-9 * w.pairs,
}
CONTENDERS = (*[*COSTS][:4], "torch_eager#2", *[*COSTS][4:], "torch_sdpa_efficient", "torch_sdpa_cudnn")
KERNELS = {
    "torch_sdpa": "_scaled_dot_product_flash_attention_for_cpu",
    "torch_sdpa_flash": "_scaled_dot_product_flash_attention_for_cpu",
    "torch_sdpa_math": "_scaled_dot_product_attention_math",
}
#: score matrices that a call holds at once
_MATRICES = {"numpy_vectorized": 3, "torch_eager": 2, "torch_sdpa_math": 3}


def synthetic(
    folder: Path,
    *,
    contenders: tuple[str, ...] = (),
    costs: Mapping[str, Cost] = COSTS,
    kernels: Mapping[str, str] = KERNELS,
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048),
    heads: tuple[int, ...] = (1, 4, 16),
    rounds: int = 15,
    visits: int = 5,
    noise: float = 0.02,
    wander: float = 0.01,
    baseline: str = "",
    second_entry: float = 1.0,
    wrong: tuple[str, ...] = (),
    memory: bool = True,
    complete: bool = True,
    ceiling_flops: float = 240e9,
    seed: int = 0,
    variants: tuple[Mapping[str, object], ...] = ({},),
    **grid: Any,
) -> Run:
    """The run that `costs` would give, with lognormal `noise`; `second_entry` multiplies the times of ``#2``.

    The machine's speed is a random walk with steps of `wander`, the same for all contenders. The `rounds` are divided
    among the `visits`. `contenders` are by default those with costs, and the `baseline` is the first of them; with the
    default costs they are CONTENDERS and BASELINE. `variants` are further fields of the workloads, each with the grid.
    """
    contenders = contenders or (CONTENDERS if costs is COSTS else tuple(costs))
    plan = Plan.grid(lengths=lengths, heads=heads, contenders=(), baseline=None, **grid)
    every = tuple(workload.with_(**fields) for fields in variants for workload in plan.workloads)
    generator = np.random.default_rng(seed)
    run = Run(
        folder=folder,
        plan=replace(plan, workloads=every),
        environment=ENVIRONMENT,
        contenders=contenders,
        baseline=baseline or (BASELINE if costs is COSTS else contenders[0]),
        command="attnlab run --lengths 64,2048",
        started="2026-03-01T12:00:00+00:00",
        complete=complete,
        ceilings=[Ceiling("cpu", "float32", ceiling_flops, "numpy", 21e9, "torch")],
    )
    run.save()
    write_chapter(run, [variance()])

    def result(name: str, workload: Workload, drift: np.ndarray) -> Result:
        backend = name.partition("#")[0]
        error = 3e-7 * (workload.keys / 64) ** 0.1
        accuracy = Accuracy(error, 4e-6, passed=True)
        if backend not in costs:
            reason = f"{backend.removeprefix('torch_sdpa_')} attention is there for CUDA only"
            return Result(name, workload, Outcome.DECLINED, reason)
        if backend in wrong:
            bad = Accuracy(0.31, 4e-6, False, "error 0.31, budget 4e-06")
            return Result(name, workload, Outcome.WRONG, "relative error 0.31, at most 4e-06 is right", bad)
        seconds = costs[backend](workload) * (second_entry if "#" in name else 1.0)
        if seconds > 2:
            reason = f"a call is predicted to take {seconds:.0f} s, more than 2 s"
            return Result(name, workload, Outcome.OVER_BUDGET, reason, accuracy)
        count = np.arange(len(drift))
        samples = seconds * drift * np.exp(generator.normal(0, noise, len(drift)))
        noted = {"round": count, "visit": count * visits // len(drift)}
        noted["disturbed"] = (count == 3) & (rounds > 5)
        columns = {name: tuple(map(float, column)) for name, column in noted.items()}
        latency = Measurement("latency", "s", tuple(map(float, samples)), columns, {"cache": "warm"})
        peak = _MATRICES.get(backend, 0) * workload.score_bytes + 1.2 * workload.output_bytes + 20_000
        peaks = (Measurement("peak_memory", "B", (peak, peak * 1.001), facts={"method": "memray"}),)
        library, measured = backend.partition("_")[0], (latency, *(peaks if memory else ()))
        kernel = kernels.get(backend)
        return Result(name, workload, Outcome.MEASURED, None, accuracy, kernel, measured, library)

    for workload in every:
        drift = np.exp(np.cumsum(generator.normal(0, wander, rounds)))
        run.append([result(name, workload, drift) for name in contenders])
    return run


def disturbed(run: Run, when: Callable[[int, float, float], bool]) -> Run:
    """The run, with the turns marked as disturbed for which when(length, round, visit) is true."""

    def flagged(one: Result) -> Result:
        assert one.latency is not None
        turns = zip(one.latency.columns["round"], one.latency.columns["visit"], strict=True)
        flags = tuple(float(when(one.workload.keys, *turn)) for turn in turns)
        if not any(flags):
            return one
        columns = {**one.latency.columns, "disturbed": flags}
        facts = {**one.latency.facts, "others": "1.5 cores"}
        return replace(one, measurements=(replace(one.latency, columns=columns, facts=facts),))

    run.results = [flagged(one) for one in run.results]
    return run


def write_chapter(run: Run, findings: Sequence[Finding]) -> None:
    """Store the numerical chapter of a run."""
    (run.folder / CHAPTER_FILE).write_text(json.dumps(msgspec.to_builtins(findings)), encoding="utf-8")


@cache
def variance() -> Finding:
    """The reference run's finding on the variance of the logits against d_k, scaled and unscaled."""
    file = Path(__file__).parents[2] / "reports" / "reference" / "numerics" / "numerics.json"
    every = msgspec.convert(json.loads(file.read_text(encoding="utf-8")), list[Finding])
    return next(one for one in every if one.experiment == "variance_scaling")


def _facts(library: str, threads: str) -> dict[str, object]:
    return {"versions": {library: "2.11.0"}, "pools": [{"user_api": threads, "num_threads": 2}]}


ENVIRONMENT = {
    "cpu": "A Made-Up CPU @ 2.50GHz",
    "cores": {"logical": 2, "physical": 1},
    "memory_bytes": 16 * 2**30,
    "variables": {},
    "governor": None,
    "contenders": {
        "numpy_vectorized": _facts("numpy", "blas"),
        "torch_eager": _facts("torch", "openmp"),
        "torch_sdpa": _facts("torch", "openmp"),
    },
}
