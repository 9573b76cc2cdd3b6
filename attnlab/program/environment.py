"""Where a run took place: everything that may change its figures and that this machine tells."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

#: environment variables that change what the libraries do, by their first letters
_PREFIXES = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD",
    "TORCH_", "PYTORCH_", "CUDA_", "CUBLAS_", "NVIDIA_TF32", "XLA_", "JAX_", "ATEN_", "DNNL_", "ONEDNN_",
    "NPROC", "KERAS_",
)  # fmt: skip
_SYS_CPU = Path("/sys/devices/system/cpu")


def environment() -> dict[str, Any]:
    """Plain data: processor, cores, memory, system, interpreter, variables, clock settings, load.

    What cannot be read here is None, never a guess.
    """
    import cpuinfo
    import psutil

    from attnlab.measuring.disturbance import hidden

    processor = cpuinfo.get_cpu_info()
    return {
        "cpu": processor.get("brand_raw") or platform.processor() or None,
        "cpu_features": sorted(
            flag
            for flag in processor.get("flags", ())
            if flag.startswith(("avx", "amx", "fma", "asimd", "sve"))
        ),
        "cores": {"logical": psutil.cpu_count(), "physical": psutil.cpu_count(logical=False)},
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": int(psutil.virtual_memory().total),
        "system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "attnlab": importlib.metadata.version("attnlab"),
        "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_PREFIXES)},
        "governor": _read(_SYS_CPU / "cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(),
        "huge_pages": _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "not_seen_here": hidden(),
        "load_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "switch_interval_s": sys.getswitchinterval(),
    }


def _turbo() -> str | None:
    no_turbo = _read(_SYS_CPU / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return "off" if no_turbo == "1" else "on"
    boost = _read(_SYS_CPU / "cpufreq/boost")
    return None if boost is None else ("on" if boost == "1" else "off")


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
