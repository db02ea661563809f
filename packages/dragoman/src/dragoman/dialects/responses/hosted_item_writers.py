"""The writers of the items of hosted tools, whose calls a tool of the operator runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from ...core.events import Token
from ...core.server_tools import IMAGE_FORMATS, ToolOutcome
from ..json_encoding import encode_int, encode_string, encode_string_or_null
from ..search_links import Link, find_links
from .citations import CitedFile, Sources
from .client_tools import encode_json
from .item_writers import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    BaseItemWriter,
    EventFields,
    ItemWriter,
    McpCallItemWriter,
    render_command_events,
)
from .render_options import ResponsesRenderOptions
from .tool_registry import ToolName
from .tool_results import CommandOutput, FoundFile, read_command_outputs, read_found_files

_IMAGE_FIELDS = {
    "background": ("transparent", "opaque", "auto"),
    "quality": ("low", "medium", "high", "xhigh", "max", "auto"),
    "size": None,
}
"""The options of an image that its item repeats, with their values; None for any."""


class HostedCallItemWriter(McpCallItemWriter):
    """A call of a tool of the operator that runs a hosted tool.

    sources: receives what a search finds.
    """

    def __init__(
        self,
        index: int,
        tail: str,
        call_id: str,
        name: ToolName,
        options: ResponsesRenderOptions,
        sources: Sources,
    ) -> None:
        super().__init__(index, tail, call_id, name)
        self._kind = self._tool.hosted + "_call"
        self._options = options
        self._sources = sources
        self._set_id(self._kind)

    def begin(self) -> list[EventFields]:
        return [(self._kind.encode() + b".in_progress", self.location)]

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        del tokens
        self.texts.append(text)
        return None

    @property
    def _result(self) -> ToolOutcome | None:
        """The outcome of a call that succeeded; None for others."""
        return None if self.outcome is None or self.outcome.failure is not None else self.outcome

    def _build_endings(self, stage: bytes) -> list[EventFields]:
        """Return the events of a call that was made. There is none for a failure."""
        kind = self._kind.encode()
        if self.outcome is None:
            return []
        begun = (kind + b"." + stage, self.location)
        if self._result is None:
            return [begun]
        return [begun, (kind + b".completed", self.location)]

    def _read_arguments(self) -> dict[str, object]:
        """Read the arguments that the model wrote; empty if they are no object."""
        try:
            return msgspec.json.decode(self.join_text(), type=dict[str, object])
        except (msgspec.MsgspecError, RecursionError):
            return {}

    def _read_all_arguments(self) -> dict[str, object]:
        """Read the arguments with which the tool is called."""
        fixed = msgspec.json.decode(self._tool.fixed_arguments, type=dict[str, object])
        return self._read_arguments() | fixed

    def _find_argument(self, *names: str) -> str:
        """Return an argument by its usual names, or else the first text."""
        arguments = self._read_arguments()
        values = [*(arguments.get(name) for name in names), *arguments.values()]
        return next((value for value in values if isinstance(value, str)), "")

    def _find_arguments(self, list_name: str, *names: str) -> list[str]:
        """Return the texts of a list, or else the one that `_find_argument` finds."""
        listed = self._read_arguments().get(list_name)
        if isinstance(listed, list):
            return [text for text in cast("list[object]", listed) if isinstance(text, str)]
        text = self._find_argument(*names)
        return [text] if text else []


class SearchItemWriter(HostedCallItemWriter):
    """A search, which keeps what it has found for the citations of later text."""

    def end(self) -> list[EventFields]:
        return self._build_endings(b"searching")

    def keep_sources(self) -> None:
        """Keep what the search has found."""
        raise NotImplementedError


class WebSearchItemWriter(SearchItemWriter):
    """A `web_search_call`."""

    def keep_sources(self) -> None:
        self._sources.add_links(self._find_links())

    def _find_links(self) -> tuple[Link, ...]:
        return () if self._result is None else find_links(self._result.text)

    def render(self, status: bytes) -> bytes:
        status = self._map_status(status)
        action = b""
        if status != IN_PROGRESS:
            query = encode_string(self._find_argument("query", "q"))
            action = b',"query":%s,"queries":[%s]' % (query, query)
        links = self._find_links()
        self._sources.add_links(links)
        if self._options.include_sources and self._result is not None:
            sources = (b'{"type":"url","url":%s}' % encode_string(link.url) for link in links)
            action += b',"sources":[%s]' % b",".join(sources)
        return b'{"id":%s,"type":"web_search_call","status":"%s","action":{"type":"search"%s}}' % (
            self.id,
            status,
            action,
        )


class FileSearchItemWriter(SearchItemWriter):
    """A `file_search_call`."""

    def keep_sources(self) -> None:
        self._keep(self._read_files())

    def _read_files(self) -> list[FoundFile]:
        return [] if self._result is None else read_found_files(self._result)

    def _keep(self, files: list[FoundFile]) -> None:
        self._sources.add_files(
            CitedFile(file.file_id or name, name)
            for file in files
            if (name := file.filename or file.file_id)
        )

    def render(self, status: bytes) -> bytes:
        status = self._map_status(status)
        queries: list[str] = []
        if status != IN_PROGRESS:
            queries = self._find_arguments("queries", "query", "q")
        files = self._read_files()
        self._keep(files)
        results = b"null"
        if self._options.include_file_results and self._result is not None:
            results = b"[%s]" % b",".join(file.render() for file in files)
        return b'{"id":%s,"type":"file_search_call","status":"%s","queries":[%s],"results":%s}' % (
            self.id,
            status,
            b",".join(map(encode_string, queries)),
            results,
        )


class CodeInterpreterItemWriter(HostedCallItemWriter):
    """A `code_interpreter_call`. Its code is sent at once when it is complete, since the
    model writes it as a string of JSON.
    """

    def end(self) -> list[EventFields]:
        code = encode_string(self._find_code())
        prefix = self._kind.encode() + b"_code."
        delta = [(prefix + b"delta", self.delta_prefix + code)] if self._find_code() else []
        done = (prefix + b"done", b'%s,"code":%s' % (self.location, code))
        return [*delta, done, *self._build_endings(b"interpreting")]

    def _find_code(self) -> str:
        return self._find_argument("code", "script", "source")

    def render(self, status: bytes) -> bytes:
        status = self._map_status(status)
        outputs = b"null"
        if self.outcome is not None and self._options.include_code_outputs:
            outputs = b'[{"type":"logs","logs":%s}]' % encode_string(self.outcome.text)
        return (
            b'{"id":%s,"type":"code_interpreter_call","status":"%s","code":%s,'
            b'"container_id":%s,"outputs":%s}'
        ) % (
            self.id, status, encode_string("" if status == IN_PROGRESS else self._find_code()),
            encode_string(f"cntr_{self._tail}"), outputs,
        )  # fmt: skip


class ImageGenerationItemWriter(HostedCallItemWriter):
    """An `image_generation_call`. The last image that the tool returned is the result,
    those before it are drafts.
    """

    def _map_status(self, status: bytes) -> bytes:
        """Return the status; OpenAI's type has none for a call that was cut off."""
        if self.outcome is None:
            return status if status == IN_PROGRESS else b"failed"
        return COMPLETED if self._result is not None and self._result.images else b"failed"

    def end(self) -> list[EventFields]:
        if self.outcome is None:
            return []
        kind = self._kind.encode()
        events = [(kind + b".generating", self.location)]
        if self._map_status(COMPLETED) != COMPLETED:
            return events
        drafts = self.outcome.images[:-1][: self._options.partial_images]
        events += [
            (
                kind + b".partial_image",
                b'%s,"partial_image_index":%d,"partial_image_b64":%s'
                % (self.location, i, encode_string(draft.data)),
            )
            for i, draft in enumerate(drafts)
        ]
        return [*events, (kind + b".completed", self.location)]

    def render(self, status: bytes) -> bytes:
        status = self._map_status(status)
        fields = b""
        result = b"null"
        if status == COMPLETED and self.outcome is not None:
            image = self.outcome.images[-1]
            result = encode_string(image.data)
            fields += b',"output_format":"%s"' % IMAGE_FORMATS[image.mime_type].encode()
        elif self.outcome is not None:
            message = self.outcome.text or "The tool returned no image."
            fields += b',"error":{"type":"server_error","code":null,"param":null,"message":%s}' % (
                encode_string(message)
            )
        if status != IN_PROGRESS:
            prompt = self._find_argument("prompt", "description", "text") or None
            fields += b',"revised_prompt":%s' % encode_string_or_null(prompt)
            arguments = self._read_all_arguments()
            for name, values in _IMAGE_FIELDS.items():
                value = arguments.get(name)
                if isinstance(value, str) and (values is None or value in values):
                    fields += b',"%s":%s' % (name.encode(), encode_string(value))
        return b'{"id":%s,"type":"image_generation_call","status":"%s","result":%s%s}' % (
            self.id,
            status,
            result,
            fields,
        )


