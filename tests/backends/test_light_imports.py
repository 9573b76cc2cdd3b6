"""Nothing heavy is imported before it is needed: proved in fresh interpreters, by a check that can fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import attnlab

HEAVY = {
    *("torch", "pandas", "matplotlib", "scipy", "memray"),
    *("cpuinfo", "pytest", "hypothesis", "numba", "jax", "rich"),
}
#: packages that stay light, but for a script that is run by its path
PACKAGES = ("problem", "backend", "judge", "gate", "race", "runs")
LIGHT = [
    f"attnlab.{package}.{file.stem}"
    for package in PACKAGES
    for file in sorted((Path(attnlab.__file__).parent / package).glob("[!_]*.py"))
    if file.stem != "guard"
] + ["attnlab.report"]


def heavy_after(code: str) -> set[str]:
    """Heavy packages that are loaded after `code` ran in a new Python."""
    show = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True
    )
    return HEAVY & set(done.stdout.splitlines()[-1].split())


def test_the_instruments_import_nothing_heavy() -> None:
    """`import attnlab` not even NumPy, listing backends none of their libraries."""
    first = "import attnlab, sys; assert 'numpy' not in sys.modules; attnlab.backends(); attnlab.Workload()"
    then = "attnlab.load('numpy_vectorized').open('cpu')"
    assert heavy_after("\n".join([first, *(f"import {name}" for name in LIGHT), then])) == set()
    assert heavy_after("import attnlab; attnlab.load('torch_eager')") >= {"torch"}, "the check can fail"


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["no-such-command"]])
def test_the_list_of_commands_imports_none_of_them(words: list[str]) -> None:
    """Nor NumPy: Python and click are all that it takes."""
    run = "import sys; from attnlab.__main__ import main\ntry: main({})\nexcept SystemExit: pass\n"
    own = "assert not {'numpy', 'psutil', 'msgspec', 'attnlab.cli.options'} & sys.modules.keys()"
    assert heavy_after(run.format(words) + own) == set()
    command = run.format(["compare", "--help"])
    assert heavy_after(command + "assert 'numpy' in sys.modules") == set(), "the check can fail"


def test_an_unknown_name_of_the_face_is_an_attribute_error() -> None:
    """As for any module; and what it lists it has."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = attnlab.nothing
    assert all(getattr(attnlab, name) is not None for name in attnlab.__all__)
    assert set(attnlab.__all__) <= set(dir(attnlab)) and re.match(r"\d+\.\d+", attnlab.__version__)
