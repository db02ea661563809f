"""The wire format of Responses: checks of streams and objects of any server, against
OpenAI's API and Open Responses.

    stream:  created  [queued]  in_progress+  item*  completed | incomplete | failed
             [DONE]; in_progress may be repeated anywhere; failed follows an error;
             incomplete ends a cancelled response
    item:    output_item.added(i)  content events  output_item.done(i); one open at a
             time, i = 0, 1, 2 ...
    part:    added  delta*  done  part.done, in messages and reasoning; calls have
             delta* done without a part; those of MCP tools have in_progress before
             it and completed | failed after it if they were made; the output of a
             shell has delta* done for each command

`sequence_number` counts all events from 0. The text of a `.done` event is the
concatenation of its deltas, and the response of the last event contains the items of
all output_item.done events.
"""

from __future__ import annotations

from collections.abc import Sequence

from .event_streams import DONE, parse_named_events
from .json_values import (
    JsonObject,
    Violation,
    require,
    require_array,
    require_count,
    require_key,
    require_object,
    require_objects,
    require_string,
)
from .openai_values import check_chat_logprobs, check_error

DONE_EVENT = f"data: {DONE}\n\n".encode()
RESPONSE_FIELDS = (
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty",
    "top_logprobs", "temperature", "reasoning", "usage", "max_output_tokens", "max_tool_calls",
    "store", "background", "service_tier", "metadata", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
"""The fields that Open Responses requires in every response object, null or not."""
OPTIONAL_FIELDS: JsonObject = {
    "completed_at": None, "previous_response_id": None, "truncation": "disabled",
    "text": {"format": {"type": "text"}}, "presence_penalty": 0, "frequency_penalty": 0,
    "top_logprobs": 0, "reasoning": None, "usage": None, "max_output_tokens": None,
    "max_tool_calls": None, "store": False, "background": False, "service_tier": None,
    "safety_identifier": None, "prompt_cache_key": None,
}  # fmt: skip
"""Those of RESPONSE_FIELDS that OpenAI's schema does not require, with the values that
stand for absent ones.
"""
TERMINAL_STATUSES = ("completed", "incomplete", "failed")
STATUSES = (*TERMINAL_STATUSES, "in_progress", "queued", "cancelled")
ITEM_STATUSES = ("in_progress", "completed", "incomplete")
INCOMPLETE_REASONS = ("max_output_tokens", "content_filter")
COMPACTION = "compaction"
"""Type of an item that has no status, and whose content is only in its output_item.done
event.
"""
CLIENT_CALL_FIELDS = {
    "shell_call": ("action",),
    "local_shell_call": ("action",),
    "apply_patch_call": ("operation",),
    "computer_call": ("action", "actions"),
    "tool_search_call": ("arguments",),
}
"""Type of a call that the client executes -> its possible fields, exactly one of which
it has.
"""
MCP_CALL = "mcp_call"
"""Type of a call of an MCP server's tool, which this server makes. It can fail although
the response is complete.
"""
CALL_TEXT_FIELDS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    MCP_CALL: "arguments",
}
"""Type of a call -> the field with its streamed text."""
MCP_LIST = "mcp_list_tools"
IMAGE_CALL = "image_generation_call"
MCP_APPROVAL = "mcp_approval_request"
SHELL_OUTPUT = "shell_call_output"
"""Type of the output of a shell in a container, which follows its call."""
HOSTED_STAGES = {
    "web_search_call": "searching",
    "code_interpreter_call": "interpreting",
    "file_search_call": "searching",
    IMAGE_CALL: "generating",
}
"""Type of a call of a hosted tool -> its event between `in_progress` and `completed`."""
HOSTED_KEYS = {
    "web_search_call": "action",
    "code_interpreter_call": "container_id",
    "file_search_call": "queries",
    IMAGE_CALL: "result",
    SHELL_OUTPUT: "output",
}
"""Type of a call of a hosted tool, or of its output -> a key that it always has."""
ITEMS_WITHOUT_STATUS = (COMPACTION, MCP_LIST, MCP_APPROVAL)