class ShellItemWriter(HostedCallItemWriter):
    """A `shell_call` in a container of the operator; its output is the next item."""

    def begin(self) -> list[EventFields]:
        return []

    def end(self) -> list[EventFields]:
        return [
            event
            for i, command in enumerate(self._find_commands())
            for event in render_command_events(self.index, i, command)
        ]

    def _find_commands(self) -> list[str]:
        return self._find_arguments("commands", "command", "cmd", "script")

    def _find_count(self, name: str) -> int | None:
        value = self._read_all_arguments().get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return value if 0 <= value < 2**31 else None

    def render(self, status: bytes) -> bytes:
        if self.outcome is not None:
            # A call that failed has an output, which says so.
            status = COMPLETED
        elif status != IN_PROGRESS:
            status = INCOMPLETE
        commands = [] if status == IN_PROGRESS else self._find_commands()
        environment = self._read_all_arguments().get("environment")
        container = f"cntr_{self._tail}"
        if isinstance(environment, dict):
            given = cast("dict[str, object]", environment).get("container_id")
            container = given if isinstance(given, str) else container
        return (
            b'{"id":%s,"type":"shell_call","status":"%s","call_id":%s,"action":{"commands":%s,'
            b'"timeout_ms":%s,"max_output_length":%s},'
            b'"environment":{"type":"container_reference","container_id":%s}}'
        ) % (
            self.id, status, encode_string(self._call_id), encode_json(commands),
            encode_int(self._find_count("timeout_ms")),
            encode_int(self._find_count("max_output_length")), encode_string(container),
        )  # fmt: skip

    def build_next(self) -> ItemWriter | None:
        if self.outcome is None:
            return None
        return ShellOutputItemWriter(
            self.index + 1,
            self._tail,
            self._call_id,
            read_command_outputs(self.outcome),
            self._find_count("max_output_length"),
        )


