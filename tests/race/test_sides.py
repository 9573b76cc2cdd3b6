"""Contenders that run elsewhere: in another interpreter, with other packages, at another commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from scripted import REAL, RIGHT
from typed import status

from attnlab.backends.contender import require_two, setting_of
from attnlab.errors import Unavailable
from attnlab.interpreters import environment_of, interpreter
from attnlab.race.compare import Comparison, compare
from attnlab.workload.workload import Workload

SMALL = Workload(heads=1, queries=8, keys=8, head_dim=4)
KERNEL = f"""{RIGHT}
FACTOR = 1
def attend(query, key, value, *, causal, scale):
    return right(query, key, value, causal=causal, scale=scale) * FACTOR
"""
WRONG = KERNEL.replace("FACTOR = 1", "FACTOR = 2")
ACTION = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text())

Commit = Callable[[str, str], None]
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commit]:
    """A function that writes kernels/mine.py into a repository (the working folder), commits and tags it."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    top = tmp_path / "repository"
    (top / "kernels").mkdir(parents=True)
    monkeypatch.chdir(top)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "test")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "test@localhost")
    subprocess.run(["git", "init", "-q"], check=True)

    def write(text: str, tag: str) -> None:
        Path("kernels/mine.py").write_text(text)
        subprocess.run(["git", "add", "."], check=True)
        subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", tag], check=True)
        subprocess.run(["git", "tag", tag], check=True)

    yield write


def raced(*contenders: str, folders: tuple[str, ...] = ()) -> Comparison:
    """A short race."""
    return compare(*contenders, workload=SMALL, folders=folders, limits=REAL)


def outcomes(found: Comparison) -> list[str]:
    """The outcome of each contender."""
    return [str(one.outcome) for one in found.results]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has the packages of this one, without pip."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    there = [one for one in sys.path if one.endswith("-packages")]
    (packages / "below.pth").write_text("\n".join(there))
    return folder


