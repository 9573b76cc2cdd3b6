"""The search for settings that help, on workers whose costs follow from their settings and are not timed."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from fake_workers import SMALL, Clock, FakeWorker
from typed import status

from attnlab.backends.contender import Contender
from attnlab.errors import Unavailable
from attnlab.race import conductor, tuning_candidates
from attnlab.race.tune import PROCESSES, tune
from attnlab.race.tuning import Tuning
from attnlab.race.tuning_candidates import TABLE, Candidate, candidates
from attnlab.race.worker_process import Died

BASE = "numpy_vectorized"
LONG = SMALL.with_(queries=8, keys=8)
#: of a process that has loaded PyTorch
POOLS = [
    {"user_api": "openmp", "internal_api": "openmp", "prefix": "libgomp", "num_threads": 2},
    {"user_api": "blas", "internal_api": "openblas", "prefix": "libscipy_openblas", "num_threads": 2},
]

Search = Callable[..., Tuning]


def tried(*settings: str) -> list[Candidate]:
    """A candidate each; its first letter is its kind."""
    return [Candidate(one[0], (one,), "it may help") for one in settings]


@pytest.fixture
def search(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Search:
    """`tune` where a call costs what is given for a contender's settings, or else their product.

    A cost may follow from the workload and the number of the process; `of` are further properties of workers.
    """

    def found(costs: Mapping[str, Any], of: Mapping[str, Any] | None = None, **asked: Any) -> Tuning:
        made: Counter[str] = Counter()

        def make(contender: Contender, folders: Sequence[str], start_seconds: float) -> FakeWorker:
            settings, number = contender.name.partition("[")[2].rstrip("]").split(","), made[contender.name]
            text = ",".join(sorted(settings))
            made[contender.name] += 1

            def seconds(workload: Any, calls: int) -> float:
                parts = [text] if text in costs else settings
                known = (costs.get(one, 1.0) for one in parts)
                return 1e-3 * math.prod(one(workload, number) if callable(one) else one for one in known)

            worker = FakeWorker(contender.name, clock, seconds, **(of or {}).get(text, {}))
            worker.contender, worker.process = Contender(contender.name, "nobody"), number
            return worker

        monkeypatch.setattr(conductor, "WorkerProcess", make)
        asked = {"among": tried(*(one for one in costs if "," not in one)), "workloads": [SMALL], **asked}
        return tune(BASE, **asked)

    return found


@pytest.mark.parametrize(
    ("costs", "chosen"),
    [
        pytest.param({"A=1": 0.8, "B=1": 1.0, "C=1": 1.3}, "A=1", id="one helps"),
        pytest.param({"A=1": 0.9, "B=1": 0.8, "C=1": 1.0}, "A=1,B=1", id="two help together"),
        pytest.param({"A=1": 0.9, "AA=1": 0.8}, "AA=1", id="of one kind the better"),
        pytest.param({"A=1": 0.9, "B=1": 0.8, "A=1,B=1": 1.1}, "B=1", id="they undo each other"),
        pytest.param({"A=1": 0.7, "B=1": 0.97}, "A=1,B=1", id="a little more"),
        pytest.param({"A=1": 0.7, "B=1": 0.97, "A=1,B=1": 0.7}, "A=1", id="no setting that adds nothing"),
        pytest.param({f"{one}=1": 0.9 for one in "ABCD"}, None, id="three at most"),
        pytest.param({"threads=1": 0.5}, "threads=1", id="what is no variable"),
    ],
)
def test_what_helps_is_found_combined_and_confirmed(
    search: Search, costs: dict[str, Any], chosen: str | None
) -> None:
    """With the ratio of the confirming race, and lines that start a process just so."""
    found = search(costs)
    assert found.holds == [SMALL]
    settings = found.chosen.partition("[")[2].rstrip("]")
    if chosen is None:
        assert settings.count(",") == 2
    else:
        assert set(settings.split(",")) == set(chosen.split(","))
        told = json.loads(json.dumps(found.to_json(), allow_nan=False))
        expected = costs.get(chosen, math.prod(costs[one] for one in chosen.split(",") if one in costs))
        assert told["confirmed"][0]["contenders"][1]["ratio"] == pytest.approx(expected)
        assert told["chosen"] == found.chosen and told["export"]
    export, beside = found.variables()
    assert {**beside, **export} == Contender.parse(found.chosen).environment({})
    assert [line for line in found.lines() if line.startswith("export")] == [
        f"export {name}={value}" for name, value in {**export, **beside}.items()
    ]


def test_where_nothing_helps_the_defaults_are_kept(search: Search) -> None:
    """What could have been seen comes from the confirming race, in which the nearest takes part."""
    found = search({"A=1": 1.0, "B=1": 1.3})
    assert (found.holds, found.lines(), found.to_json()["chosen"]) == ([], [], None)
    assert found.chosen == f"{BASE}[A=1]" and len(found.confirmed) == 1
    assert any("keep the defaults" in one and "0 % at most" in one for one in found.sentences())
    assert any("No gain" in one and "B=1" in one for one in found.sentences())


def test_the_figures_of_the_screening_are_never_told(search: Search) -> None:
    """One that was lucky in the first race, in whose processes it took 0.7 times as long, and in no other."""
    found = search({"A=1": lambda workload, process: 0.7 if process < PROCESSES else 1.0, "B=1": 1.0})
    assert found.chosen == f"{BASE}[A=1]" and found.holds == []
    assert "0.7" not in json.dumps(found.to_json()["confirmed"]) + "".join(found.sentences())


def test_who_gives_no_right_answer_is_dropped_with_the_reason(search: Search) -> None:
    """However fast it is; and who computes in less, unless that is allowed: then it is told with its error."""
    costs = {"A=1": 0.9, "B=1": 0.1, "C=1": 0.1, "D=1": 0.5}
    of = {
        "B=1": {"spoils": lambda process: 2.0},
        "C=1": {"faults": {("check", 1): Died("its process ended: killed")}},
        "D=1": {"computes_in": "bfloat16"},
        "A=1,D=1": {"computes_in": "bfloat16"},
    }
    found = search(costs, of)
    assert found.chosen == f"{BASE}[A=1]" and found.holds == [SMALL]
    assert {name: one.partition(".")[0] for name, one in found.dropped.items()} == {
        f"{BASE}[B=1]": "wrong",
        f"{BASE}[C=1]": "crashed",
        f"{BASE}[D=1]": "it computes in bfloat16, which --precision bfloat16 allows",
    }
    assert all(any(reason in one for one in found.sentences()) for reason in found.dropped.values())
    found = search(costs, of, precision="bfloat16")
    assert "D=1" in found.chosen and f"{BASE}[D=1]" not in found.dropped
    assert any("in bfloat16: relative error" in one for one in found.sentences())


def test_it_is_told_on_which_workloads_a_gain_holds(search: Search) -> None:
    """The choice is that of all of them together; what came first on one alone is named."""
    costs = {
        "A=1": lambda workload, process: 0.6 if workload == LONG else 1.05,
        "B=1": lambda workload, process: 1.5 if workload == LONG else 0.8,
    }
    found = search(costs, workloads=[SMALL, LONG])
    assert found.chosen == f"{BASE}[A=1]" and found.holds == [LONG]
    slower, faster = (one.verdicts[found.chosen] for one in found.confirmed)
    assert slower.ratio == pytest.approx(1.05) and faster.ratio == pytest.approx(0.6)
    assert found.alone == {SMALL: "B=1"}


def test_a_contender_that_cannot_be_measured_itself_is_no_base(search: Search) -> None:
    with pytest.raises(Unavailable, match=f"{BASE}: wrong"):
        search({"A=1": 0.5}, {"": {"spoils": lambda process: 2.0}})


@pytest.mark.parametrize("library", ["numpy", "torch", "numba", "jax", "onnxruntime"])
def test_what_a_contender_sets_is_kept_and_not_varied(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate can be written beside it, and candidates of two kinds beside each other."""
    monkeypatch.setattr(tuning_candidates.system, "cores", lambda: 8)
    monkeypatch.setattr(tuning_candidates, "huge_pages_refused", lambda: None)
    base = Contender.parse("openvino[OMP_WAIT_POLICY=active,threads=2,precision=f16]")
    free = candidates(Contender.parse("openvino"), library, {"pools": POOLS})
    kept = candidates(base, library, {"pools": POOLS})
    assert {"threads", "precision"} <= {one.kind for one in free}
    assert ("pages=huge" in [one.text for one in free]) == (library == "torch"), "NumPy asks by itself"
    assert not {"threads", "precision", "waiting"} & {one.kind for one in kept if library != "numpy"}
    for one in kept:
        Contender.parse(f"{base.name[:-1]},{one.text}]").require()
    named = [(one.kind, each.partition("=")[0]) for one in (*TABLE, *free) for each in one.settings]
    kinds = {name: {kind for kind, other in named if other == name} for _, name in named}
    assert all(len(one) == 1 for one in kinds.values()), "two kinds would set one thing"


def test_the_command_prints_one_document(search: Search, capsys: pytest.CaptureFixture[str]) -> None:
    search({"A=1": 1.0})  # the workers stay those of this machine
    assert status("tune", BASE, "--lengths", "4,8", "--heads", "1", "--head-dim", "4", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["baseline"], len(told["confirmed"]), told["chosen"]) == (BASE, 2, None)