class _PartKind:
    """The names of the events and fields of one kind of part.

    opening: prefix of the events that begin and end it.
    deltas: prefix of the events of its text.
    index: name of the field with the part's index.
    field: name of the field with its text.
    type: the part's type.
    """

    def __init__(self, opening: str, deltas: str, index: str, field: str, type: str) -> None:
        self.frame_event = opening
        self.text_event = deltas
        self.index_field = index
        self.text_field = field
        self.type = type


OUTPUT_TEXT = _PartKind("content_part", "output_text", "content_index", "text", "output_text")
REFUSAL = _PartKind("content_part", "refusal", "content_index", "refusal", "refusal")
REASONING_TEXT = _PartKind(
    "content_part", "reasoning_text", "content_index", "text", "reasoning_text"
)
SUMMARY_TEXT = _PartKind(
    "reasoning_summary_part", "reasoning_summary_text", "summary_index", "text", "summary_text"
)
PART_KINDS = {
    "message": (OUTPUT_TEXT, REFUSAL),
    "reasoning": (REASONING_TEXT, SUMMARY_TEXT),
}


def check_stream(
    data: bytes, *, allow_variants: bool = False, requires_usage: bool = True
) -> list[JsonObject]:
    """Check a stream, and return its events. Raises Violation.

    allow_variants: check against OpenAI's reference only. What Open Responses requires
    beyond it may be absent: `[DONE]` and the OPTIONAL_FIELDS.
    requires_usage: the usage of a complete response must not be null, as it may be for
    a gateway whose upstream does not count.
    """
    require(allow_variants or data.endswith(DONE_EVENT), f"the stream does not end with {DONE}")
    events = list(parse_named_events(data.removesuffix(DONE_EVENT)))
    state = _ResponsesStreamState(allow_variants=allow_variants, requires_usage=requires_usage)
    for event in events:
        state.feed(event)
    require(state.has_ended, "the stream ends without a terminal event")
    return events


class _OpenPart:
    """The open part.

    pieces, logprobs: collected from its deltas.
    annotations: those that were added.
    done_text: the text of its done event; None before it.
    """

    def __init__(self, kind: _PartKind, index: int) -> None:
        self.kind = kind
        self.index = index
        self.pieces: list[str] = []
        self.logprobs: list[object] = []
        self.annotations: list[JsonObject] = []
        self.done_text: str | None = None


