"""Run the marked parts of one page in order, in an empty folder, each with the server
that it declares.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from .blocks import Block, BlockError, Command, commands, prints
from .programs import Done, run_program

ADDRESS = re.compile(r"https?://(?:127\.0\.0\.1|localhost):8000")
PATIENCE = 180.0
"""Timeout of a command in seconds."""
SHARED = ("", "tiny", "scripted")
"""Arguments of the servers that all pages share."""


class Server:
    """A `dragoman serve` process on a free port. The constructor waits until it prints
    its address.
    """

    def __init__(self, arguments: str, folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "dragoman",
            "serve",
            *shlex.split(arguments),
            "--port",
            "0",
        ]
        self._log = (folder / "server.log").open("w+b")
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        watchdog = threading.Timer(PATIENCE, self._process.kill)
        watchdog.start()
        self.address = self._read_address()
        watchdog.cancel()
        # Later output must not fill the pipe.
        self._reader = threading.Thread(
            target=lambda: [None for _ in self._process.stdout or ()], daemon=True
        )
        self._reader.start()

    def _read_address(self) -> str:
        lines: list[str] = []
        for line in self._process.stdout or ():
            lines.append(line)
            found = re.search(r"http://[\w.]+:\d+", line)
            if found:
                return found[0]
        self.close()
        log = Path(self._log.name).read_text()
        raise AssertionError(f"the server did not say where it listens:\n{''.join(lines)}\n{log}")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


class SharedServers:
    """Servers that read no file of a page, for all pages. It must be closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[str, Server] = {}

    def find(self, arguments: str) -> Server | None:
        """Return the server with these arguments, if pages may share it."""
        if arguments not in SHARED:
            return None
        if arguments not in self._servers:
            folder = self._folder / str(len(self._servers))
            folder.mkdir()
            self._servers[arguments] = Server(arguments, folder)
        return self._servers[arguments]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


class PageRunner:
    """Runs one page. It must be closed."""

    def __init__(self, folder: Path, shared: SharedServers | None = None) -> None:
        self._folder = folder
        self._shared = shared
        self._servers: dict[str, Server] = {}
        self._printed: str | None = None

    def run(self, page: Iterable[Block]) -> None:
        """Run a part. An AssertionError names the line of the part that failed."""
        for block in page:
            try:
                self._run(block)
            except (AssertionError, BlockError) as error:
                raise AssertionError(f"line {block.line}: {error}") from None

    def close(self) -> None:
        for server in self._servers.values():
            server.close()

    def _run(self, block: Block) -> None:
        match block.kind, block.language:
            case "file", _:
                self._file(block.argument).write_text(block.text)
            case "output", _:
                assert self._printed is not None, "there is no python before this output"
                assert prints(block.text, self._printed), f"it printed:\n{self._printed}"
            case "test", "python":
                program = self._address_in(block.text, block.argument)
                environment = self._environment(block.argument)
                self._printed = _check(run_program(program, self._folder, environment, PATIENCE))
            case "test", "console":
                for command in commands(block.text):
                    self._command(command, block.argument)
            case _:
                raise AssertionError(
                    f"{block.language or 'a fence without a language'} cannot be run"
                )

    def _file(self, name: str) -> Path:
        path = (self._folder / name).resolve()
        assert path.is_relative_to(self._folder.resolve()), f"{name} is outside of the folder"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _command(self, command: Command, arguments: str) -> None:
        done = subprocess.run(
            ["bash", "-c", self._address_in(command.text, arguments)],
            cwd=self._folder,
            env=self._environment(arguments),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        printed = _check(Done(done.returncode, done.stdout, done.stderr))
        assert prints(command.output, printed), f"$ {command.text}\nprinted:\n{printed}"

    def _environment(self, arguments: str) -> dict[str, str]:
        address = self._address(arguments)
        own = {"OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": "unused"} if address else {}
        return _environment() | own

    def _address_in(self, text: str, arguments: str) -> str:
        address = self._address(arguments)
        return ADDRESS.sub(lambda found: address or found[0], text)

    def _address(self, arguments: str) -> str | None:
        if arguments == "none":
            return None
        shared = self._shared and self._shared.find(arguments)
        if shared is not None:
            return shared.address
        if arguments not in self._servers:
            self._servers[arguments] = Server(arguments, self._folder)
        return self._servers[arguments].address


def _check(done: Done) -> str:
    """Return the output of a command that succeeded."""
    assert done.status == 0, f"exit status {done.status}:\n{done.output}\n{done.errors}"
    return done.output


def _environment() -> dict[str, str]:
    """Return the environment with this Python's commands first, and without the user's
    settings and keys.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DRAGOMAN_", "OPENAI_"))
    }
    return environment | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    }
