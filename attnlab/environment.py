"""The machine and software of a run: `environment` reads them; resume, ``diff`` and the report compare them.

`remember` stores measurements of the machine itself (its ceilings) in the user's cache folder, and `recalled` reads
them, so that a second run need not repeat them. A stored answer is used for a month, and only if all that could change
it is the same: boot, cores, settings, installed packages, attnlab's source. `ATTNLAB_CACHE` names another folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from attnlab.system import hidden
from attnlab.text import one_line, read_text

#: recorded environment variables, by the beginning of the name: they change what the libraries do. All others may hold
#: a secret or a person's name. Names that contain a word of `_NEVER` are left out
_FAMILIES = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "NUMBA_", "MALLOC_", "TORCH_", "PYTORCH_",
    "CUDA_", "CUBLAS_", "CUDNN_", "XLA_", "JAX_", "ATEN_", "DNNL_", "ONEDNN_", "OPENVINO_", "ORT_", "THP_",
    "NPROC", "NPY_", "KERAS_", "GLIBC_TUNABLES", "LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "PYTHONMALLOC",
)  # fmt: skip
_NEVER = (
    "TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "AUTH", "CREDENTIAL", "URL", "URI", "PROXY", "HOST", "USER",
)  # fmt: skip
#: entries of `environment` that must be unchanged for a run to be resumed
CONDITIONS = (
    "cpu", "cpu_features", "cores", "affinity", "memory_bytes", "gpus", "system", "libc", "python", "attnlab",
    "variables", "governor", "turbo", "huge_pages",
)  # fmt: skip
#: entries of a contender that must be unchanged too
_DECIDING = {"versions", "file"}
#: entries of `environment` that tell machines apart: they do not change when software is installed
_MACHINE = ("cpu", "cpu_features", "cores", "gpus", "system", "governor", "turbo", "huge_pages")
#: entries of `CONDITIONS` that are software: runs with different versions may be compared
SOFTWARE = ("libc", "python", "attnlab")
#: processor features, by the beginning of the name, that limit the speed of a matrix product
_FEATURES = ("avx", "amx", "fma", "asimd", "sve")
_SYS_CPU = Path("/sys/devices/system/cpu")
_GPUS = Path("/proc/driver/nvidia/gpus")


def environment() -> dict[str, Any]:
    """Processor, cores, memory, system, interpreter, variables, clock settings and load, as plain data.

    An entry that cannot be read here is None, never a guess.
    """
    processor = _processor()
    # the lines about each GPU that NVIDIA's driver lists
    gpus = (line for file in _GPUS.glob("*/information") for line in file.read_text().splitlines())
    no_turbo, boost = (read(_SYS_CPU / one) or "" for one in ("intel_pstate/no_turbo", "cpufreq/boost"))
    return {
        "cpu": processor.get("brand_raw") or platform.processor() or None,
        "cpu_features": sorted(flag for flag in processor.get("flags", ()) if flag.startswith(_FEATURES)),
        "cores": {"logical": psutil.cpu_count(), "physical": psutil.cpu_count(logical=False)},
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": int(psutil.virtual_memory().total),
        "gpus": sorted(line.partition(":")[2].strip() for line in gpus if "Model:" in line),
        "system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "attnlab": importlib.metadata.version("attnlab"),
        "variables": {
            name: one_line(value)
            for name, value in sorted(os.environ.items())
            if name.startswith(_FAMILIES) and not any(one in name.upper() for one in _NEVER)
        },
        "governor": read(_SYS_CPU / "cpu0/cpufreq/scaling_governor"),
        "turbo": {"0": "on", "1": "off"}.get(no_turbo) or {"1": "on", "0": "off"}.get(boost),
        "huge_pages": read(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "not_seen_here": hidden(),
        "load_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


@functools.cache
def _processor() -> dict[str, Any]:
    """The processor's name and features. Finding them takes a second."""
    import cpuinfo

    return dict(cpuinfo.get_cpu_info())