class _OpenItem:
    """The open item; checks the events between its output_item.added and
    output_item.done.

    closed_parts: kind and text of each finished part.
    pieces: deltas of a call's text.
    commands: commands of a shell call.
    done_arguments: the text of the done event of a call or of its last command; None
        before it.
    stages: the events that tell the progress of a call that the server makes, or of an
        MCP server's list.
    drafts: number of an image's drafts.
    outputs: the outputs of commands that are complete.
    output_texts: deltas of the output that is not complete.
    """

    def __init__(self, index: int, item: JsonObject) -> None:
        self.index = index
        self.first_item = item
        self.kind = str(item["type"])
        self.id = item["id"]
        self.part: _OpenPart | None = None
        self.closed_parts: list[tuple[_PartKind, str]] = []
        self.pieces: list[str] = []
        self.commands: list[str] = []
        self.done_arguments: str | None = None
        self.stages: list[str] = []
        self.drafts = 0
        self.outputs: list[JsonObject] = []
        self.output_texts = {"stdout": "", "stderr": ""}

    def feed(self, event: JsonObject, name: str) -> None:
        if self.kind == "shell_call":
            self._feed_command(event, name)
            return
        require(
            event.get("item_id") == self.id,
            f"{event['type']} of item {event.get('item_id')!r}, not {self.id!r}",
        )
        if name.startswith(f"{self.kind}.") and self.kind in (MCP_CALL, MCP_LIST):
            self._feed_stage(name.removeprefix(f"{self.kind}."))
        elif self.kind in HOSTED_STAGES:
            self._feed_hosted(event, name)
        elif self.kind == SHELL_OUTPUT:
            self._feed_output(event, name)
        elif self.kind in CALL_TEXT_FIELDS:
            self._feed_call(event, name)
        elif self.kind == COMPACTION:
            require(name == "compaction.compacting", f"{event['type']} in a compaction")
        elif self.kind in ITEMS_WITHOUT_STATUS:
            raise Violation(f"{event['type']} in {self.kind}")
        else:
            self._feed_part(event, name)

    def _feed_stage(self, stage: str) -> None:
        """Check an event that tells the progress of a call or a list: in_progress, then
        completed or failed, for a call after its arguments.
        """
        if not self.stages:
            require(stage == "in_progress" and not self.pieces, f"{self.kind}.{stage} comes first")
        else:
            is_ready = self.kind == MCP_LIST or self.done_arguments is not None
            require(
                stage in ("completed", "failed") and len(self.stages) == 1 and is_ready,
                f"{self.kind}.{stage} out of order",
            )
        self.stages.append(stage)

    def _feed_hosted(self, event: JsonObject, name: str) -> None:
        """Check an event of a hosted tool's call: in_progress, code, the stage of its
        work, drafts of an image, completed.
        """
        if name == "code_interpreter_call_code.delta" and self.done_arguments is None:
            self.pieces.append(require_string(event.get("delta"), "delta"))
            return
        if name == "code_interpreter_call_code.done" and self.done_arguments is None:
            self.done_arguments = require_string(event.get("code"), "code")
            require(
                self.done_arguments == "".join(self.pieces),
                f"{event['type']} differs from its concatenated deltas",
            )
            return
        if name == f"{IMAGE_CALL}.partial_image" and self.stages[-1:] == ["generating"]:
            index = event.get("partial_image_index")
            require(index == self.drafts, f"draft {index!r}, expected {self.drafts}")
            require_string(event.get("partial_image_b64"), "partial_image_b64")
            self.drafts += 1
            return
        self.stages.append(name.removeprefix(f"{self.kind}."))
        order = ["in_progress", HOSTED_STAGES[self.kind], "completed"]
        require(self.stages == order[: len(self.stages)], f"{event['type']} out of order")

    def _feed_output(self, event: JsonObject, name: str) -> None:
        """Check an event of a shell's output: delta* and done for each command."""
        index = event.get("command_index")
        require(index == len(self.outputs), f"{event['type']} of command {index!r}")
        if name == "shell_call_output_content.delta":
            delta = require_object(event.get("delta"), "delta")
            require(delta.keys() <= self.output_texts.keys(), f"a delta of {sorted(delta)}")
            for stream, text in delta.items():
                self.output_texts[stream] += require_string(text, stream)
            return
        require(name == "shell_call_output_content.done", f"{event['type']} in a {SHELL_OUTPUT}")
        outputs = require_objects(event.get("output"), "output")
        for stream, text in self.output_texts.items():
            done = "".join(str(output.get(stream)) for output in outputs)
            require(done == text, f"{event['type']} differs from its concatenated deltas")
        self.outputs += outputs
        self.output_texts = dict.fromkeys(self.output_texts, "")

    def _feed_call(self, event: JsonObject, name: str) -> None:
        field = CALL_TEXT_FIELDS[self.kind]
        require(self.kind != MCP_CALL or len(self.stages) == 1, f"{event['type']} out of order")
        require(self.done_arguments is None, f"{event['type']} after the end of the {field}")
        if name == f"{self.kind}_{field}.delta":
            piece = require_string(event.get("delta"), "delta")
            require(piece, "an empty delta")
            self.pieces.append(piece)
        else:
            require(name == f"{self.kind}_{field}.done", f"{event['type']} in a {self.kind}")
            self.done_arguments = require_string(event.get(field), field)
            # Clients read either the deltas or the text of the done event: both must
            # yield the same call.
            require(
                self.done_arguments == "".join(self.pieces),
                f"{event['type']} differs from its concatenated deltas",
            )

    def _feed_command(self, event: JsonObject, name: str) -> None:
        """Check an event of a shell call's command: added, delta* and done, one command
        at a time, without item_id.
        """
        begins = name == "shell_call_command.added"
        expected = len(self.commands) - (0 if begins else 1)
        require(
            event.get("command_index") == expected,
            f"{event['type']} of command {event.get('command_index')!r}",
        )
        if begins:
            require(
                self.done_arguments is not None or not self.commands,
                "a command starts while another is open",
            )
            self.commands.append(require_string(event.get("command"), "command"))
            self.done_arguments = None
            return
        require(self.done_arguments is None, f"{event['type']} after the end of the command")
        if name == "shell_call_command.delta":
            self.commands[-1] += require_string(event.get("delta"), "delta")
        else:
            require(name == "shell_call_command.done", f"{event['type']} in a shell_call")
            self.done_arguments = require_string(event.get("command"), "command")
            require(
                self.done_arguments == self.commands[-1],
                f"{event['type']} differs from its concatenated deltas",
            )

    def _feed_part(self, event: JsonObject, name: str) -> None:
        part = self.part
        if part is None:
            part_type = require_object(event.get("part") or {}, "part").get("type")
            kinds = (kind for kind in PART_KINDS.get(self.kind, ()) if kind.type == part_type)
            kind = next((kind for kind in kinds if name == f"{kind.frame_event}.added"), None)
            if kind is None:
                raise Violation(f"{event['type']} in a {self.kind} without an open part")
            _check_part(event, kind, "", [])
            index = require_count(event.get(kind.index_field), kind.index_field)
            # Texts and refusals share one index (content_index); summaries have their
            # own (summary_index).
            expected = sum(
                closed_kind.index_field == kind.index_field for closed_kind, _ in self.closed_parts
            )
            require(index == expected, f"part {index} starts, expected {expected}")
            self.part = _OpenPart(kind, index)
            return
        require(
            event.get(part.kind.index_field) == part.index,
            f"{event['type']} of a part that is not open",
        )
        if name == f"{part.kind.text_event}.delta" and part.done_text is None:
            piece = require_string(event.get("delta"), "delta")
            logprobs: list[object] = []
            if part.kind is OUTPUT_TEXT:
                logprobs = require_array(event.get("logprobs"), "logprobs")
            require(piece or logprobs, "an empty delta")
            part.pieces.append(piece)
            part.logprobs.extend(logprobs)
        elif name == "output_text.annotation.added" and part.kind is OUTPUT_TEXT:
            require(
                event.get("annotation_index") == len(part.annotations),
                f"annotation {event.get('annotation_index')!r}",
            )
            part.annotations.append(require_object(event.get("annotation"), "annotation"))
        elif name == f"{part.kind.text_event}.done" and part.done_text is None:
            part.done_text = require_string(event.get(part.kind.text_field), part.kind.text_field)
            require(
                part.done_text == "".join(part.pieces),
                f"{event['type']} differs from its concatenated deltas",
            )
            if part.kind is OUTPUT_TEXT:
                require(
                    event.get("logprobs") == part.logprobs,
                    f"{event['type']} has different logprobs than its deltas",
                )
        else:
            require(
                name == f"{part.kind.frame_event}.done" and part.done_text is not None,
                f"{event['type']} out of order",
            )
            _check_part(event, part.kind, part.done_text or "", part.logprobs, part.annotations)
            self.closed_parts.append((part.kind, part.done_text or ""))
            self.part = None

    def close(self, item: JsonObject) -> None:
        require(
            item.get("id") == self.id and item.get("type") == self.kind,
            f"item {self.index} has a different id or type in output_item.done",
        )
        require(
            # Completed or incomplete: only calls that the server makes can fail.
            self.kind in ITEMS_WITHOUT_STATUS
            or item.get("status")
            in TERMINAL_STATUSES[: 3 if self.kind in (MCP_CALL, *HOSTED_STAGES) else 2],
            f"the status in output_item.done is {item.get('status')!r}",
        )
        require(self.part is None, "output_item.done while a part is open")
        if self.kind in CALL_TEXT_FIELDS:
            require(
                self.done_arguments is not None
                and item.get(CALL_TEXT_FIELDS[self.kind]) == self.done_arguments,
                "the call differs from the streamed call",
            )
            for key in ("call_id", "name", "namespace", "server_label"):
                require(item.get(key) == self.first_item.get(key), f"the call's {key} changed")
            if self.kind == MCP_CALL:
                ending = self.stages[1] if len(self.stages) > 1 else "incomplete"
                require(item.get("status") == ending, f"an mcp_call ends as {ending}")
            return
        if self.kind in HOSTED_STAGES:
            require(
                (item.get("status") == "completed") == (self.stages[-1:] == ["completed"]),
                f"a {self.kind} is {item.get('status')!r} after {self.stages}",
            )
            if self.kind == "code_interpreter_call":
                require(item.get("code") == self.done_arguments, "the code changed")
            return
        if self.kind == SHELL_OUTPUT:
            require(item.get("output") == self.outputs, "the output differs from the streamed one")
            return
        if self.kind == MCP_LIST:
            ending = "completed" if item.get("error") is None else "failed"
            require(self.stages == ["in_progress", ending], f"the list is not {ending}")
            return
        if self.kind == MCP_APPROVAL:
            require(item == self.first_item, "the request for an approval changed")
            return
        if self.kind in CLIENT_CALL_FIELDS:
            require(
                item.get("call_id") == self.first_item.get("call_id"), "the call's call_id changed"
            )
            if self.kind == "shell_call":
                commands = require_object(item.get("action"), "action").get("commands")
                require(commands == self.commands, "the commands differ from the streamed commands")
            return
        for name in ("content", "summary"):
            texts = [
                part.get("refusal" if part.get("type") == "refusal" else "text")
                for part in require_objects(item.get(name) or [], name)
            ]
            streamed = [
                text for kind, text in self.closed_parts if kind.index_field == f"{name}_index"
            ]
            require(texts == streamed, f"the item's {name} differs from the streamed {name}")


