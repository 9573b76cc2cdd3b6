"""Whole judgements of small candidates, each in its own sandbox; no result here depends on their speed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from typed import status

from attnlab.errors import Unavailable
from attnlab.judge import sandbox
from attnlab.judge.inside import Limits
from attnlab.judge.judging import Judge
from attnlab.judge.score import Record
from attnlab.libraries.library import open_library
from attnlab.processes import Failed
from attnlab.workload.workload import Workload

WITHOUT = sandbox.refused()
needs_bubblewrap = pytest.mark.skipif(bool(WITHOUT), reason=f"bubblewrap: {WITHOUT}")
RIGHT = """
import numpy as np

def _right(q, k, v, scale):
    s = q @ k.swapaxes(-1, -2) * np.float32(scale)
    s = np.exp(s - s.max(-1, keepdims=True))
    return s / s.sum(-1, keepdims=True) @ v
"""
HONEST = RIGHT + "def attend(q, k, v, *, scale): return _right(q, k, v, scale)\n"
#: by candidate: its text, and the status of its record
FILES = {
    "honest": (HONEST, "judged"),
    "zeros": (RIGHT + "def attend(q, k, v, *, scale): return q * 0\n", "wrong"),
    "half precision": (
        RIGHT + "def attend(q, k, v, *, scale):\n"
        "    return _right(*(x.astype('f2').astype('f4') for x in (q, k, v)), scale)\n",
        "wrong",
    ),
    "honest in the exam": (
        "import pathlib\n" + RIGHT + "_loads = pathlib.Path('/tmp/loads')\n_loads.open('a').write('x')\n"
        "_late = len(_loads.read_text()) > 1\ndef attend(q, k, v, *, scale):\n"
        "    out = _right(q, k, v, scale)\n    if _late: out[:, :, ::16] = out[:, :, 1::16]\n    return out\n",
        "caught",
    ),
    "answers before it is done": (
        "import os, socket, sys\n" + RIGHT + "def attend(q, k, v, *, scale):\n"
        "    from attnlab.judge.inside import DONE\n"
        "    os.write(int(sys.argv[1]), DONE)\n    return _right(q, k, v, scale)\n",
        "wrong",
    ),
    "changes the question": (RIGHT + "def attend(q, k, v, *, scale): v[...] = 0; return q * 0\n", "wrong"),
    "an error without a word": (
        RIGHT + "import sys\n_m = sys.modules['__main__']\n_old, none = _m._told, _m.Reply('raised', '')\n"
        "_m._told = lambda fault: none if isinstance(fault, AssertionError) else _old(fault)\n"
        "def attend(q, k, v, *, scale):\n    assert q.shape[:3] != (2, 2, 64)\n    return _right(q, k, v, scale)\n",
        "wrong",
    ),
    "no candidate": ("x = 1\n", "refused"),
}
#: sandboxes that a judge keeps: the reference's, and two that wait for candidates
OWN = 3
#: the text of a file that no sandbox may read
SECRET = "nobody may read this"
#: code that ends the judgement of its own candidate, and of no other
BREAKERS = {
    "forks": "import os\nwhile True: os.fork()\n",
    "memory": "kept = [bytearray(2**28) for _ in range(64)]\n",
    "disk": "import os\nopen('/tmp/large', 'wb').write(b'x' * 2**20 * 600)\n",
    "files": "import os\nfor at in range(400_000): os.close(os.open(f'/tmp/{at}', os.O_CREAT))\n",
    "files in memory": "import os\nfor at in range(400_000): os.close(os.open(f'/dev/shm/{at}', os.O_CREAT))\n",
    "memory files": "import os\nkept = [os.memfd_create('x') for _ in range(20)]\n"
    "for one in kept: os.posix_fallocate(one, 0, 2**27)\n",
    "crash": "import ctypes\nctypes.string_at(0)\n",
    "no message": "import os, sys\nos.write(int(sys.argv[1]), b'\\x93' * 60000)\n",
    "kills its family": "import os\nos.kill(os.getppid(), 9)\nos.kill(1, 9)\n",
}
#: each attempt prints what it got: a line that begins with GOT is an escape
LOOKING = """
import ctypes, fcntl, glob, os, signal, socket
def _try(name, thing):
    try:
        print("GOT", name, thing())
    except BaseException as fault:
        print("no", name, type(fault).__name__)
_try("secret", lambda: open("SECRET FILE").read())
_try("home", lambda: os.listdir(os.path.expanduser("~root"))[0] if os.listdir("/home") else 1 / 0)
for name in ("/usr/x", "/x", "/dev/pts/x", __import__("attnlab").__file__):
    _try(name, lambda: open(name, "a"))
for family in (2, 16, 40):
    _try("socket", lambda: socket.socket(family, 2 if family < 40 else 1))
calls = ((250, 219), (0, -3, 0)), ((294, 26), (0,)), ((283, 85), (1, 0)), ((206, 0), (1, b"12345678"))
for numbers, given in (*calls, ((103, 116), (10, 0, 0)), ((222, 107), (1, 0, b"12345678"))):
    number = numbers[os.uname().machine == "aarch64"]
    _try(f"call {number}", lambda: 1 / (ctypes.CDLL(None).syscall(number, *given) != -1))
