"""Hypothesis profiles: `quick` (the default), `ci` or `long`, set by
`--hypothesis-profile` or HYPOTHESIS_PROFILE.

`mutants` skips the shrinking of failing examples.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

# Under nohup or as a background job, servers started by tests would inherit ignored
# signals, and not reload or stop.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before numpy is imported: BLAS threads that spin beside the event loop make the tests
# many times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, Phase, settings

_PATIENT = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "quick",
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=_PATIENT,
)
# Derandomized, so that failures are reproducible. `long` searches for new failures.
settings.register_profile(
    "ci",
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=_PATIENT,
)
settings.register_profile(
    "long", max_examples=10_000, deadline=None, suppress_health_check=_PATIENT
)
settings.register_profile(
    "mutants",
    settings.get_profile("quick"),
    max_examples=100,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session", autouse=True)
def isolate_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Servers that tests start write nothing to the user's home."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the reasons of skipped tests, the most frequent first."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        # (file, line, reason) where it is skipped, and an exception where it is
        # expected to fail.
        match report.longrepr:
            case (_, _, str(reason)):
                reasons[reason.removeprefix("Skipped: ")] += 1
            case _:
                pass
    if reasons:
        terminalreporter.section("skipped, by reason")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5} {reason}")
