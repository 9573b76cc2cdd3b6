"""A sweep on Dask: a task a shard, each a plain command on the host of a worker.

    attnlab sweep plan.toml --shards 8 --cut --out sweep
    python docs/sweeps/dask_shards.py tcp://SCHEDULER:8786 sweep
    attnlab sweep --report --out sweep

Every host has one worker of one thread, which sees the folder under the same path:

    dask worker tcp://SCHEDULER:8786 --nworkers 1 --nthreads 1

A task whose worker has died goes to another one, and goes on where the shard was cut off.
"""

import subprocess
import sys
from pathlib import Path

from distributed import Client, as_completed


def shard(folder: str, number: int) -> int:
    """Carry out one shard on this host: its exit status, 0 where it is complete."""
    words = ("attnlab", "sweep", "--out", folder, "--shard", str(number))
    return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode


def main() -> int:
    """All shards of the sweep in the folder, through the scheduler at the address."""
    address, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    worst = 0
    with Client(address) as client:
        count = len(list((folder / "shards").iterdir()))
        tasks = {client.submit(shard, str(folder), number, pure=False): number for number in range(count)}
        for task in as_completed(tasks):
            status = task.result()
            worst = max(worst, status)
            print(f"shard {tasks[task]}: exit status {status}", flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