_try("names of keys", lambda: open("/proc/keys").read(8)[0])
_try("parent", lambda: os.kill(OUR NUMBER, 0))
_try("namespace", lambda: 1 / (ctypes.CDLL(None).unshare(0x10000000) == 0))
_try("mount", lambda: 1 / (ctypes.CDLL(None).mount(b"/tmp", b"/usr", None, 4096, None) == 0))
_try("variables", lambda: {**os.environ}["PYTEST_CURRENT_TEST"])
_try("terminal", lambda: os.openpty())
_try("lease", lambda: fcntl.fcntl(os.open(__import__("attnlab").__file__, os.O_RDONLY), 1024, fcntl.F_RDLCK))
_try("kernel", lambda: open("/proc/vmallocinfo").read(8)[0])
_try("others", lambda: [one for one in glob.glob("/proc/[0-9]*/cmdline") if "pytest" in open(one).read()][0])
"""


def verdicts(judge: Judge, folder: Path, sources: dict[str, str]) -> dict[str, Record]:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    records = judge.judge(sorted(folder.glob("*.py")))
    found = {Path(record.name).stem: record for record in records}
    assert set(found) == set(sources)
    return found


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """The records of all candidates, judged together by one judge. A candidate that breaks things affects no other."""
    folder = tmp_path_factory.mktemp("candidates")
    secret = tmp_path_factory.mktemp("secret") / "secret.txt"
    secret.write_text(SECRET)
    sources = {name: source for name, (source, _) in FILES.items()}
    sources |= {name: source + FILES["zeros"][0] for name, source in BREAKERS.items()}
    looking = LOOKING.replace("SECRET FILE", str(secret)).replace("OUR NUMBER", str(os.getpid()))
    sources |= {"zeros again": FILES["zeros"][0], "looks around": looking + FILES["zeros"][0]}
    workload = Workload(heads=2, queries=64, keys=64, head_dim=16)
    with Judge("numpy_vectorized", workload, limits=Limits(data=2**31, nproc=64), visits=2) as judge:
        found = verdicts(judge, folder, sources)
        assert len(psutil.Process().children()) <= OWN, "processes are left"
    return found


@needs_bubblewrap
def test_every_candidate_gets_its_record(records: dict[str, Record]) -> None:
    """The honest candidate is judged, although others are wrong, cheat or break things."""
    assert {name: records[name].status for name in FILES} == {name: what for name, (_, what) in FILES.items()}
    assert all(one.reward == 0 and one.reason for one in records.values() if one.status != "judged")
    honest = records["honest"]
    assert honest.correct and honest.speedup and honest.questions > 20 and honest.budget is not None
    assert honest.reward >= -1 and honest.precision == "full precision inside" and honest.sandbox


@needs_bubblewrap
def test_files_of_the_same_text_have_records_of_their_own(records: dict[str, Record]) -> None:
    one, other = records["zeros"], records["zeros again"]
    assert one.digest == other.digest and one.status == other.status == "wrong"


@needs_bubblewrap
def test_a_sandbox_shows_nothing_of_this_machine(records: dict[str, Record]) -> None:
    said = records["looks around"].output
    assert said.count("no ") >= 20 and "GOT" not in said and SECRET not in said


@needs_bubblewrap
@pytest.mark.parametrize("name", BREAKERS)
def test_what_breaks_a_sandbox_costs_one_candidate(name: str, records: dict[str, Record]) -> None:
    assert records[name].status in ("failed", "wrong")


def test_a_sandbox_that_does_not_start_says_why() -> None:
    with pytest.raises(Failed, match="its sandbox has ended: KeyError: 'nothing'"):
        sandbox.Sandbox("nothing", 2**20, Limits(), trust=True).ready()


@needs_bubblewrap
def test_what_runs_while_it_is_stopped_is_caught() -> None:
    """It does not matter what woke the process; here it is a signal from outside."""
    box = sandbox.Sandbox("numpy", 2**20, limits=Limits(data=2**30))
    try:
        box.ready()
        for _ in range(20):
            box.go_on()
            box.stop()
        os.kill(box.family[-1], signal.SIGCONT)
        with pytest.raises(Failed, match="while it was stopped") as fault:
            box.go_on()
        assert fault.value.kind == "caught" and not box.alive
    finally:
        box.close()


#: a small causal block in KernelBench's form; ATTEND stands for the attention
QUESTION = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.project, self.heads = torch.nn.Linear(width, 3 * width), heads

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (y.view(b, n, self.heads, -1).transpose(1, 2) for y in self.project(x).split(c, 2))
        return ATTEND.transpose(1, 2).reshape(b, n, c)

def get_inputs():
    return [torch.rand(2, 32, 16)]

def get_init_inputs():
    return [16, 2]
"""
FUSED = "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"
EAGER = "((q @ k.mT / (c // self.heads) ** 0.5).masked_fill(torch.ones(n, n).triu(1) > 0, -torch.inf).softmax(-1) @ v)"


