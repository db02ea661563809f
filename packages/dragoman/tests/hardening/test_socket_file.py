"""Only the user who runs the server can connect to its socket file: such clients need
no key.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.launch.listener import SocketFile, listen_on_file
from dragoman.settings import SettingsError, load_settings


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_socket_file_has_configured_mode(tmp_path: Path, mode: int):
    path = tmp_path / "s"
    umask = os.umask(0o022)
    try:
        listen_on_file(str(path), mode).close()
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(umask)


def test_socket_file_has_mode_before_chmod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Between `bind` and `chmod` any user could connect."""
    path = tmp_path / "s"
    bound = list[int]()

    def note(*_: object) -> None:
        bound.append(stat.S_IMODE(path.stat().st_mode))

    monkeypatch.setattr(os, "chmod", note)
    listen_on_file(str(path), 0o600).close()
    assert bound == [0o600]


def test_stale_socket_file_is_replaced_but_regular_file_is_not(tmp_path: Path):
    path = tmp_path / "s"
    file = tmp_path / "f"
    listen_on_file(str(path), 0o666).close()
    listen_on_file(str(path), 0o600).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.write_text("mine")
    with pytest.raises(SettingsError, match="cannot listen on"):
        listen_on_file(str(file), 0o600)
    assert file.read_text() == "mine"


def test_socket_file_in_use_is_not_replaced(tmp_path: Path):
    path = str(tmp_path / "s")
    with (
        closing(listen_on_file(path, 0o600)) as listener,
        closing(socket.socket(socket.AF_UNIX)) as client,
    ):
        with pytest.raises(SettingsError, match="Address already in use"):
            listen_on_file(path, 0o600)
        listener.accept()[0].close()
        client.connect(path)


def test_socket_file_is_removed_only_by_creating_server(tmp_path: Path):
    path = tmp_path / "s"
    first = SocketFile(str(path), 0o600)
    # As the first server does before it waits for its last responses.
    first.listener.close()
    second = SocketFile(str(path), 0o600)
    first.remove()
    assert path.exists()
    path.chmod(0o660)
    second.listener.close()
    second.remove()
    assert not path.exists()
    second.remove()


@pytest.mark.parametrize("mode", ["8", "rw", "1777", "0o600"])
def test_uds_mode_invalid_value_raises_settings_error(mode: str):
    with pytest.raises(SettingsError, match="is not a mode"):
        load_settings({"uds": "/tmp/s", "uds_mode": mode}, {})