def _check_part(
    event: JsonObject,
    kind: _PartKind,
    text: str,
    logprobs: list[object],
    annotations: Sequence[JsonObject] = (),
) -> None:
    part = require_object(event.get("part"), "part")
    require(part.get("type") == kind.type, f"a part of type {part.get('type')!r}")
    require(part.get(kind.text_field) == text, f"{event['type']} has a different text")
    if kind is OUTPUT_TEXT:
        require(
            part.get("annotations") == list(annotations),
            f"{event['type']} has other annotations than were added",
        )
        require(
            part.get("logprobs") == logprobs,
            f"{event['type']} has different logprobs than its deltas",
        )


class _ResponsesStreamState:
    """State machine that checks the events of one stream."""

    def __init__(self, *, allow_variants: bool, requires_usage: bool) -> None:
        self._allow_variants = allow_variants
        self._requires_usage = requires_usage
        self.has_ended = False
        self._count = 0
        self._id: object = None
        self._is_running = False
        self._has_failed = False
        self._item: _OpenItem | None = None
        self._done_items: list[JsonObject] = []

    def feed(self, event: JsonObject) -> None:
        kind = str(event["type"])
        require(not self.has_ended, f"{kind} after the terminal event")
        require(
            event.get("sequence_number") == self._count,
            f"sequence_number is {event.get('sequence_number')!r}, expected {self._count}",
        )
        require(
            self._count or kind == "response.created",
            f"{kind}: response.created must be the first event",
        )
        self._count += 1
        name = kind.removeprefix("response.")
        if kind == "error":
            # The fields are flat in OpenAI's API and nested in Open Responses: an event
            # has both, with equal values.
            nested = require_object(event.get("error"), "error")
            check_error(nested)
            for key in ("code", "message", "param"):
                require_key(event, key, "the error")
                require(event[key] == nested[key], f"{key} differs from error.{key}")
            self._has_failed = True
            return
        if name in ("created", "queued", "in_progress", *TERMINAL_STATUSES):
            self._feed_lifecycle(name, require_object(event.get("response"), "response"))
            return
        require(not self._has_failed, f"{kind} after an error")
        require(self._is_running, f"{kind} before response.in_progress")
        index = event.get("output_index")
        require(index == len(self._done_items), f"{kind}: output_index {index!r}")
        if name == "output_item.added":
            require(self._item is None, "an item starts while another is open")
            item = require_object(event.get("item"), "item")
            _check_added_item(item)
            self._item = _OpenItem(len(self._done_items), item)
        elif self._item is None:
            raise Violation(f"{kind} without an open item")
        elif name == "output_item.done":
            item = require_object(event.get("item"), "item")
            self._item.close(item)
            self._done_items.append(item)
            self._item = None
        else:
            self._item.feed(event, name)

    def _feed_lifecycle(self, name: str, response: JsonObject) -> None:
        require(
            (name == "created") == (self._id is None), f"response.{name} at event {self._count - 1}"
        )
        self._id = self._id or response.get("id")
        require(response.get("id") == self._id, "the response's id changed")
        check_object(response, allow_variants=self._allow_variants)
        if name not in TERMINAL_STATUSES:
            require(not self._has_failed, f"response.{name} after an error")
            require(
                response["status"] in ("in_progress", "queued"),
                f"response.{name} has the status {response['status']!r}",
            )
            require(response["usage"] is None, f"response.{name} has usage before the end")
            self._is_running = self._is_running or name == "in_progress"
            return
        self.has_ended = True
        # The API has no event `response.cancelled`; a cancelled stream ends with
        # response.incomplete.
        is_cancelled = response["status"] == "cancelled" and name == "incomplete"
        require(
            response["status"] == name or is_cancelled,
            f"response.{name} has the status {response['status']!r}",
        )
        require(not self._has_failed or name == "failed", f"response.{name} after an error")
        if name == "failed" or is_cancelled:
            require(
                # The output may also contain the item that was open, as far as it was
                # generated.
                response["output"][: len(self._done_items)] == self._done_items,
                "the output differs from the items of output_item.done",
            )
            return
        require(self._item is None, f"response.{name} while an item is open")
        require(
            response["output"] == self._done_items,
            "the output differs from the items of output_item.done",
        )
        require(
            response["usage"] is not None or not self._requires_usage,
            f"response.{name} has no usage",
        )


