"""What holds for the tests of all packages: profiles of Hypothesis, the state folder of
servers, unstable tests, and a list of what was skipped.

Profiles are `quick` (the default), `ci` or `long`, set by `--hypothesis-profile` or
HYPOTHESIS_PROFILE; `mutants` skips the shrinking of failing examples.

A test marked `unstable(reason, since="YYYY-MM-DD")` runs a second time if it fails. No
other test does. The marker is for a race that is known and not yet removed, at most
five tests have it (tests/project/test_unstable_tests.py), and the end of each run names
those that needed the second try.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import ssl
from collections import Counter
from collections.abc import Generator
from pathlib import Path

# Under nohup or as a background job, servers started by tests would inherit ignored
# signals, and not reload or stop.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before numpy is imported: BLAS threads that spin beside the event loop make the tests
# many times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import httpcore2
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import none

UNSTABLE = "unstable"
"""The marker, and the property of its reports: the number of tries."""
_PATIENT = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "quick",
    max_examples=20,
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


@pytest.fixture(scope="session", autouse=True)
def share_certificates() -> Generator[None]:
    """HTTP clients of tests share one TLS context: reading the certificates of all
    authorities takes each 30 ms, and hundreds of them only reach loopback.
    """
    load = httpcore2.default_ssl_context
    contexts: dict[tuple[object, ...], ssl.SSLContext] = {}

    def share(**options: bool) -> ssl.SSLContext:
        # A test that names other authorities gets a context of its own.
        key = (*options.items(), os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if key not in contexts:
            contexts[key] = load(**options)
        return contexts[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", share)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what the collection makes out of garbage collections, which would walk
    thousands of tests each time.

    The quick profile draws no constants of the source. Hypothesis would look for them
    in all modules that are imported, for seconds in each worker, first at the end of
    the collection, and examples would depend on what a worker has imported by then.
    """
    if settings.get_current_profile_name() == "quick":
        setattr(providers, "is_local_module_file", _has_no_constants)  # noqa: B010 - not exported
    # Before the collection, since Hypothesis walks all objects once, and before they are
    # frozen: it warns of its own generator of random numbers if what holds it is.
    _draw_nothing()
    gc.disable()
    result = yield
    gc.freeze()
    # With the default of 700 objects, a twentieth of the tests' time is collections.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return result


def _has_no_constants(_: str) -> bool:
    return False


@settings(max_examples=1)
@given(none())
def _draw_nothing(_: None) -> None:
    """Let Hypothesis make what it keeps for a thread."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skipped-to",
        metavar="FILE",
        help="write the names of skipped tests to FILE, one a line, for `pytest @FILE`",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("unstable"):
            _check_unstable(item, marker)


def _check_unstable(item: pytest.Item, marker: pytest.Mark) -> None:
    match marker.args:
        case (str(reason),) if reason.strip():
            pass
        case _:
            raise pytest.UsageError(f"{item.nodeid}: unstable() needs a reason")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(marker.kwargs.get("since"))):
        raise pytest.UsageError(f'{item.nodeid}: unstable() needs since="YYYY-MM-DD"')


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that is marked unstable, and once more if it fails. Only the reports
    of the last try count.
    """
    if item.get_closest_marker("unstable") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    tries = 1
    if any(report.failed for report in reports):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        tries = 2
    for report in reports:
        # Reports travel to the controlling process of pytest-xdist with their
        # properties.
        report.user_properties.append((UNSTABLE, tries))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    _list_unstable_tests(terminalreporter)
    _list_skip_reasons(terminalreporter)
    if file := config.getoption("--skipped-to"):
        skipped = {report.nodeid for report in terminalreporter.stats.get("skipped", [])}
        Path(file).write_text("".join(f"{name}\n" for name in sorted(skipped)))


def _list_unstable_tests(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests are marked unstable, and which of them ran twice."""
    tries: dict[str, int] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == UNSTABLE:
                    tries[report.nodeid] = value
    if tries:
        terminalreporter.section(f"{len(tries)} tests marked unstable")
    for name, count in sorted(tries.items()):
        if count > 1:
            terminalreporter.line(f"failed at first: {name}")


def _list_skip_reasons(terminalreporter: pytest.TerminalReporter) -> None:
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
