"""Is each contender right? Its answers are compared with float64 on the inputs as cast, as before every timing."""

from typing import Any

import pytest

from attnlab.pytest_plugin import SETTINGS, Answered
from attnlab.workload.workload import Workload

#: what implementations often get wrong: masks, unequal sizes, and all that goes beyond the plain formula
CONDITIONS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "few_queries": {"queries": 24, "keys": 80},
    "many_queries": {"queries": 80, "keys": 24},
    "causal_few_queries": {"queries": 24, "keys": 80, "causal": True},
    "causal_many_queries": {"queries": 80, "keys": 24, "causal": "bottom_right"},
    "decoding": {"queries": 1, "keys": 80, "causal": "bottom_right"},
    "window": {"causal": "bottom_right", "window": (7, 0), "queries": 24},
    "key_lengths": {"batch": 2, "key_lengths": (48, 5)},
    "no_key_seen": {"batch": 2, "key_lengths": (48, 0)},
    "any_mask": {"mask": "random(0.5)"},
    "grouped_heads": {"heads": 4, "kv_heads": 2},
    "bias": {"bias": "normal"},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "heads_inside": {"layout": "bshd"},
    "wide_values": {"value_dim": 80},
    "other_scale": {"scale": 0.3},
    "one_position": {"queries": 1, "keys": 1},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Use all number formats for the plain grid, unless the command line names some."""
    if "number_format" in metafunc.fixturenames:
        metafunc.parametrize("number_format", metafunc.config.stash[SETTINGS].formats)


def test_accuracy(
    answered: Answered,
    contender: str,
    length: int,
    heads: int,
    number_format: str,
    pytestconfig: pytest.Config,
) -> None:
    """The relative error is within the budget; the message of a failure has both."""
    settings = pytestconfig.stash[SETTINGS]
    answered(contender, settings.workload(lengths=length, heads=heads, dtypes=number_format))


@pytest.mark.parametrize("condition", list(CONDITIONS))
def test_conditions(
    answered: Answered, contender: str, condition: str, dtype: str, pytestconfig: pytest.Config
) -> None:
    """The same holds under each condition. A contender may decline a condition, but must not be wrong."""
    asked = pytestconfig.stash[SETTINGS].workload()
    plain = {"heads": 2, "queries": 48, "keys": 48, "device": asked.device, "direction": asked.direction}
    answered(contender, Workload(**{**plain, "dtype": dtype, **CONDITIONS[condition]}))