def check_object(response: JsonObject, *, allow_variants: bool = False) -> None:
    """Check a response object in any status. allow_variants: see `check_stream`. Raises
    Violation.
    """
    if allow_variants:
        # Some servers omit fields of newer API versions, and some send an unset `user`
        # as null.
        present = {key: value for key, value in response.items() if (key, value) != ("user", None)}
        response = OPTIONAL_FIELDS | present
    for key in RESPONSE_FIELDS:
        require_key(response, key, "the response")
    require(response["object"] == "response", f"object is {response['object']!r}")
    require(require_string(response["id"], "id"), "id is empty")
    require_string(response["model"], "model")
    require_count(response["created_at"], "created_at")
    require(response["status"] in STATUSES, f"status is {response['status']!r}")
    for key in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        is_number = isinstance(response[key], int | float) and not isinstance(response[key], bool)
        require(is_number, f"{key} is {response[key]!r}, expected a number")
    for key in ("parallel_tool_calls", "store", "background"):
        require(isinstance(response[key], bool), f"{key} is {response[key]!r}")
    require_object(require_object(response["text"], "text").get("format"), "text.format")
    require("user" not in response or response["user"] is not None, "user is null")
    require(
        response["truncation"] in ("auto", "disabled"), f"truncation is {response['truncation']!r}"
    )
    require_count(response["top_logprobs"], "top_logprobs")
    for i, tool in enumerate(require_objects(response["tools"], "tools")):
        # The echoed tools include defaults, such as `strict`, which show a client how
        # they were parsed.
        for key in (
            ("name", "description", "parameters", "strict")
            if tool.get("type") == "function"
            else ()
        ):
            require_key(tool, key, f"tools[{i}]")
    items = require_objects(response["output"], "output")
    for i, item in enumerate(items):
        _check_item(item, f"output[{i}]")
    # Clients refer to items by id, in `item_reference` and when they merge items into a
    # stored conversation.
    ids = [item["id"] for item in items]
    require(len(set(ids)) == len(ids), "two items have the same id")
    _check_state(response, items)
    if response["usage"] is not None:
        _check_usage(response["usage"])