def fingerprint(environment: Mapping[str, Any]) -> str:
    """A name for the machine: its processor, and eight digits of a digest.

    The digest covers processor, cores, the number of usable cores, memory in GiB, GPUs, system, clock settings and huge
    pages. Machines that agree in all these have the same name. An entry that an earlier version did not record counts
    as empty.
    """
    facts = {name: environment.get(name) or None for name in _MACHINE}
    facts["usable"] = len(environment.get("affinity") or ())
    facts["gib"] = round((environment.get("memory_bytes") or 0) / 2**30)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
    return f"{one_line(str(facts['cpu'] or 'unknown'), 40)} {digest}"


def unchanged(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ValueError, naming what differs, if `now` has another machine, software or backend files than `before`.

    Entries that `before` lacks are not compared.
    """
    found = differing(before, now, CONDITIONS)
    was, is_ = (
        {f"the {of} of {name}": one[of] for name, one in told.items() for of in one.keys() & _DECIDING}
        for told in (before.get("contenders", {}), now.get("contenders", {}))
    )
    found |= differing(was, is_, [name for name in was if name in is_])
    if found:
        different = "; ".join(f"{name} was {one} and is {other}" for name, (one, other) in found.items())
        raise ValueError(f"this is not the machine or software of the run: {different}; start a new run")


def differing(
    before: Mapping[str, Any], now: Mapping[str, Any], names: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """The entries among `names` that differ between two environments, with their old and new values as text.

    Entries that `before` lacks are not compared.
    """
    both = {name: (before[name], now.get(name)) for name in names if name in before}
    return {name: (_shown(was), _shown(is_)) for name, (was, is_) in both.items() if was != is_}


def versions(environment: Mapping[str, Any]) -> dict[str, str]:
    """The software that may change results: interpreter, attnlab, libraries of the contenders, variables."""
    told = {name: _shown(environment[name]) for name in SOFTWARE if environment.get(name)}
    for facts in environment.get("contenders", {}).values():
        told |= {name: _shown(one) for name, one in (facts.get("versions") or {}).items()}
    return told | {name: _shown(one) for name, one in (environment.get("variables") or {}).items()}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items()) or "none"
    return one_line(str(value), 120)


def read(file: Path) -> str | None:
    """The text of a file of the system; None if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return None


# -- what is remembered of the machine -----------------------------------------------------------------

T = TypeVar("T")
_LONGEST, _MOST_BYTES = timedelta(days=30), 2**20
_BOOT, _DRIVER = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/driver/nvidia/version")


def recalled(question: Mapping[str, Any], kind: type[T]) -> T | None:
    """The stored answer to this question, as a `kind`; its field `remembered` gives the time. None if there is none.

    Also None if the answer is more than a month old or cannot be read, or if the machine or its software has changed.
    """
    file = _kept(question)
    with contextlib.suppress(OSError, ValueError, RecursionError):
        when = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        found = msgspec.json.decode(read_text(file, _MOST_BYTES), type=dict[str, Any])
        if datetime.now(UTC) - when < _LONGEST:
            return msgspec.convert({**found, "remembered": f"{when:%Y-%m-%d %H:%M} UTC"}, kind)
    return None


def remember(question: Mapping[str, Any], found: Any) -> None:
    """Store an answer, a dataclass, for `recalled`. Nothing happens if the cache folder cannot be written."""
    file = _kept(question)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(found))
        fresh.replace(file)


def _kept(question: Mapping[str, Any]) -> Path:
    """The file of an answer: its name is a digest of the question, the machine and the software."""
    asked = json.dumps([question, circumstances()], sort_keys=True)
    return cache_folder() / "remembered" / f"{hashlib.sha256(asked.encode()).hexdigest()[:24]}.json"


def cache_folder() -> Path:
    """The folder for results and files that attnlab would otherwise make again. It may not exist yet."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ATTNLAB_CACHE") or user / "attnlab")


def circumstances() -> dict[str, Any]:
    """The properties of the machine and its software that may change an answer."""
    here, own = environment(), sorted(Path(__file__).parent.rglob("*.py"))
    return {name: here[name] for name in CONDITIONS} | {
        "booted": read(_BOOT) or f"{platform.node()} {psutil.boot_time():.0f}",
        "driver": read(_DRIVER),
        "packages": sorted(one.name for path in sys.path for one in Path(path).glob("*.dist-info")),
        "place": [sys.prefix, os.environ.get("LD_LIBRARY_PATH")],
        "attnlab itself": hashlib.sha256(b"".join(one.read_bytes() for one in own)).hexdigest(),
    }
