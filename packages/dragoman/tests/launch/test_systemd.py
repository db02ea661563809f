"""Socket activation and notifications, as systemd sends and expects them
(sd_listen_fds(3), sd_notify(3)).
"""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from dragoman.launch.process_setup import adopt_address
from dragoman.launch.systemd import Notifier, inherit_sockets
from dragoman.settings import Settings, SettingsError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="systemd is for Linux")

ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="dragoman.socket")
os.execv(sys.executable, [sys.executable, "-m", "dragoman", "serve", "scripted", "--store", "none", *sys.argv[2:]])
"""  # noqa: E501
"""Start a server as systemd does: with a listening socket at descriptor 3 and its
process id in LISTEN_PID.
"""


class NotifySocket:
    """The socket that NOTIFY_SOCKET names. A thread reads it at once: it holds only ten
    states, and the server waits for space.

    alive: set by `WATCHDOG=1`.
    """

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self.alive = threading.Event()
        self._states: queue.Queue[bytes] = queue.Queue()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> NotifySocket:
        self._socket.bind(self.address)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.address)
        self._thread.join()
        self._socket.close()

    def receive(self) -> bytes:
        """Return the next state other than `WATCHDOG=1`."""
        return self._states.get(timeout=60)

    def _read(self) -> None:
        while state := self._socket.recv(100):
            if state == b"WATCHDOG=1":
                self.alive.set()
            else:
                self._states.put(state)


@contextmanager
def activated(
    listener: socket.socket, folder: Path, *arguments: str, **environment: str
) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", ACTIVATE, str(listener.fileno()), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | environment,
        pass_fds=[listener.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_inherited_socket_is_served_and_systemd_is_notified(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        NotifySocket(tmp_path) as notified,
    ):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # Clients that connect before the server has started wait in the socket's
        # backlog.
        early = socket.create_connection(listener.getsockname())
        early.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        environment = {"NOTIFY_SOCKET": notified.address, "WATCHDOG_USEC": "200000"}
        with activated(listener, tmp_path, "--port", "1", **environment) as process:
            assert notified.receive() == b"READY=1"
            assert early.recv(100).startswith(b"HTTP/1.1 200")
            early.close()
            with urlopen(f"{url}/health", timeout=60) as response:
                assert response.status == 200
            assert process.stdout is not None
            assert url in process.stdout.readline()
            assert notified.alive.wait(60)
            process.send_signal(signal.SIGHUP)
            assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", notified.receive())
            assert notified.receive() == b"READY=1"
            process.terminate()
            assert notified.receive() == b"STOPPING=1"
            assert process.wait(timeout=60) == 0


def test_inherited_unix_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        with activated(listener, tmp_path) as process:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.connect(str(path))
                client.sendall(
                    b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            process.terminate()
            assert process.wait(timeout=60) == 0
        assert path.is_socket()


def test_inherited_socket_on_all_addresses_requires_key(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        with activated(listener, tmp_path) as process:
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 2
            assert "LISTEN_FDS: 0.0.0.0 is reachable from other machines" in errors
        assert (
            adopt_address(Settings(keys_file="keys.yaml"), listener).port
            == listener.getsockname()[1]
        )


def test_inherit_sockets_ignores_sockets_of_other_process() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "OTHER": "y"}
    assert inherit_sockets(environment) == []
    assert environment == {"OTHER": "y"}


def test_inherit_sockets_non_listening_socket_is_rejected() -> None:
    script = (
        "import os, socket\n"
        "from dragoman.launch.systemd import inherit_sockets\n"
        "left, right = socket.socketpair()\n"
        "os.dup2(left.fileno(), 3)\n"
        "inherit_sockets({'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'})\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (
        "SettingsError: LISTEN_FDS: descriptor 3 is not a listening stream socket" in result.stderr
    )


def test_notifier_without_service_manager_does_not_fail(tmp_path: Path) -> None:
    for environment in (
        {},
        {"NOTIFY_SOCKET": str(tmp_path / "absent")},
        {"NOTIFY_SOCKET": "vsock:2:1"},
    ):
        notifier = Notifier({**environment, "WATCHDOG_PID": "1", "WATCHDOG_USEC": "1000"})
        notifier.notify_ready()
        assert notifier.watchdog_interval is None


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_notifier_sends_to_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0dragoman-test-{os.getpid()}")
        Notifier({"NOTIFY_SOCKET": f"@dragoman-test-{os.getpid()}"}).notify_stopping()
        assert receiver.recv(100) == b"STOPPING=1"


def test_inherited_socket_with_instances_is_rejected() -> None:
    from dragoman.settings import Instance, Instances

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(SettingsError, match="instances"),
    ):
        adopt_address(Settings(model="sim", instances=Instances((Instance(),))), listener)