@needs_bubblewrap
def test_a_question_in_kernelbench_s_form(tmp_path: Path) -> None:
    """The truth is its module in float64. Candidates get the reference's weights. Other forms are refused."""
    new = QUESTION.replace("class Model", "class ModelNew")
    reference = tmp_path / "reference.py"
    reference.write_text(QUESTION.replace("ATTEND", EAGER))
    folder = tmp_path / "candidates"
    folder.mkdir()
    sources = {
        "fused": new.replace("ATTEND", FUSED),
        "half precision": new.replace("ATTEND", FUSED)
        .replace("(q, k, v,", "(*(x.bfloat16() for x in (q, k, v)),")
        .replace("True)", "True).float()"),
        "a function": HONEST,
    }
    with Judge(str(reference), visits=1) as one:
        found = verdicts(one, folder, sources)
    expected = {"fused": "judged", "half precision": "wrong", "a function": "refused"}
    assert {name: it.status for name, it in found.items()} == expected
    assert found["fused"].workload["shapes"] == [[2, 32, 16]] and "ModelNew" in found["a function"].reason


@needs_bubblewrap
@pytest.mark.parametrize(
    ("source", "workload", "said"),
    [
        (QUESTION.replace("ATTEND", FUSED), Workload(), "leave out options"),
        (QUESTION.replace("def get_inputs", "def inputs"), None, "got none of them"),
        (QUESTION.replace("ATTEND", "v"), None, "multiplies no batch of matrices"),
    ],
)
def test_a_reference_that_is_no_attention_is_told(
    source: str, workload: Workload | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "reference.py").write_text(source)
    with pytest.raises(ValueError, match=said) as fault, Judge(str(tmp_path / "reference.py"), workload):
        pass
    assert "\n" not in str(fault.value)


@needs_bubblewrap
def test_a_profile_that_is_none_costs_one_candidate(tmp_path: Path) -> None:
    liar = "import sys\nsys.modules['__main__'].Guest.profile = lambda *_: {'ran': 5}\n" + HONEST
    asked = Workload(heads=1, queries=16, keys=16, head_dim=16)
    with Judge("numpy_vectorized", asked, forbid=["any"], visits=1) as one:
        found = verdicts(one, tmp_path, {"liar": liar, "zeros": FILES["zeros"][0]})
    assert {name: it.status for name, it in found.items()} == {"liar": "failed", "zeros": "wrong"}


def test_a_kernel_for_cuda_needs_the_device(tmp_path: Path) -> None:
    """With a CUDA device it is judged there; without one, one line says why not."""
    eager = "def attend(q, k, v, *, scale): return (q @ k.mT * scale).softmax(-1) @ v\n"
    late = "def attend(q, k, v, *, scale):\n    with torch.cuda.stream(torch.cuda.Stream()):\n        "
    late += "torch.cuda._sleep(10**8)\n        return (q @ k.mT * scale).softmax(-1) @ v\n"
    files = {"eager": "import torch\n" + eager, "late": "import torch\n" + late, "numpy": HONEST}
    files |= {"triton": "import torch\nimport triton\n" + eager}
    asked = Workload(heads=2, queries=256, keys=256, dtype="bfloat16", device="cuda")
    try:
        open_library("torch", "cuda")
    except Unavailable as missing:
        with pytest.raises(Unavailable, match="no CUDA device"), Judge(workload=asked, trust=True):
            pass
        (tmp_path / "triton.py").write_text(files["triton"])
        with Judge("numpy_vectorized", Workload(), trust=True) as one:
            (record,) = one.judge([tmp_path / "triton.py"])
        assert record.status == "refused" and "--device cuda" in record.reason
        pytest.skip(str(missing))
    with Judge(workload=asked, trust=bool(WITHOUT), visits=1) as one:
        found = verdicts(one, tmp_path, files)
    expected = {"eager": "judged", "triton": "judged", "late": "wrong", "numpy": "refused"}
    assert {name: record.status for name, record in found.items()} == expected


def test_without_bubblewrap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.refused.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        with pytest.raises(Unavailable, match="apt-get install bubblewrap, or --trust"):
            Judge()
    finally:
        sandbox.refused.cache_clear()


def test_the_command_writes_a_line_for_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 1 if a file holds no candidate. The table has a row for each file."""
    files = {"zeros.py": FILES["zeros"][0], "none.py": "x = 1"}
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    words = ["--reference", "numpy_vectorized", "--heads", "1", "--length", "16", "--trust", "-q"]
    lines = tmp_path / "out.jsonl"
    paths = [str(tmp_path / name) for name in files]
    assert status("judge", *paths, *words, "--jsonl", str(lines)) == 1
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    expected = {"zeros.py": "wrong", "none.py": "refused"}
    assert {Path(one["name"]).name: one["status"] for one in found} == expected
    assert not any(one["sandbox"] for one in found)
    shown = capsys.readouterr().out
    assert all(name in shown for name in files) and "Without a sandbox" in shown