def _check_state(response: JsonObject, items: list[JsonObject]) -> None:
    """Check the fields that depend on the status."""
    status = response["status"]
    require(
        (response["error"] is not None) == (status == "failed"),
        f"error is {response['error']!r} in a {status} response",
    )
    if response["error"] is not None:
        error = require_object(response["error"], "error")
        require(
            require_string(error.get("code"), "error.code")
            and require_string(error.get("message"), "error.message"),
            "error.code or error.message is empty",
        )
    incomplete_details = response["incomplete_details"]
    require(
        (incomplete_details is not None) == (status == "incomplete"),
        f"incomplete_details is {incomplete_details!r} in a {status} response",
    )
    require(
        incomplete_details is None
        or require_object(incomplete_details, "incomplete_details").get("reason")
        in INCOMPLETE_REASONS,
        f"incomplete_details is {incomplete_details!r}",
    )
    require(
        response["completed_at"] is None or status == "completed",
        f"a {status} response has completed_at",
    )
    unfinished = [item for item in items if item.get("status", "completed") != "completed"]
    # A failed call of an MCP tool is finished; of a response that was cut off, no call is
    # made.
    if status == "completed":
        unfinished = [item for item in unfinished if not _has_failed(item)]
    else:
        unfinished = [item for item in unfinished if not _is_run_here(item)]
    if response.get("background"):
        # A server that was stopped may generate again what was cut off.
        unfinished = [item for item in unfinished if item is items[-1]]
    require(not unfinished or status != "completed", "a completed response has unfinished items")
    # Items are generated one after another, so only the last one can be cut off.
    require(unfinished in ([], items[-1:]), "an unfinished item is not the last")


