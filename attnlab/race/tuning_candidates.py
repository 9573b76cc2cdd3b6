"""What is known to make attention faster on some machines, as settings that a contender may have beside its own.

A table, and what follows from the machine and the backend: numbers of threads, and the backend's own settings. Nothing
here is promised to help: `attnlab.race.tune` measures it.

Left out are ONEDNN_DEFAULT_FPMATH_MODE=BF16, which lowers the precision of float32 without saying so, so that whatever
it speeds up is refused as wrong (a backend that computes in less says so by a setting of its own); glibc's hugetlb=1,
which left two speeds (docs/decisions/0004) and made PyTorch's large arrays four times slower; and what glibc does with
freed memory, because every worker keeps its heap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab import system
from attnlab.backends.contender import Contender, huge_pages_refused
from attnlab.backends.discovery import settings_of
from attnlab.backends.library import huge_page_variables, libraries, thread_variables
from attnlab.environment import environment


@dataclass(frozen=True)
class Candidate:
    """`settings` that are tried together, as in a contender's brackets, and one line on `why` they may help.

    Of one `kind` at most one is chosen. It applies where all that it `needs` is there, and nothing of `unless`: words
    of `present`.
    """

    kind: str
    settings: tuple[str, ...]
    why: str
    needs: frozenset[str] = frozenset()
    unless: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """``OMP_PROC_BIND=close,OMP_PLACES=cores``."""
        return ",".join(self.settings)

    def part_of(self, contender: str) -> bool:
        """Whether the contender of this notation has its settings."""
        return {*self.settings} <= {*contender.partition("[")[2].removesuffix("]").split(",")}


def _row(kind: str, settings: str, why: str, needs: str = "", unless: str = "") -> Candidate:
    return Candidate(kind, tuple(settings.split()), why, frozenset(needs.split()), frozenset(unless.split()))


_AVX2 = "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2"
_FEWER = "instructions of 256 bits: wide ones lower the clock of some CPUs"
_SKYLAKE = "numpy openblas avx512f avx512bw avx512cd avx512dq avx512vl"
_COOPERLAKE = f"{_SKYLAKE} avx512_bf16"
#: names from the manuals of OpenMP, LLVM's OpenMP, OpenBLAS, PyTorch, oneDNN, MKL, Numba and XLA
TABLE = (
    _row("pages", "pages=huge", "n × n arrays on huge pages: fewer faults, one speed", "huge-pages"),
    _row("binding", "OMP_PROC_BIND=close OMP_PLACES=cores", "threads stay where their caches are", "openmp"),
    _row("binding", "OMP_PROC_BIND=spread OMP_PLACES=cores", "the same, over all sockets", "openmp cores>3"),
    _row("waiting", "OMP_WAIT_POLICY=active", "threads that spin begin the next part at once", "openmp"),
    _row("waiting", "OMP_WAIT_POLICY=passive", "threads that sleep leave the core to others", "openmp"),
    _row("waiting", "KMP_BLOCKTIME=infinite", "threads never sleep between two parts", "kmp"),
    _row("waiting", "KMP_BLOCKTIME=0", "threads sleep at once", "kmp"),
    _row("waiting", "OPENBLAS_THREAD_TIMEOUT=30", "threads spin for 2^30 cycles", "numpy openblas"),
    _row("waiting", "OPENBLAS_THREAD_TIMEOUT=4", "threads sleep at once after a product", "numpy openblas"),
    _row("kernel", "OPENBLAS_CORETYPE=Haswell", _FEWER, "numpy openblas avx2 fma", "Haswell Zen"),
    _row("kernel", "OPENBLAS_CORETYPE=SkylakeX", "instructions of 512 bits", _SKYLAKE, "SkylakeX"),
    _row("kernel", "OPENBLAS_CORETYPE=Cooperlake", "its own block sizes", _COOPERLAKE, "Cooperlake"),
    _row("kernel", _AVX2, _FEWER, "torch avx2 avx512f"),
    _row("kernel", "NUMBA_THREADING_LAYER=workqueue", "Numba's own threads", "numba openmp"),
    _row("kernel", "XLA_FLAGS=--xla_cpu_prefer_vector_width=512", "XLA uses 256 bits", "jax avx512f"),
)


def present(library: str | None, pools: Sequence[Mapping[str, Any]], cores: int) -> frozenset[str]:
    """What is there that candidates need: the `library`, instructions, and what its process has loaded.

    pools : the thread pools that a worker tells of, see `attnlab.race.worker.Worker.facts`.
    """
    here = environment()
    words = {str(library), *here["cpu_features"], *(f"cores>{one}" for one in range(cores))}
    words |= {str(pool.get(key)) for pool in pools for key in ("user_api", "internal_api", "architecture")}
    if {str(pool.get("prefix")) for pool in pools} & {"libiomp", "libomp"}:
        words.add("kmp")
    kind = libraries().get(str(library))
    if kind is not None and kind.huge_pages and huge_pages_refused() is None:
        words.add("huge-pages")
    return frozenset(words)


def candidates(
    base: Contender, library: str | None, facts: Mapping[str, Any], folders: Sequence[str] = ()
) -> list[Candidate]:
    """What may be tried beside the settings that `base` has, which are kept.

    library : of its backend. facts : what its process tells, `Conductor.facts`.
    """
    cores, pools = system.cores(), facts.get("pools", ())
    there = present(library, pools, cores)
    found = [one for one in TABLE if one.needs <= there and not one.unless & there]
    its_own = [pool for pool in pools if pool.get("user_api") == "openmp"] or pools  # a BLAS may be NumPy's
    counts = {1, max(1, cores // 2), cores} - {pool.get("num_threads") for pool in its_own}
    why = "short calls wait for threads longer than they compute; long ones need all cores"
    found += [_row("threads", f"threads={one}", why) for one in sorted(counts)]
    for name, (_, *others) in settings_of(base.backend, folders).items():
        able = (one for one in others if not one.isdecimal() or int(one) <= cores)
        found += [_row(name, f"{name}={one}", "a setting of the backend's own") for one in able]
    taken = {name for name, _ in (*base.variables, *base.settings)}
    if base.threads is not None or taken & set(thread_variables()):
        taken.add("threads")
    if base.pages is not None or taken & set(huge_page_variables()):
        taken.add("pages")
    return [one for one in found if not {each.partition("=")[0] for each in one.settings} & taken]
