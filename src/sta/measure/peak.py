"""The nominal peak of the processor: what its vector units could multiply if nothing else mattered.

A product of two units per core, their widest vectors, the clock and the threads, as data sheets do.
Processors that halve wide vectors, share a core between threads or lower the clock stay below it.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

#: Multiply-accumulates per cycle and core, by the flag of the processor; the most counts.
_PER_CYCLE: dict[str, dict[str, int]] = {
    "float32": {"avx512f": 32, "fma": 16},
    "float16": {"amx_fp16": 512, "avx512_fp16": 64, "avx512f": 32, "fma": 16},
    "bfloat16": {"amx_bf16": 512, "avx512_bf16": 64, "avx512f": 32, "fma": 16},
    "int8": {"amx_int8": 1024, "avx512_vnni": 128, "avx_vnni": 64, "avx512f": 64, "fma": 32},
}
_CPUINFO = Path("/proc/cpuinfo")
_MAX_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")


def processor() -> str:
    """The processor's name, as the system tells it."""
    for name, value in _cpuinfo():
        if name == "model name":
            return value.strip()
    return platform.processor() or platform.machine()  # the first runs a program


def _cpuinfo() -> list[tuple[str, str]]:
    """What Linux tells of the processors, name and value; nothing elsewhere."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return []
    return [(name.strip(), value) for name, _, value in (line.partition(":") for line in lines)]


def nominal_gflops(precision: str, threads: int) -> float | None:
    """GFLOPs per second, a multiply-accumulate as one; None where the processor is not known."""
    fields = _cpuinfo()
    flags = next((value.split() for name, value in fields if name == "flags"), [])
    per_cycle = [macs for flag, macs in _PER_CYCLE[precision].items() if flag in flags]
    clocks = [float(value) / 1000 for name, value in fields if name == "cpu MHz"]  # GHz
    with suppress(OSError, ValueError):  # virtual machines have none
        clocks.append(float(_MAX_FREQUENCY.read_text()) / 1e6)
    if not per_cycle or not clocks:
        return None
    return max(per_cycle) * max(clocks) * threads
