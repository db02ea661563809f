"""When a request to read the keys again is answered, and with what."""

from __future__ import annotations

from dragoman.launch.multiprocess.key_rounds import KeyRounds
from dragoman.serving.key_reloader import KeysReport


def start(rounds: KeyRounds, *workers: int) -> list[KeysReport]:
    reports: list[KeysReport] = []
    rounds.latest += 1
    rounds.start(workers, reports.append)
    return reports


def test_round_is_answered_by_last_worker() -> None:
    rounds = KeyRounds()
    reports = start(rounds, 0, 1)
    rounds.note_read(0, 1, None)
    assert not reports
    rounds.note_read(1, 1, None)
    rounds.note_read(1, 1, None)
    assert reports == [KeysReport(processes=2)]


def test_round_ignores_answer_to_earlier_request() -> None:
    rounds = KeyRounds()
    first = start(rounds, 0)
    second = start(rounds, 0)
    rounds.note_read(0, 1, "invalid")
    assert (first, second) == ([KeysReport(problem="invalid")], [])
    rounds.note_read(0, 2, None)
    assert second == [KeysReport(processes=1)]


def test_round_reports_late_and_skips_dead_worker() -> None:
    rounds = KeyRounds()
    reports = start(rounds, 0, 1, 2)
    rounds.note_read(0, 1, None)
    rounds.forget(1)
    rounds.note_late(2, "worker 2")
    assert reports == [KeysReport(processes=1, late=("worker 2",))]


def test_round_without_workers_is_answered_at_once() -> None:
    assert start(KeyRounds()) == [KeysReport()]
