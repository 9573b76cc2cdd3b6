"""For now: the references of a problem that is masked top-left or not at all, by the functions that are there."""

from __future__ import annotations

from types import SimpleNamespace

from attnlab.accuracy import reference
from attnlab.accuracy.reference import Reference
from attnlab.contract.problem import Problem


def refer(problem: Problem, rows: list[int] | None = None) -> dict[str, Reference]:
    """As `attnlab.accuracy.reference.refer` will."""
    if not problem.plain or problem.group > 1 or problem.mask.text not in ("", "causal(top_left)"):
        raise NotImplementedError
    options = {"causal": bool(problem.mask), "scale": problem.scale, "dtype": problem.dtype}
    output = reference.refer(problem.query, problem.key, problem.value, rows=rows, **options)
    found = {"output": output}
    if problem.output_gradient is not None:
        from attnlab.accuracy.gradient_reference import refer_gradients

        q, k, v = problem.query, problem.key, problem.value
        question = SimpleNamespace(q=q, k=k, v=v, reference=output, **options)
        three = refer_gradients(question, problem.output_gradient, tilted=True)
        found |= dict(zip(("query gradient", "key gradient", "value gradient"), three, strict=True))
    return found