class ShellOutputItemWriter(BaseItemWriter):
    """A `shell_call_output` with the outputs of a call's commands."""

    def __init__(
        self,
        index: int,
        tail: str,
        call_id: str,
        outputs: Sequence[CommandOutput],
        max_length: int | None,
    ) -> None:
        super().__init__("shell_call_output", index, tail)
        self._call_id = call_id
        self._outputs = outputs
        self._max_length = max_length

    def begin(self) -> list[EventFields]:
        return []

    def add(self, text: str, tokens: Sequence[Token]) -> EventFields | None:
        raise NotImplementedError("the output is complete")

    def end(self) -> list[EventFields]:
        return [
            event
            for i, output in enumerate(self._outputs)
            for event in self._build_events(i, output)
        ]

    def _build_events(self, index: int, output: CommandOutput) -> list[EventFields]:
        location = b'%s,"command_index":%d' % (self.location, index)
        texts = {"stdout": output.stdout, "stderr": output.stderr}
        deltas = [
            (
                b"shell_call_output_content.delta",
                b'%s,"delta":{"%s":%s}' % (location, name.encode(), encode_string(text)),
            )
            for name, text in texts.items()
            if text
        ]
        done = b'%s,"output":[%s]' % (location, output.render())
        return [*deltas, (b"shell_call_output_content.done", done)]

    def render(self, status: bytes) -> bytes:
        outputs = () if status == IN_PROGRESS else self._outputs
        return (
            b'{"id":%s,"type":"shell_call_output","status":"%s","call_id":%s,"output":[%s],'
            b'"max_output_length":%s}'
        ) % (
            self.id, status, encode_string(self._call_id),
            b",".join(output.render() for output in outputs), encode_int(self._max_length),
        )  # fmt: skip
