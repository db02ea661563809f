"""The CPUs and memory that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.engines.hardware import compute_kv_budget, count_usable_cores, find_available_memory

GIB = 1 << 30


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", None), ("50000 100000", 1), ("100000 100000", 1), ("", None), ("x", None)],
)
def test_count_usable_cores_respects_affinity_and_quota(
    tmp_path: Path, quota: str, cores: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert count_usable_cores(tmp_path) == (cores or own)


@pytest.mark.parametrize(
    ("limit", "used", "system", "available"),
    [
        ("max", "5", "MemTotal: 9 kB\nMemAvailable:  1024 kB\n", 1 << 20),
        ("600000", "100000", "MemAvailable:  1024 kB\n", 500000),
        ("600000", "700000", "MemAvailable:  1024 kB\n", 0),
        ("600000", "100000", "", 500000),
        ("max", "", "MemTotal: 9 kB\n", None),
    ],
)
def test_find_available_memory_respects_cgroup_and_meminfo(
    tmp_path: Path, limit: str, used: str, system: str, available: int | None
) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)
    (tmp_path / "meminfo").write_text(system)
    assert find_available_memory(tmp_path, tmp_path / "meminfo") == available


def test_kv_budget_is_quarter_of_memory_up_to_limit() -> None:
    assert compute_kv_budget(4 * GIB, 64 * GIB) == 4 * GIB
    assert compute_kv_budget(4 * GIB, 8 * GIB) == 2 * GIB
