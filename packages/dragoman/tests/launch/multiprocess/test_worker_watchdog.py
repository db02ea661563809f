"""Which workers count as hung, at given times."""

from __future__ import annotations

import pytest

from dragoman.launch.multiprocess.metrics_hub import ENGINE_NUMBER
from dragoman.launch.multiprocess.worker_watchdog import (
    ENGINE_SECONDS,
    KEYS_SECONDS,
    WORKER_SECONDS,
    WorkerWatchdog,
)


def check_until(watchdog: WorkerWatchdog, seconds: float, *alive: int) -> dict[int, float]:
    """Check as the supervisor does, and return when each worker was found silent.

    alive: the workers that send a sign before each check.
    """
    found: dict[int, float] = {}
    while watchdog.next_check <= seconds:
        now = watchdog.next_check
        for number in alive:
            watchdog.note_sign(number, now)
        for number in watchdog.find_silent(now):
            found.setdefault(number, now)
    return found


@pytest.mark.parametrize(
    ("number", "limit"), [(1, WORKER_SECONDS), (ENGINE_NUMBER, ENGINE_SECONDS)]
)
def test_watchdog_without_service_manager_finds_silent_worker(number: int, limit: float) -> None:
    watchdog = WorkerWatchdog(None, 0)
    watchdog.note_sign(number, 0)
    assert check_until(watchdog, limit, 0) == {}
    assert check_until(watchdog, limit + 2, 0) == {number: limit + 1}


def test_watchdog_of_service_manager_uses_its_interval() -> None:
    watchdog = WorkerWatchdog(0.5, 0)
    watchdog.note_sign(1, 0)
    assert watchdog.interval == 0.5
    assert check_until(watchdog, 3, 0) == {1: 1.5}


def test_watchdog_forgets_dead_worker() -> None:
    watchdog = WorkerWatchdog(None, 0)
    watchdog.note_sign(1, 0)
    watchdog.expect_keys([1], 1, 0)
    watchdog.forget(1)
    assert check_until(watchdog, 100) == {}
    assert watchdog.pop_without_keys(100) == []


def test_watchdog_after_pause_of_supervisor_finds_none() -> None:
    watchdog = WorkerWatchdog(None, 0)
    watchdog.note_sign(1, 0)
    watchdog.expect_keys([1], 1, 0)
    # The container was paused for an hour.
    assert watchdog.find_silent(3600) == []
    assert watchdog.pop_without_keys(3600) == []
    assert check_until(watchdog, 3605) == {}
    assert watchdog.pop_without_keys(3605) == [(1, False)]
    assert check_until(watchdog, 3620) == {1: 3611}


def test_watchdog_names_worker_without_keys_once() -> None:
    watchdog = WorkerWatchdog(None, 0)
    watchdog.expect_keys([0, 1], 1, 10)
    watchdog.note_keys(0, 1)
    assert watchdog.pop_without_keys(10) == []
    assert watchdog.pop_without_keys(10 + KEYS_SECONDS) == [(1, True)]
    assert watchdog.pop_without_keys(20 + KEYS_SECONDS) == []
    watchdog.expect_keys([0, 1], 2, 30)
    late = watchdog.pop_without_keys(40)
    assert late == [(0, False), (1, False)], "the file cannot be read by any"


def test_watchdog_answer_to_earlier_request_keeps_later_deadline() -> None:
    watchdog = WorkerWatchdog(None, 0)
    for request in (1, 2, 3):
        watchdog.expect_keys([0, 1], request, request)
    # Worker 0 answers only the first one, and then hangs.
    watchdog.note_keys(0, 1)
    watchdog.note_keys(1, 3)
    assert watchdog.pop_without_keys(1 + KEYS_SECONDS) == []
    assert watchdog.pop_without_keys(2 + KEYS_SECONDS) == [(0, True)]
    assert watchdog.pop_without_keys(9 + KEYS_SECONDS) == []


def test_watchdog_earlier_answer_of_others_does_not_blame_worker() -> None:
    watchdog = WorkerWatchdog(None, 0)
    for request in (1, 2):
        watchdog.expect_keys([0, 1], request, request)
    for number in (0, 1):
        watchdog.note_keys(number, 1)
    assert watchdog.pop_without_keys(2 + KEYS_SECONDS) == [(0, False), (1, False)]