def test_a_worker_runs_in_the_interpreter_that_is_asked_for(environment: Path, tmp_path: Path) -> None:
    """It uses the code of this attnlab, but not the PYTHONPATH of this process."""
    folder = tmp_path / "backends"
    folder.mkdir()
    text = f"import sys\nassert sys.prefix == {str(environment)!r}, sys.prefix\n{KERNEL}"
    (folder / "there.py").write_text(text)
    found = raced(f"there[python={environment}]", "there", "numpy_vectorized", folders=(str(folder),))
    assert outcomes(found) == ["measured", "crashed", "measured"], found
    assert found.ran_with[f"there[python={environment}]"]["Python"] == sys.version.split()[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere/python", "no such file"),
        ("{folder}/text", "no Python interpreter"),
        ("{folder}/bare", "lacks msgspec, psutil"),
    ],
)
def test_what_cannot_be_an_interpreter_is_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    """A missing file, a file of another kind, or an interpreter without the packages that a worker needs."""
    scripts = {
        "text": "#!/bin/sh\necho hello\n",
        "bare": '#!/bin/sh\necho \'[[3, 12, 1], ["msgspec", "psutil"]]\'\n',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    with pytest.raises(Unavailable, match=said) as told:
        interpreter(text.format(folder=tmp_path))
    assert "\n" not in str(told.value)


def _wheel(folder: Path, version: str) -> None:
    """Write a wheel of a package that holds its version."""
    info = f"attnlab_demo-{version}.dist-info"
    with zipfile.ZipFile(folder / f"attnlab_demo-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("attnlab_demo.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: attnlab-demo\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.thorough
def test_two_versions_of_a_package_race(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version has an environment that is made once and kept. One that cannot be made leaves nothing behind."""
    wheels, folder = tmp_path / "wheels", tmp_path / "backends"
    wheels.mkdir()
    folder.mkdir()
    for version in ("1.0", "2.0"):
        _wheel(wheels, version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    text = KERNEL.replace("* FACTOR", "* (2 if attnlab_demo.VERSION == '2.0' else 1)")
    (folder / "versioned.py").write_text(f"import attnlab_demo\n{text}")
    texts = [f"versioned[with=attnlab-demo=={one}]" for one in ("1.0", "2.0", "3.0")]
    found = raced(*texts, folders=(str(folder),))
    assert outcomes(found) == ["measured", "wrong", "unavailable"], found
    assert "attnlab-demo==3.0" in (found.results[2].reason or "")
    environments = {one.name: one.stat().st_mtime_ns for one in (cache / "environments").iterdir()}
    assert len(environments) == 2
    environment_of(["attnlab-demo==1.0"])
    assert environments == {one.name: one.stat().st_mtime_ns for one in (cache / "environments").iterdir()}


def test_two_commits_race(commit: Commit) -> None:
    """The working tree races too, with changes that are in no commit. The repository stays as it is."""
    commit(KERNEL, "right")
    commit(WRONG, "wrong")
    Path("kernels/mine.py").write_text(KERNEL)
    found = raced("mine[ref=right]", "mine[ref=wrong]", "mine[ref=.]", folders=("kernels",))
    assert outcomes(found) == ["measured", "wrong", "measured"], found
    assert sorted(one.name for one in Path().iterdir()) == [".git", "kernels"]


def test_a_package_of_the_repository_is_that_of_the_commit(commit: Commit) -> None:
    """Backend files import it from the commit or working tree that is raced."""
    Path("helper.py").write_text("FACTOR = 1\n")
    commit("import helper" + KERNEL.replace("* FACTOR", "* helper.FACTOR"), "a")
    Path("helper.py").write_text("FACTOR = 2\n")
    found = raced("mine[ref=a]", "mine[ref=.]", folders=("kernels",))
    assert outcomes(found) == ["measured", "wrong"], found


@pytest.mark.thorough
def test_a_gate_of_two_commits_answers_by_its_exit_status(commit, tmp_path, capsys) -> None:
    """One of the two commits is wrong."""
    commit(KERNEL, "right")
    commit(WRONG, "wrong")
    words = ["--implementations=kernels", "--lengths=16", "--heads=1", "--visits=4", "--seconds=0.01", "-q"]
    summary = tmp_path / "summary.md"
    assert status("gate", "right", "wrong", *words, "--summary", str(summary)) == 1
    assert "wrong is worse than right" in capsys.readouterr().out
    assert "Regression" in summary.read_text().splitlines()[0]


def test_two_names_of_one_commit_and_a_dirty_tree_are_refused(commit: Commit) -> None:
    """Text that names no side is refused too."""
    commit(KERNEL, "one")
    commit(WRONG, "two")
    with pytest.raises(ValueError, match="are the same"):
        require_two(setting_of("two"), setting_of("HEAD"))
    require_two(setting_of("one"), setting_of("HEAD"))
    with pytest.raises(ValueError, match="are the same"):
        require_two(setting_of("two"), setting_of("."))
    Path("kernels/mine.py").write_text(KERNEL)
    with pytest.raises(ValueError, match=r"kernels/mine\.py"):
        require_two(setting_of("one"), setting_of("HEAD"))
    require_two(setting_of("one"), setting_of("."))
    with pytest.raises(Unavailable, match="no commit"):
        require_two(setting_of("one"), setting_of("three"))
    with pytest.raises(ValueError, match="names no side"):
        setting_of("torch>=2,<3")


@pytest.mark.parametrize(
    ("status", "ends", "verdict"),
    [(0, 0, "passed"), (1, 1, "regression"), (3, 0, "no verdict"), (2, 2, None)],
)
def test_the_action_passes_on_what_the_gate_says(tmp_path, status, ends, verdict) -> None:
    """A gate without a verdict does not fail the job; a mistake in the call does."""
    install, step = ACTION["runs"]["steps"]
    for name in ("attnlab", "python"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/asked"\nexit {status}\n')
        (tmp_path / name).chmod(0o755)
    inputs = {"base": "main", "head": "HEAD", "options": "--implementations kernels"}
    named = {name: said.split(".")[1].split()[0] for name, said in step["env"].items()}
    assert set(named.values()) <= set(ACTION["inputs"])
    given = {name: inputs[one] for name, one in named.items()}
    files = {name: str(tmp_path / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    there = {**os.environ, **given, **files, "PATH": path, "GITHUB_ACTION_PATH": "/action"}
    for said, installed in {"": "/action", "attnlab==1": "attnlab==1"}.items():
        subprocess.run(["bash", "-e", "-c", install["run"]], env={**there, "INSTALL": said})
        assert (tmp_path / "asked").read_text().split()[-1] == installed
    done = subprocess.run(["bash", "-e", "-c", step["run"]], env=there)
    asked = (tmp_path / "asked").read_text().split()
    assert (done.returncode, asked[:5]) == (ends, ["gate", "main", "HEAD", "--implementations", "kernels"])
    told = Path(files["GITHUB_OUTPUT"])
    assert (told.read_text().strip() if told.exists() else None) == (verdict and f"verdict={verdict}")
