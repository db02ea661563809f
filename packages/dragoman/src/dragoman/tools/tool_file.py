"""The tools file: tool servers of the operator, and the URLs that clients may name.

    servers:
      searx:
        url: http://127.0.0.1:8900/mcp
        headers:
          Authorization: Bearer ${SEARX_TOKEN}
      sandbox:
        command: /usr/bin/sandbox-mcp
        args: [--read-only]
    allowed_urls:
      - https://mcp.example.com/*

Programs run only from this file: a client names a URL, or the label of one of these
servers. Secrets come from the environment, so that the file can be shared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

MAX_SERVERS = 100
MAX_TIMEOUT = 3600.0
MAX_OUTPUT_BYTES = 100_000_000
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


class ToolFileError(ValueError):
    """The file is invalid. The message names the file and the entry, never a header's
    or a variable's value.
    """


class ServerEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server of the operator: either a program or a URL.

    command: the program, which speaks MCP on its standard input and output.
    args: its arguments.
    env: its environment besides PATH and the locale.
    url: where the server is. Its address may be private, since the operator named it.
    headers: sent with each request.
    connect_timeout: seconds to start or connect, and to initialize.
    call_timeout: seconds for one call.
    max_output_bytes: largest result of one call.
    max_memory_bytes: maximum address space of each process of the program; 0 is no limit.
    """

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str | None = None
    headers: dict[str, str] = {}
    connect_timeout: float = 30.0
    call_timeout: float = 60.0
    max_output_bytes: int = 1_000_000
    max_memory_bytes: int = 0

    def __repr__(self) -> str:
        return f"ServerEntry(command={self.command!r}, url={self.url!r})"


class ToolFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file.

    servers: by label.
    allowed_urls: URLs that clients may name. One that ends with `*` allows all that begin
        like it.
    allow_private_addresses: whether the hosts of these URLs may have addresses that are
        not public.
    """

    servers: dict[str, ServerEntry] = {}
    allowed_urls: tuple[str, ...] = ()
    allow_private_addresses: bool = False

    def allows_url(self, url: str) -> bool:
        """Whether a client may name this URL.

        Scheme, host and port must be the same; only the path may continue an entry that
        ends with `*`. Paths with dot segments or escapes are not compared but rejected,
        since servers resolve them.
        """
        try:
            parts = urlsplit(url)
            origin = _find_origin(parts)
        except ValueError:
            return False
        if _find_url_problem(url) is not None or _has_ambiguous_path(parts.path):
            return False
        for entry in self.allowed_urls:
            allowed = urlsplit(entry.removesuffix("*"))
            if _find_origin(allowed) != origin:
                continue
            if entry.endswith("*") and parts.path.startswith(allowed.path):
                return True
            if (parts.path or "/", parts.query) == (allowed.path or "/", allowed.query):
                return True
        return False


def parse_tool_file(path: Path, data: bytes, environment: Mapping[str, str]) -> ToolFile:
    """Parse the file's content and replace `${NAME}` in headers and `env`.

    Raises:
        ToolFileError: the content is invalid, or a variable is not set. The message
            begins with the path.
    """
    from ..core.strict_yaml import load_yaml  # noqa: PLC0415 - only if there is a file

    try:
        raw = load_yaml(data)
    except (ValueError, RecursionError):
        # The error's own text quotes the line, which could be a secret.
        raise ToolFileError(f"{path}: not valid YAML, or a mapping has a name twice") from None
    try:
        content = msgspec.convert({} if raw is None else raw, ToolFile, strict=True)
    except msgspec.ValidationError as error:
        raise ToolFileError(f"{path}: {error}") from None
    if len(content.servers) > MAX_SERVERS:
        raise ToolFileError(f"{path}: servers: at most {MAX_SERVERS} are supported")
    servers = dict[str, ServerEntry]()
    for label, entry in content.servers.items():
        where = f"{path}: servers.{label[:64]}"
        problem = _find_entry_problem(label, entry)
        if problem is not None:
            raise ToolFileError(f"{where}: {problem}")
        headers = _expand(entry.headers, environment, f"{where}.headers")
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
                raise ToolFileError(f"{where}.headers.{name[:64]!r}: not a valid HTTP header")
        env = _expand(entry.env, environment, f"{where}.env")
        servers[label] = replace(entry, headers=headers, env=env)
    for index, url in enumerate(content.allowed_urls):
        prefix = url.removesuffix("*")
        problem = _find_url_problem(prefix)
        if problem is None and url.endswith("*") and not urlsplit(url).path:
            problem = "`*` may stand only in the path, so write a slash after the host"
        elif problem is None and ("*" in prefix or (prefix != url and urlsplit(url).query)):
            # It would match another query, or nothing, against what the operator expects.
            problem = "`*` may stand only once, at the end of the path, and not in a query"
        if problem is not None:
            raise ToolFileError(f"{path}: allowed_urls.{index}: {problem}")
    return replace(content, servers=servers)


def _find_entry_problem(label: str, entry: ServerEntry) -> str | None:
    url_problem = None if entry.url is None else _find_url_problem(entry.url)
    problems = {
        "a label is 1 to 64 letters, digits, `_` and `-`, and begins with a letter or digit": (
            not _LABEL.fullmatch(label)
        ),
        "give either `command` or `url`": (entry.command is None) == (entry.url is None),
        "`args`, `env` and `max_memory_bytes` belong to `command`, not to `url`": (
            entry.url is not None and bool(entry.args or entry.env or entry.max_memory_bytes)
        ),
        "`headers` belong to `url`, not to `command`; use `env`": (
            entry.command is not None and bool(entry.headers)
        ),
        f"url: {url_problem}": url_problem is not None,
        "connect_timeout must be above 0 and at most 3600 seconds": (
            not 0 < entry.connect_timeout <= MAX_TIMEOUT
        ),
        "call_timeout must be above 0 and at most 3600 seconds": (
            not 0 < entry.call_timeout <= MAX_TIMEOUT
        ),
        "max_output_bytes must be from 1 to 100000000": (
            not 1 <= entry.max_output_bytes <= MAX_OUTPUT_BYTES
        ),
        "max_memory_bytes must be 0 or more": entry.max_memory_bytes < 0,
    }
    return next((problem for problem, is_found in problems.items() if is_found), None)


def _find_url_problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _find_origin(parts)
    except ValueError:
        return "not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "must be an http or https URL with a host"
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        return "must be ASCII without spaces and backslashes"
    if "@" in parts.netloc:
        return "must have no user or password; use `headers`"
    if "*" in parts.netloc or parts.fragment:
        return "must have no `*` in the host and no fragment"
    return None


def _find_origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port. Raises ValueError if the port is not a number."""
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _has_ambiguous_path(path: str) -> bool:
    return "%" in path or any(segment in (".", "..") for segment in path.split("/"))


def _expand(
    values: Mapping[str, str], environment: Mapping[str, str], where: str
) -> dict[str, str]:
    expanded = dict[str, str]()
    for name, value in values.items():
        for variable in _VARIABLE.findall(value):
            if variable not in environment:
                raise ToolFileError(
                    f"{where}.{name[:64]}: the environment variable {variable} is not set"
                )
        expanded[name] = _VARIABLE.sub(lambda match: environment[match[1]], value)
    return expanded
