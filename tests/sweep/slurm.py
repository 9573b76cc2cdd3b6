"""A Slurm of one's own for as long as a test takes: two nodes on this host, from the distribution's packages.

Nothing of the system's is touched: keys, sockets, state and logs lie in a folder of the test's, and the daemons are
children of the test, which ends them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel")
NODES = ("node1", "node2")
_CONF = """
ClusterName=attnlabtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=8
KillWait=20
MinJobAge=300
JobRequeue=1
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=500
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=500
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def reason_to_skip() -> str | None:
    """Why a test starts no Slurm here, or None."""
    if "ATTNLAB_TEST_SLURM" not in os.environ:
        return "a Slurm is started by `tox -e slurm` alone, which sets ATTNLAB_TEST_SLURM: it takes minutes"
    return lacking()


def lacking() -> str | None:
    """Why there can be no Slurm here, or None."""
    missing = [one for one in PROGRAMS if _program(one) is None]
    if missing:
        return f"Slurm is not installed: there is no {missing[0]} (apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "a Slurm of one's own starts jobs for users: it must be started as root"
    return None


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class Slurm:
    """Daemons by name: ``munged``, ``slurmctld``, ``node1``, ``node2``; use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Slurm:
        folder = self.folder
        (folder / "state").mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "munge").mkdir(mode=0o700)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        conf = _CONF.format(host=platform.node(), folder=folder, ports=free_ports(3))
        (folder / "slurm.conf").write_text(conf)
        try:
            self.start("munged")
            wait_until((folder / "munge.sock").exists, "munged opens its socket")
            for name in ("slurmctld", *NODES):
                self.start(name)
            wait_until(lambda: self.nodes() == {"node1": "idle", "node2": "idle"}, "both nodes are idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(
            ["scancel", "--signal=KILL", "--full", "--user=root"],
            env=self.environment(),
            check=False,
            capture_output=True,
        )
        for name in (*NODES, "slurmctld", "munged"):
            if name in self._daemons:
                self.stop(name, signal.SIGTERM)

    def environment(self) -> dict[str, str]:
        """That of this process, with what Slurm's commands need."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self, name: str) -> None:
        """Start a daemon, or start it again."""
        munge = self.folder / "munge"
        words = {
            "munged": [
                "--foreground", "--force", f"--key-file={munge}/key", f"--socket={self.folder}/munge.sock",
                f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
            ],
            "slurmctld": ["-D"],
        }.get(name, ["-D", "-N", name])  # fmt: skip
        program = _program("slurmd" if name in NODES else name)
        assert program is not None
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [program, *words], env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a daemon by a signal; what it has started goes on, as with a daemon that crashes."""
        daemon = self._daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def nodes(self) -> dict[str, str]:
        """The state of each node, as sinfo has it."""
        told = self._told("sinfo", "--noheader", "--Node", "--format=%N %t")
        return {name: state.rstrip("*") for name, state in told.items()}

    def queue(self) -> dict[str, str]:
        """The state of every job that is not over, as squeue has it."""
        return self._told("squeue", "--noheader", "--array", "--format=%i %T")

    def _told(self, *words: str) -> dict[str, str]:
        found = subprocess.run(words, env=self.environment(), capture_output=True, text=True, check=False)
        return dict(line.split() for line in found.stdout.splitlines())


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened at a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(true: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    """Return as soon as it is `true`. Raises TimeoutError, naming `what`, where it does not become so."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.05)
