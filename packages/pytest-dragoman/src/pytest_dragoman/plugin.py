"""The fixtures, the markers and the reports of pytest.

pytest imports this module in every run: what needs the server is imported on use.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from .event_loop_thread import EventLoopThread
    from .faults import Fault
    from .scripted_server import Dragoman
    from .sim_server import SimulatedServer

FAULTS_MARKER = "dragoman_faults"
SIM_MARKER = "dragoman_sim"
_REPORT = "dragoman"
"""The property of reports that says what the client did."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{FAULTS_MARKER}(*names, exclude=(), retry_after=1, patience=2): run the test under "
        "each of these faults (by default all), and judge the client",
    )
    config.addinivalue_line(
        "markers", f"{SIM_MARKER}(**settings): settings of the server of the fixture dragoman_sim"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker(FAULTS_MARKER)
    if marker is None:
        return
    if "dragoman" not in metafunc.fixturenames:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: {FAULTS_MARKER} needs the fixture dragoman"
        )
    faults = _select_faults(metafunc.definition.nodeid, *marker.args, **marker.kwargs)
    metafunc.parametrize(
        "dragoman_fault", faults, indirect=True, ids=[fault.name for fault in faults]
    )


def _select_faults(
    test: str, *names: str, exclude: tuple[str, ...] | list[str] = (), **times: float
) -> list[Fault]:
    from .faults import build_faults  # noqa: PLC0415 - imports the server

    table = build_faults(**times)
    if unknown := ({*names, *exclude} - table.keys()):
        raise pytest.UsageError(
            f"{test}: {FAULTS_MARKER} has unknown names: {', '.join(sorted(unknown))}; the "
            f"faults are {', '.join(table)}"
        )
    return [table[name] for name in names or table if name not in exclude]


@pytest.fixture(scope="session")
def dragoman_loop() -> Iterator[EventLoopThread]:
    """The event loop of the servers, in a thread of its own."""
    from .event_loop_thread import EventLoopThread  # noqa: PLC0415 - as above

    thread = EventLoopThread()
    yield thread
    thread.close()


@pytest.fixture
def dragoman_fault(request: pytest.FixtureRequest) -> Fault | None:
    """The fault that hits the requests of this test; None without the marker."""
    return getattr(request, "param", None)


@pytest.fixture
def dragoman(dragoman_loop: EventLoopThread, dragoman_fault: Fault | None) -> Iterator[Dragoman]:
    """A scripted server of all APIs on a free port, for this test."""
    from .scripted_server import Dragoman  # noqa: PLC0415 - as above

    server = Dragoman(dragoman_loop, dragoman_fault)
    yield server
    server.close()


@pytest.fixture(scope="session")
def dragoman_session(dragoman_loop: EventLoopThread) -> Iterator[Dragoman]:
    """The same for the whole session, for clients that are configured once. Tests call
    its `reset` first.
    """
    from .scripted_server import Dragoman  # noqa: PLC0415 - as above

    server = Dragoman(dragoman_loop)
    yield server
    server.close()


@pytest.fixture
def dragoman_environment(dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch) -> Dragoman:
    """The fixture `dragoman`, while the environment points all SDKs to it."""
    for name, value in dragoman.environment.items():
        monkeypatch.setenv(name, value)
    return dragoman


@pytest.fixture
def dragoman_sim(
    request: pytest.FixtureRequest, dragoman_loop: EventLoopThread
) -> Iterator[SimulatedServer]:
    """A simulated vLLM on a free port, for this test; needs the package dragoman-sim."""
    from .sim_server import SimulatedServer  # noqa: PLC0415 - as above

    marker = request.node.get_closest_marker(SIM_MARKER)
    server = SimulatedServer(dragoman_loop, {} if marker is None else marker.kwargs)
    yield server
    server.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge a test under a fault: an error that the client may raise is a success."""
    if item.get_closest_marker(FAULTS_MARKER) is None:
        return (yield)
    server = cast("Dragoman", cast("pytest.Function", item).funcargs["dragoman"])
    error: Exception | None = None
    result: object = None
    try:
        result = yield
    except Exception as raised:
        error = raised
    from .scripted_server import raise_findings  # noqa: PLC0415 - as above

    if error is not None and _is_raised_by_test(error, item):
        error = AssertionError(f"{type(error).__name__}: {error}").with_traceback(
            error.__traceback__
        )
    findings = server.judge(error)
    item.user_properties.append((_REPORT, server.describe(findings, error)))
    try:
        raise_findings(findings)
    except AssertionError as mistakes:
        raise mistakes from error
    return result


def _is_raised_by_test(error: Exception, item: pytest.Item) -> bool:
    """Whether the test itself failed on the answer, as in `calls[0]` without a call."""
    if not isinstance(error, AttributeError | LookupError | TypeError):
        return False
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_filename == str(item.path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what the clients did under the faults."""
    outcomes = {
        report.nodeid: str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == _REPORT
    }
    if outcomes:
        terminalreporter.section("clients under faults")
    width = max(map(len, outcomes), default=0)
    for test, outcome in outcomes.items():
        terminalreporter.line(f"{test:{width}}  {outcome}")
