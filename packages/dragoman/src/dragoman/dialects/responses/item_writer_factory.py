"""Creates the item writers of a response."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct

from ...core.message import Reasoning, Refusal, Text, ToolCall
from ...core.reply import ReplyPart
from ...core.server_tools import ToolList
from .citations import Sources
from .hosted_item_writers import (
    CodeInterpreterItemWriter,
    FileSearchItemWriter,
    ImageGenerationItemWriter,
    SearchItemWriter,
    ShellItemWriter,
    WebSearchItemWriter,
)
from .item_writers import (
    ApprovalItemWriter,
    CallItemWriter,
    ClientCallItemWriter,
    ItemWriter,
    McpCallItemWriter,
    MessageItemWriter,
    ReasoningItemWriter,
    RefusalItemWriter,
    ToolListWriter,
)
from .render_options import ResponsesRenderOptions
from .tool_registry import ToolName

_HOSTED = {
    "web_search": WebSearchItemWriter,
    "file_search": FileSearchItemWriter,
    "code_interpreter": CodeInterpreterItemWriter,
    "image_generation": ImageGenerationItemWriter,
    "shell": ShellItemWriter,
}


class OpenItem(Struct, frozen=True):
    """The fields of an item as it begins."""

    type: str
    name: str = ""
    namespace: str = ""
    server_label: str | None = None
    call_id: str = ""
    is_refusal: bool = False


class ItemWriterFactory:
    """Creates the item writers of one response. Item ids derive from the response's id
    and never change.
    """

    def __init__(self, response_id: str, options: ResponsesRenderOptions) -> None:
        self._tail = response_id.removeprefix("resp_")
        self._options = options
        self._sources = Sources()
        self._names = {name.qualified: name for name in options.tool_names}

    def create(
        self, index: int, kind: type[ReplyPart]
    ) -> MessageItemWriter | RefusalItemWriter | ReasoningItemWriter:
        """Create the writer of any item except a call."""
        if kind is Reasoning:
            return ReasoningItemWriter(index, self._tail, self._options)
        return (
            RefusalItemWriter(index, self._tail)
            if kind is Refusal
            else MessageItemWriter(index, self._tail, self._options, self._sources)
        )

    def create_list(self, index: int, tool_list: ToolList) -> ToolListWriter:
        return ToolListWriter(index, self._tail, tool_list)

    def create_call(self, index: int, call_id: str, name: str, custom: bool) -> CallItemWriter:
        # The table has only the names that differ between the prompt and the wire.
        tool_name = self._names.get(name) or ToolName(name, name, "")
        tool = tool_name.server_tool
        if tool is not None and (hosted := _HOSTED.get(tool.hosted)) is not None:
            return hosted(index, self._tail, call_id, tool_name, self._options, self._sources)
        if tool is not None:
            kind = ApprovalItemWriter if tool.needs_approval else McpCallItemWriter
            return kind(index, self._tail, call_id, tool_name)
        if tool_name.kind and not custom:
            return ClientCallItemWriter(index, self._tail, call_id, tool_name)
        return CallItemWriter(index, self._tail, call_id, tool_name, custom)

    def restore_sources(self, calls: Sequence[ToolCall]) -> None:
        """Read what earlier calls have found, which later text may cite."""
        for call in calls:
            item = self.create_complete(0, call)
            if isinstance(item, SearchItemWriter):
                item.keep_sources()

    def restore(
        self,
        index: int,
        item: OpenItem,
        text: str,
        logprobs: Sequence[Raw],
        part: ReplyPart | None,
    ) -> ItemWriter:
        """Create the writer of an item that another writer has begun.

        text, logprobs: those of its deltas.
        part: the whole of it; None if it was cut off.
        """
        if part is not None and not isinstance(part, Text):
            return self.create_complete(index, part)
        writer: ItemWriter
        match item.type:
            case "message":
                writer = self.create(index, Refusal if item.is_refusal else Text)
            case "reasoning":
                writer = self.create(index, Reasoning)
            case _:
                writer = self.create_call(
                    index, item.call_id, self._find_qualified(item), item.type == "custom_tool_call"
                )
        if isinstance(writer, MessageItemWriter):
            writer.restore(text, logprobs, () if part is None else part.tokens)
        else:
            writer.add(text, ())
        return writer

    def _find_qualified(self, item: OpenItem) -> str:
        for name in self._names.values():
            if name.server_tool is not None and name.server_tool.hosted + "_call" == item.type:
                return name.qualified
            label = None if name.server_tool is None else name.server_tool.server
            if (name.name, name.namespace, label) == (
                item.name,
                item.namespace,
                item.server_label,
            ):
                return name.qualified
        return item.name

    def create_complete(self, index: int, part: ReplyPart) -> ItemWriter:
        """Create the writer of a finished part, with the part added."""
        if isinstance(part, ToolCall):
            call = self.create_call(index, part.id, part.name, part.custom)
            call.add(part.arguments, ())
            if isinstance(call, McpCallItemWriter):
                call.outcome = part.outcome
            if isinstance(call, (ClientCallItemWriter, ApprovalItemWriter)):
                call.resolve()
            return call
        writer = self.create(index, type(part))
        if isinstance(writer, MessageItemWriter):
            writer.restore(part.text, (), part.tokens if isinstance(part, Text) else ())
            return writer
        writer.add(part.text, ())
        if isinstance(writer, ReasoningItemWriter) and isinstance(part, Reasoning):
            writer.seal = part.seal
        return writer