def _has_failed(item: JsonObject) -> bool:
    return _is_run_here(item) and item.get("status") == "failed"


def _is_run_here(item: JsonObject) -> bool:
    """Whether an item is a call that the server makes, not the client."""
    if item.get("type") != "shell_call":
        return item.get("type") in (MCP_CALL, *HOSTED_STAGES)
    environment = require_object(item.get("environment") or {}, "environment")
    return environment.get("type") == "container_reference"


def _check_added_item(item: JsonObject) -> None:
    kind = item.get("type")
    require(
        kind
        in (
            *PART_KINDS,
            *CALL_TEXT_FIELDS,
            *CLIENT_CALL_FIELDS,
            *ITEMS_WITHOUT_STATUS,
            *HOSTED_STAGES,
            SHELL_OUTPUT,
        ),
        f"an item of type {kind!r}",
    )
    require(require_string(item.get("id"), "id"), "an item without an id")
    if kind in (MCP_LIST, MCP_APPROVAL):
        _check_item(item, "item")
        require(kind != MCP_LIST or item.get("tools") == [], "an added mcp_list_tools has tools")
        return
    if kind == COMPACTION:
        # An item is added empty; its content follows in deltas, or in output_item.done.
        require(item.get("encrypted_content") == "", "an added compaction has content")
        return
    require(
        item.get("status") == "in_progress", f"an added item has the status {item.get('status')!r}"
    )
    if kind in CALL_TEXT_FIELDS:
        id_field = "server_label" if kind == MCP_CALL else "call_id"
        require(
            require_string(item.get(id_field), id_field)
            and require_string(item.get("name"), "name"),
            f"a call without {id_field} or name",
        )
        require(item.get(CALL_TEXT_FIELDS[kind]) == "", "an added call has text")
    elif kind in CLIENT_CALL_FIELDS:
        _check_client_call(item, str(kind), "item")
        action = item.get("action")
        require(
            kind != "shell_call" or action == {**require_object(action, "action"), "commands": []},
            "an added shell_call has commands",
        )
    else:
        names = ("content", "summary", "output", "queries", "result", "results")
        require(not any(map(item.get, names)), "an added item has content")


def _check_item(item: JsonObject, location: str) -> None:
    require(require_string(item.get("id"), f"{location}.id"), f"{location}.id is empty")
    # A compaction is opaque and has no status.
    if item.get("type") == COMPACTION:
        require_string(item.get("encrypted_content"), f"{location}.encrypted_content")
        return
    if item.get("type") in (MCP_CALL, MCP_LIST, MCP_APPROVAL):
        _check_mcp_item(item, location)
        return
    statuses = (*ITEM_STATUSES, *(["failed"] * (item.get("type") in HOSTED_STAGES)))
    require(item.get("status") in statuses, f"{location}.status is {item.get('status')!r}")
    match item.get("type"):
        case "message":
            require(item.get("role") == "assistant", f"{location}.role is {item.get('role')!r}")
            for i, part in enumerate(require_objects(item.get("content"), f"{location}.content")):
                _check_content(part, f"{location}.content[{i}]")
        case "reasoning":
            for name in ("summary", "content"):
                for part in require_objects(
                    item.get(name, [] if name == "content" else None), f"{location}.{name}"
                ):
                    require_string(part.get("text"), f"{location}.{name}.text")
        case "function_call" | "custom_tool_call" as kind:
            for key in ("call_id", "name", CALL_TEXT_FIELDS[kind]):
                require_string(item.get(key), f"{location}.{key}")
            require("namespace" not in item or item["namespace"], f"{location}.namespace is empty")
        case str(kind) if kind in HOSTED_KEYS:
            _check_hosted_item(item, kind, location)
        case str(kind) if kind in CLIENT_CALL_FIELDS:
            _check_client_call(item, kind, location)
        case kind:
            raise Violation(f"{location} is of type {kind!r}")


