"""Is each contender right? Against float64 on the inputs as cast, through the gate that stands before every clock."""

import pytest

from attnlab.pytest_plugin.plugin import SETTINGS, Answered

#: shapes that implementations get wrong: masks and unequal sizes
SHAPES: dict[str, dict[str, int | float | bool | None]] = {
    "causal": {"causal": True},
    "few_queries": {"queries": 24, "keys": 80},
    "many_queries": {"queries": 80, "keys": 24},
    "causal_few_queries": {"queries": 24, "keys": 80, "causal": True},
    "wide_values": {"value_dim": 80},
    "other_scale": {"scale": 0.3},
    "one_position": {"queries": 1, "keys": 1},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All number formats for the plain grid, unless the command line names some."""
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
    """The relative error is within the budget, which a failure names."""
    settings = pytestconfig.stash[SETTINGS]
    answered(contender, settings.workload(lengths=length, heads=heads, dtypes=number_format))


@pytest.mark.parametrize("shape", list(SHAPES))
def test_shapes(
    answered: Answered, contender: str, shape: str, dtype: str, pytestconfig: pytest.Config
) -> None:
    """So it is for masks and unequal sizes; a contender may decline them, but not be wrong."""
    plain = pytestconfig.stash[SETTINGS].workload(lengths=48, heads=2, dtypes=dtype)
    answered(contender, plain.with_(**SHAPES[shape]))
