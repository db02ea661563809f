"""MCP over the standard input and output of a program: one message a line.

The program runs in a process group of its own, which is killed as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Callable
from contextlib import suppress

from .interface import ToolServerError, ToolServerErrorKind
from .mcp_messages import McpMessage, decode_message, encode_answer
from .mcp_session import TOOLS_CHANGED

log = logging.getLogger(__name__)

MAX_UNMATCHED = 10_000
"""Maximum messages between two expected responses: a server could send notifications
forever.
"""
MAX_UNREAD = 8 * 1024 * 1024
"""Maximum bytes that a program may leave unread besides the longest message: calls that
time out would collect them without end.
"""
MAX_LOG_LINES = 100
"""Maximum lines a minute of a program's standard error that are logged: the arguments of
a model can decide what a program writes there, and how much.
"""
MAX_LOG_LINE = 1000
"""Maximum characters of such a line."""
STOP_TIMEOUT = 2.0
"""Seconds for the program to end after its standard input is closed."""
KILL_TIMEOUT = 10.0
"""Seconds for the system to end a killed program."""
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ")
# The program must not leave a core file, which contains its secrets, nor take more
# memory than it may.
_START = 'ulimit -c 0; [ "$0" = 0 ] || ulimit -v "$0" || exit 126; exec "$@"'


class StdioTransport:
    """A program that speaks MCP on its pipes; implements `McpTransport`.

    command: the program and its arguments.
    env: variables besides the inherited ones, which are PATH, HOME, TMPDIR, TZ and the
        locale: the server's own environment has secrets.
    max_line: maximum bytes of a message.
    max_memory: maximum bytes of the address space of each of its processes; 0 is no
        limit.
    on_tools_changed: called when the program says that its tools have changed.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        env: dict[str, str],
        *,
        max_line: int,
        max_memory: int = 0,
    ) -> None:
        self.is_closed = False
        self.on_tools_changed: Callable[[], None] = lambda: None
        self._command = command
        self._env = {name: os.environ[name] for name in _INHERITED if name in os.environ} | env
        self._max_line = max_line
        self._max_memory = max_memory
        self._process: Process | None = None
        self._pipes: asyncio.SubprocessTransport | None = None
        self._is_killed = False
        self._reader: asyncio.Task[None] | None = None
        self._logger: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[McpMessage]] = {}
        self._n_unmatched = 0
        self._longest_unread = 0
        self._closing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        kibibytes = str(self._max_memory // 1024)
        loop = asyncio.get_running_loop()

        def build_protocol() -> SubprocessStreamProtocol:
            return SubprocessStreamProtocol(limit=self._max_line, loop=loop)

        try:
            # As `asyncio.create_subprocess_exec` does, which does not return the transport:
            # a pipe that is paused, or that a daemon of the program holds, never ends.
            self._pipes, protocol = await loop.subprocess_exec(
                build_protocol,
                "/bin/sh",
                "-c",
                _START,
                kibibytes,
                *self._command,
                env=self._env,
                start_new_session=True,
            )
        except OSError as error:
            raise ToolServerError(
                ToolServerErrorKind.CONNECTION, f"The program cannot be started: {error.strerror}."
            ) from None
        self._process = Process(self._pipes, protocol, loop)
        self._reader = asyncio.create_task(self._read(self._process))
        self._logger = asyncio.create_task(self._log_errors(self._process))

    async def exchange(self, id: int, request: bytes) -> McpMessage:
        response = asyncio.get_running_loop().create_future()
        self._waiting[id] = response
        try:
            await self.send(request)
            return await response
        finally:
            self._waiting.pop(id, None)
            if not response.cancel() and not response.cancelled():
                # The program may have ended while the request was written; asyncio logs
                # errors that are not read.
                response.exception()

    async def send(self, message: bytes) -> None:
        process = self._process
        if self.is_closed or process is None or process.stdin is None:
            raise _build_end_error()
        n_unread = process.stdin.transport.get_write_buffer_size()
        if not n_unread:
            self._longest_unread = 0
        # A program may still read a long message when another call sends or is cancelled.
        if n_unread - self._longest_unread > MAX_UNREAD:
            self.is_closed = True
            self._kill_group(process)
            raise ToolServerError(
                ToolServerErrorKind.CONNECTION, "The program does not read its input."
            )
        self._longest_unread = max(self._longest_unread, len(message) + 1)
        process.stdin.write(message + b"\n")
        try:
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise _build_end_error() from None

    def set_protocol_version(self, version: str) -> None:
        """Messages on pipes do not name the version."""

    async def close(self) -> None:
        self.is_closed = True
        if self._process is None:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(self._process))
        # A cancelled caller, such as a request whose client has gone, must not leave a
        # program that nobody waits for.
        await asyncio.shield(self._closing)

    async def _close(self, process: Process) -> None:
        if process.stdin is not None:
            process.stdin.close()
        try:
            await _wait(process, STOP_TIMEOUT)
        finally:
            # Also after the program has ended: it may have left processes behind.
            self._kill_group(process)
            for task in (self._reader, self._logger):
                if task is not None:
                    task.cancel()
            self._fail(_build_end_error())
        try:
            # The transport would take its exit status from the event loop.
            await _wait(process, KILL_TIMEOUT)
        finally:
            if self._pipes is not None:
                self._pipes.close()
        # They close in the next iteration, so that nothing is left in the event loop.
        await asyncio.sleep(0)

    async def _read(self, process: Process) -> None:
        """Read messages until the program ends or breaks a rule; then kill it."""
        error = _build_end_error()
        try:
            while True:
                await self._handle(await self._read_line(process))
        except ToolServerError as failure:
            error = failure
        finally:
            self.is_closed = True
            self._kill_group(process)
            self._fail(error)

    async def _log_errors(self, process: Process) -> None:
        """Log what the program writes to its standard error, within the limits."""
        assert process.stderr is not None
        now = asyncio.get_running_loop().time
        begin = now()
        n_lines = 0
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:
                line = b"(a line that is too long)"
            if not line:
                return
            if now() - begin >= 60.0:
                begin = now()
                n_lines = 0
            n_lines += 1
            if n_lines <= MAX_LOG_LINES:
                log.info("%s: %s", self._command[0], _describe_line(line))
            elif n_lines == MAX_LOG_LINES + 1:
                log.info("%s: more lines are left out for a minute", self._command[0])

    async def _read_line(self, process: Process) -> bytes:
        assert process.stdout is not None
        try:
            return await process.stdout.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            raise _build_end_error() from None
        except asyncio.LimitOverrunError:
            raise ToolServerError(
                ToolServerErrorKind.TOO_LARGE,
                f"The server sent a message of more than {self._max_line} bytes.",
            ) from None

    async def _handle(self, line: bytes) -> None:
        if not line.strip():
            return
        message = decode_message(line)
        response = self._waiting.get(message.id) if isinstance(message.id, int) else None
        if message.method is None and response is not None and not response.done():
            self._n_unmatched = 0
            response.set_result(message)
            return
        # A response with another id may be that of a cancelled call.
        self._n_unmatched += 1
        if self._n_unmatched > MAX_UNMATCHED:
            raise ToolServerError(
                ToolServerErrorKind.PROTOCOL, "The server sent too many messages without a request."
            )
        if message.method == TOOLS_CHANGED:
            self.on_tools_changed()
        elif message.method is not None and message.id is not None:
            await self.send(encode_answer(message))

    def _fail(self, error: ToolServerError) -> None:
        for response in self._waiting.values():
            if not response.done():
                response.set_exception(error)
        self._waiting.clear()

    def _kill_group(self, process: Process) -> None:
        """Kill the processes of the group, once: later another program may have its id."""
        if self._is_killed:
            return
        self._is_killed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _describe_line(line: bytes) -> str:
    """Return a line for the log, where it must not look like another entry."""
    text = line.decode("utf-8", "replace").rstrip()[:MAX_LOG_LINE]
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


async def _wait(process: Process, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()


def _build_end_error() -> ToolServerError:
    return ToolServerError(ToolServerErrorKind.CONNECTION, "The program has ended.")
