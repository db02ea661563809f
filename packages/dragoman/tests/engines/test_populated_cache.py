"""Memory of the KV cache that a server takes at its start."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest

from dragoman.engines import tiny
from dragoman.engines.hardware import populate_memory
from dragoman.engines.tiny.engine import load
from dragoman.launch import build_models
from dragoman.launch.loaded_model_log import describe_loaded
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings


def read_resident_bytes() -> int:
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Rss"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_populate_memory_takes_pages_and_keeps_content():
    # Memory of its own: that of the heap may have been touched before.
    array = np.frombuffer(mmap.mmap(-1, 16 << 20), np.uint8)
    array[5_000_000] = 7
    before = read_resident_bytes()
    if not populate_memory(array.ctypes.data, array.nbytes):
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    assert read_resident_bytes() - before > 8 << 20
    assert array[5_000_000] == 7
    assert array.sum() == 7


def test_populate_memory_smaller_than_page_does_nothing():
    assert populate_memory(4097, 10) is (sys.platform == "linux")


def test_tiny_cache_holds_one_longest_context():
    assert load(tiny.find_bundled_model()).num_kv_tokens == 32_768


def test_loaded_model_log_states_cache():
    settings = Settings(model="tiny")
    [model] = build_models(settings, SystemClock())
    cache = "KV cache of 32768 tokens in 2048 blocks (67.1 MB, taken at the start)"
    assert any(cache in line for line in describe_loaded(settings, model))