def _check_mcp_item(item: JsonObject, location: str) -> None:
    label = require_string(item.get("server_label"), f"{location}.server_label")
    require(label, f"{location}.server_label is empty")
    if item["type"] == MCP_LIST:
        require_key(item, "error", location)
        for i, tool in enumerate(require_objects(item.get("tools"), f"{location}.tools")):
            require_string(tool.get("name"), f"{location}.tools[{i}].name")
            require_object(tool.get("input_schema"), f"{location}.tools[{i}].input_schema")
        return
    for key in ("name", "arguments"):
        require_string(item.get(key), f"{location}.{key}")
    if item["type"] == MCP_APPROVAL:
        return
    status = item.get("status")
    require(status in (*ITEM_STATUSES, "failed"), f"{location}.status is {status!r}")
    for key, ending in (("output", "completed"), ("error", "failed")):
        require_key(item, key, location)
        require(
            (item[key] is not None) == (status == ending),
            f"{location} of status {status!r} has {key} {item[key]!r}",
        )


def _check_client_call(item: JsonObject, kind: str, location: str) -> None:
    require(
        require_string(item.get("call_id"), f"{location}.call_id"), f"{location}.call_id is empty"
    )
    present = [name for name in CLIENT_CALL_FIELDS[kind] if item.get(name) is not None]
    require(
        len(present) == 1,
        f"{location} has {present or 'none'} of {', '.join(CLIENT_CALL_FIELDS[kind])}",
    )


def _check_hosted_item(item: JsonObject, kind: str, location: str) -> None:
    require_key(item, HOSTED_KEYS[kind], location)
    if kind == IMAGE_CALL:
        require(
            (item["result"] is not None) == (item.get("status") == "completed"),
            f"{location} of status {item.get('status')!r} has the result {item['result']!r:.40}",
        )
    if kind != SHELL_OUTPUT:
        return
    call_id = require_string(item.get("call_id"), f"{location}.call_id")
    require(call_id, f"{location}.call_id is empty")
    for i, output in enumerate(require_objects(item["output"], f"{location}.output")):
        for name in ("stdout", "stderr"):
            require_string(output.get(name), f"{location}.output[{i}].{name}")
        path = f"{location}.output[{i}].outcome"
        outcome = require_object(output.get("outcome"), path)
        code = outcome.get("exit_code")
        kind = "timeout" if code is None else "exit"
        require(
            outcome.get("type") == kind and isinstance(code, int | None), f"{path} is {outcome!r}"
        )


def _check_content(part: JsonObject, location: str) -> None:
    match part.get("type"):
        case "output_text":
            require_string(part.get("text"), f"{location}.text")
            require_array(part.get("annotations"), f"{location}.annotations")
            check_chat_logprobs(
                {"content": require_array(part.get("logprobs"), f"{location}.logprobs")}, location
            )
        case "refusal":
            require_string(part.get("refusal"), f"{location}.refusal")
        case kind:
            raise Violation(f"{location} is of type {kind!r}")


def _check_usage(value: object) -> None:
    usage = require_object(value, "usage")
    input_tokens, output_tokens, total = (
        require_count(usage.get(key), f"usage.{key}")
        for key in ("input_tokens", "output_tokens", "total_tokens")
    )
    require(
        total == input_tokens + output_tokens,
        f"usage.total_tokens is {total}, expected {input_tokens + output_tokens}",
    )
    input_details = require_object(usage.get("input_tokens_details"), "usage.input_tokens_details")
    require_count(input_details.get("cache_write_tokens"), "cache_write_tokens")
    require(
        require_count(input_details.get("cached_tokens"), "cached_tokens") <= input_tokens,
        "more cached tokens than input tokens",
    )
    output_details = require_object(
        usage.get("output_tokens_details"), "usage.output_tokens_details"
    )
    require(
        require_count(output_details.get("reasoning_tokens"), "reasoning_tokens") <= output_tokens,
        "more reasoning_tokens than output_tokens",
    )
