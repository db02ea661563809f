"""Planted defects, each modeled on a bug of a real server. The checker must detect
them.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from typing import Any

from dragoman_check.rules.json_values import JsonObject

from .context_defects import CONTEXT_DEFECTS
from .wire import (
    Defect,
    EditRequest,
    EditResponse,
    Event,
    ObjectChange,
    Request,
    Response,
    build_json,
    change_body,
    edit_each_event,
    edit_errors,
    edit_events,
    edit_json,
    edit_lines,
    get_call_deltas,
    get_deltas,
    ignore_fields,
    list_objects,
    reject,
    reject_bytes,
)

CHAT = r"^/v1/chat/completions$"
COMPLETIONS = r"^/v1/completions$"
RESPONSES = r"^/v1/responses$"
MESSAGES = r"^/v1/messages$"
OPENAI = r"^/v1/(chat/completions|completions|responses|embeddings)$"
ANY_API = r"^/v1/(chat/completions|completions|responses|messages)$"
STREAM = r"^chat\.(stream|n-of|whole)"
TOOL = r"^chat\.tool"


GEMINI = r"^/v1beta/models/.*[gG]enerateContent"


def _ignore_config(*names: str) -> EditRequest:
    """Ignore fields of Gemini's generationConfig."""
    return change_body(
        lambda body: [body.get("generationConfig", {}).pop(name, None) for name in names]
    )


def _add_comment(_: Request, response: Response) -> None:
    if response.is_stream:
        response.body = b": keepalive\n\n" + response.body


def _edit_deltas(change: ObjectChange) -> EditResponse:
    return edit_each_event(lambda chunk: [change(delta) for delta in get_deltas(chunk)])


def _edit_chunk_choices(change: ObjectChange) -> EditResponse:
    return edit_each_event(lambda chunk: [change(choice) for choice in chunk.get("choices", ())])


def _edit_choices(change: ObjectChange) -> EditResponse:
    return edit_json(lambda reply: [change(choice) for choice in reply["choices"]])


def _edit_usage(change: ObjectChange) -> EditResponse:
    return edit_json(lambda reply: change(reply["usage"]))


def _set_field(name: str, value: Any) -> ObjectChange:
    return lambda target: target.update({name: value})


def _drop_done(events: list[Event]) -> list[Event]:
    return [event for event in events if event[1] != "[DONE]"]


def _drop_usage_chunk(events: list[Event]) -> list[Event]:
    return [event for event in events if event[1] == "[DONE]" or event[1].get("choices")]


def _add_usage_chunk(events: list[Event]) -> list[Event]:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if any(value != "[DONE]" and not value["choices"] for _, value in events):
        return events
    return [*events[:-1], (None, {**events[-2][1], "choices": [], "usage": usage}), events[-1]]


def _fill_usage_choices(events: list[Event]) -> list[Event]:
    for _, value in events:
        if value != "[DONE]" and not value["choices"]:
            value["choices"] = [{"index": 0, "delta": {}, "finish_reason": None, "logprobs": None}]
    return events


def _drop_first_text(events: list[Event]) -> list[Event]:
    at = next(
        (
            i
            for i, (_, value) in enumerate(events)
            if value != "[DONE]" and any(d.get("content") for d in get_deltas(value))
        ),
        None,
    )
    return events if at is None else events[:at] + events[at + 1 :]


def _drop_last_text(events: list[Event]) -> list[Event]:
    return _drop_first_text(events[::-1])[::-1]


def _drop_last_completion(events: list[Event]) -> list[Event]:
    texts = [
        i
        for i, (_, v) in enumerate(events)
        if v != "[DONE]" and v["choices"] and v["choices"][0]["text"]
    ]
    return [event for i, event in enumerate(events) if i != texts[-1]]


def _repeat_text(events: list[Event]) -> list[Event]:
    return [
        e
        for event in events
        for e in (
            [event, event]
            if event[1] != "[DONE]" and any(d.get("content") for d in get_deltas(event[1]))
            else [event]
        )
    ]


def _join_text(events: list[Event]) -> list[Event]:
    """Move all text into one chunk at the end."""
    texts = [
        delta["content"]
        for _, value in events
        if value != "[DONE]"
        for delta in get_deltas(value)
        if delta.get("content")
    ]
    remaining = [
        event
        for event in events
        if event[1] == "[DONE]" or not any(d.get("content") for d in get_deltas(event[1]))
    ]
    if texts:
        remaining.insert(
            1,
            (
                None,
                {
                    **events[0][1],
                    "choices": [
                        {
                            "index": 0,
                            "delta": {"content": "".join(texts)},
                            "finish_reason": None,
                            "logprobs": None,
                        }
                    ],
                },
            ),
        )
    return remaining


def _strip_content(delta: JsonObject) -> None:
    if delta.get("content"):
        delta["content"] = delta["content"].strip() or " "


def _repeat_name(events: list[Event]) -> list[Event]:
    name = ""
    for _, value in events:
        for call in get_call_deltas(value) if value != "[DONE]" else ():
            name = call["function"].setdefault("name", name) or name
    return events


def _number_chunks(events: list[Event]) -> list[Event]:
    for number, (_, value) in enumerate(events):
        if value != "[DONE]":
            value["id"] = f"chatcmpl-{number}"
    return events


def _drop_events(*kinds: str) -> EditResponse:
    return edit_events(
        lambda events: [e for e in events if e[1] == "[DONE]" or e[1].get("type") not in kinds]
    )


def _change_events(kind: str, change: ObjectChange) -> EditResponse:
    def edit(value: JsonObject) -> None:
        if value.get("type") == kind:
            change(value)

    return edit_each_event(edit)


def _drop_names(events: list[Event]) -> list[Event]:
    return [(None, value) for _, value in events]


def _replace_rejections(status: int, body: object) -> Any:
    def change(_: Request, response: Response) -> None:
        if response.status in (400, 422):
            replaced = build_json(status, body)
            response.status = replaced.status
            response.body = replaced.body

    return edit_errors(change)


def _use_plain_text(request: Request, response: Response) -> None:
    response.headers["content-type"] = "text/plain"
    response.body = b"Internal Server Error"


def _echo_input(request: Request, response: Response) -> None:
    body = json.loads(response.body)
    body["error"]["message"] += " input: " + request.body.decode(errors="replace")
    response.body = json.dumps(body).encode()


def _add_traceback(_: Request, response: Response) -> None:
    body = json.loads(response.body)
    body["error"]["message"] = 'Traceback (most recent call last): File "/app/server.py", line 1'
    response.body = json.dumps(body).encode()


def _use_generic_message(_: Request, response: Response) -> None:
    body = json.loads(response.body)
    body["error"].update(message="Bad request.", param=None)
    response.body = json.dumps(body).encode()


def _use_openai_error(_: Request, response: Response) -> None:
    message = json.loads(response.body)["error"]["message"]
    response.body = json.dumps(
        {"error": {"message": message, "type": "x", "param": None, "code": None}}
    ).encode()


def _send_as_stream(request: Request, response: Response) -> None:
    if request.json.get("stream"):
        response.status = 200
        response.headers["content-type"] = "text/event-stream"
        response.body = b"data: " + response.body + b"\n\n"


def _set_status_200(_: Request, response: Response) -> None:
    response.status = 200


def _drop_header(*names: str) -> Any:
    def edit(_: Request, response: Response) -> None:
        for name in names:
            response.headers.pop(name, None)

    return edit


def _set_header(name: str, value: str, *, on_stream: bool = False) -> Any:
    def edit(_: Request, response: Response) -> None:
        if not on_stream or response.is_stream:
            response.headers[name] = value

    return edit


def _has_null(names: tuple[str, ...]) -> ObjectChange:
    return lambda body: any(name in body and body[name] is None for name in names)


def _keep_last_message(body: JsonObject) -> None:
    if isinstance(body.get("messages"), list) and body["messages"]:
        body["messages"] = body["messages"][-1:]


def _drop_system(body: JsonObject) -> None:
    body.pop("system", None)
    _drop_messages(body, "system")


def _drop_messages(body: JsonObject, role: str) -> None:
    """Drop the messages with this role."""
    messages: list[Any] | None = body.get("messages")
    if isinstance(messages, list):
        dropped = [m for m in list_objects(body, "messages") if m.get("role") == role]
        body["messages"] = [message for message in messages if message not in dropped]


def _shorten_prompt(body: JsonObject) -> None:
    messages = body.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        content = messages[-1].get("content")  # pyright: ignore
        if isinstance(content, str):
            messages[-1]["content"] = content[-4000:]


MARKER = re.compile(r"<\|\w+\|>|</?\w+>|\[INST\]")


def _parse_markers(body: JsonObject) -> None:
    for message in list_objects(body, "messages"):
        if isinstance(message.get("content"), str):
            message["content"] = MARKER.sub(" a", message["content"])


def _has_message_role(role: str) -> ObjectChange:
    return lambda body: any(m.get("role") == role for m in list_objects(body, "messages"))


def _has_parts(body: JsonObject) -> bool:
    return any(isinstance(m.get("content"), list) for m in list_objects(body, "messages"))


def _replace_model(body: JsonObject) -> None:
    body["model"] = "sim"


def _clamp_number(name: str, minimum: float, maximum: float) -> Any:
    def change(body: JsonObject) -> None:
        value = body.get(name)
        if isinstance(value, int | float) and not minimum <= value <= maximum:
            body[name] = minimum

    return change_body(change)


def _renumber_items(events: list[Event]) -> list[Event]:
    last = events[-2][1] if events[-1][1] == "[DONE]" else events[-1][1]
    for number, item in enumerate(last.get("response", {}).get("output", ())):
        item["id"] = f"msg_{number}"
    return events


def _reset_sequence(events: list[Event]) -> list[Event]:
    for number, (_, value) in enumerate(events):
        if value != "[DONE]":
            value["sequence_number"] = number % 4
    return events


def _add_heartbeat(events: list[Event]) -> list[Event]:
    beat: JsonObject = {"type": "vendor:heartbeat", "sequence_number": 1}
    for _, value in events[1:]:
        if value != "[DONE]":
            value["sequence_number"] += 1
    return [events[0], ("vendor:heartbeat", beat), *events[1:]]


def _set_completed(reply: JsonObject) -> None:
    reply.update(status="completed", incomplete_details=None)


def _flatten_namespace(reply: JsonObject) -> None:
    for item in reply["output"]:
        if item.get("namespace"):
            item["name"] = f"{item.pop('namespace')}__{item['name']}"


def _has_tool(kind: str) -> ObjectChange:
    return lambda body: any(t.get("type") == kind for t in list_objects(body, "tools"))


def _has_output_list(body: JsonObject) -> bool:
    return any(isinstance(item.get("output"), list) for item in list_objects(body, "input"))


def _reuse_index(value: JsonObject) -> None:
    if "index" in value:
        value["index"] = 1


def _use_openai_stop_reason(value: JsonObject) -> None:
    if value.get("type") == "message_delta":
        value["delta"]["stop_reason"] = "stop"


def _stringify_input(reply: JsonObject) -> None:
    for block in reply["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.dumps(block["input"])


def _decode_embeddings(reply: JsonObject) -> None:
    for entry in reply["data"]:
        if isinstance(entry["embedding"], str):
            data = base64.b64decode(entry["embedding"])
            entry["embedding"] = list(struct.unpack(f"<{len(data) // 4}f", data))


def _reverse_embeddings(reply: JsonObject) -> None:
    vectors = [entry["embedding"] for entry in reply["data"]][::-1]
    for entry, vector in zip(reply["data"], vectors, strict=True):
        entry["embedding"] = vector


def _scale_ollama_embeddings(reply: JsonObject) -> None:
    reply["embeddings"] = [[3 * value for value in vector] for vector in reply["embeddings"]]


def _lower_counters(_: Request, response: Response) -> None:
    response.body = re.sub(
        rb"(vllm:generation_tokens_total\{[^\n]*) [\d.e+]+", rb"\1 7.0", response.body
    )


def _call_arguments(change: Callable[[str], object]) -> EditResponse:
    def edit(choice: JsonObject) -> None:
        for call in choice["message"].get("tool_calls", ()):
            call["function"]["arguments"] = change(call["function"]["arguments"])

    return _edit_choices(edit)


def _drop_index(chunk: JsonObject) -> None:
    for call in get_call_deltas(chunk):
        call.pop("index", None)


def _repeat_arguments(chunk: JsonObject) -> None:
    for call in get_call_deltas(chunk):
        call["function"]["arguments"] = call["function"].get("arguments", "") * 2


def _reuse_call_id(choice: JsonObject) -> None:
    for call in choice["message"].get("tool_calls", ()):
        call["id"] = "call_0"


def _add_empty_tool_calls(choice: JsonObject) -> None:
    choice["message"].setdefault("tool_calls", [])


def _finish_with_stop(choice: JsonObject) -> None:
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "stop"


def _finish_with_calls(choice: JsonObject) -> None:
    if choice["finish_reason"] == "length":
        choice["finish_reason"] = "tool_calls"


def _clear_finish_reason(choice: JsonObject) -> None:
    choice["finish_reason"] = None


def _truncate_top_logprobs(choice: JsonObject) -> None:
    for entry in list_objects(choice.get("logprobs") or {}, "content"):
        entry["top_logprobs"] = entry["top_logprobs"][:1]


def _raise_logprobs(choice: JsonObject) -> None:
    for entry in list_objects(choice.get("logprobs") or {}, "content"):
        entry["logprob"] = 0.5


def _drop_logprob(choice: JsonObject) -> None:
    if choice.get("logprobs"):
        del choice["logprobs"]["content"][:2]


def _ignore_thread(body: JsonObject) -> None:
    body.pop("thread", None)


def _remove_origin(request: Request) -> Response | None:
    request.headers["content-type"] = "application/json"
    request.headers.pop("origin", None)
    return None


def _return_deleted(request: Request) -> Response | None:
    return build_json(
        200, {"id": request.path.rsplit("/", 1)[1], "object": "response", "deleted": True}
    )


def _reject_get(request: Request) -> Response | None:
    # The query is in the scope, which the proxy forwards; a server without the
    # parameter rejects the stream.
    return (
        build_json(
            400, {"error": {"message": "no stream", "type": "x", "param": None, "code": None}}
        )
        if request.method == "GET"
        else None
    )


def _replace_bytes(pattern: bytes, by: bytes) -> Any:
    return lambda data: re.sub(pattern, by, data, flags=re.IGNORECASE)  # pyright: ignore


VALIDATION = {"detail": [{"loc": ["body", "x"], "msg": "Field required", "type": "missing"}]}

STREAM_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "role null in later deltas",
        "vercel/ai#2548",
        CHAT,
        STREAM,
        edit_response=_edit_deltas(lambda d: d.setdefault("role", None)),
    ),
    Defect(
        "role in every delta",
        "found with openai-python: assistantassistant",
        CHAT,
        STREAM,
        edit_response=_edit_deltas(_set_field("role", "assistant")),
    ),
    Defect(
        "finish_reason is always null",
        "LM Studio, mlx-lm",
        CHAT,
        STREAM,
        edit_response=_edit_chunk_choices(_set_field("finish_reason", None)),
    ),
    Defect(
        "finish_reason is the string None",
        "sglang#18335",
        CHAT,
        STREAM,
        edit_response=_edit_chunk_choices(
            lambda c: c.update(finish_reason=c["finish_reason"] or "None")
        ),
    ),
    Defect("no [DONE]", "several gateways", CHAT, STREAM, edit_response=edit_events(_drop_done)),
    Defect(
        "[DONE] twice",
        "several gateways",
        CHAT,
        STREAM,
        edit_response=edit_events(lambda events: [*events, (None, "[DONE]")]),
    ),
    Defect(
        "unsolicited usage chunk",
        "litellm#28735",
        CHAT,
        STREAM,
        edit_response=edit_events(_add_usage_chunk),
    ),
    Defect(
        "usage chunk with choices",
        "vercel/ai#7417",
        CHAT,
        STREAM,
        edit_response=edit_events(_fill_usage_choices),
    ),
    Defect(
        "no usage chunk despite include_usage",
        "mlx-lm",
        CHAT,
        STREAM,
        edit_response=edit_events(_drop_usage_chunk),
    ),
    Defect(
        "usage of the stream is off by one",
        "llama.cpp, off-by-one of the end token",
        CHAT,
        STREAM,
        edit_response=edit_each_event(
            lambda c: (
                c["usage"].update(completion_tokens=c["usage"]["completion_tokens"] + 1)
                if c.get("usage")
                else None
            )
        ),
    ),
    Defect(
        "usage zero in streams",
        "litellm#31069",
        CHAT,
        STREAM,
        edit_response=edit_each_event(
            lambda c: (
                c["usage"].update(prompt_tokens=0, completion_tokens=0, total_tokens=0)
                if c.get("usage")
                else None
            )
        ),
    ),
    Defect(
        "id changes with every chunk",
        "found in proxies",
        CHAT,
        STREAM,
        edit_response=edit_events(_number_chunks),
    ),
    Defect(
        "wrong object in chunks",
        "mlx-examples#1119",
        CHAT,
        STREAM,
        edit_response=edit_each_event(_set_field("object", "chat.completion")),
    ),
    Defect(
        "created changes",
        "zed#54804",
        CHAT,
        STREAM,
        edit_response=edit_events(
            lambda events: [
                (n, v if v == "[DONE]" else {**v, "created": v["created"] + i})
                for i, (n, v) in enumerate(events)
            ]
        ),
    ),
    Defect(
        "first delta of text is dropped",
        "litellm#30765",
        CHAT,
        STREAM,
        edit_response=edit_events(_drop_first_text),
    ),
    Defect(
        "last delta of text is dropped",
        "xPyD-sim",
        CHAT,
        STREAM,
        edit_response=edit_events(_drop_last_text),
    ),
    Defect(
        "deltas are repeated",
        "proxies that retry",
        CHAT,
        STREAM,
        edit_response=edit_events(_repeat_text),
    ),
    Defect(
        "spaces are stripped from deltas",
        "gateways that trim",
        CHAT,
        STREAM,
        edit_response=_edit_deltas(_strip_content),
    ),
    Defect(
        "all text in one chunk",
        "gateways that buffer",
        CHAT,
        STREAM,
        edit_response=edit_events(_join_text),
    ),
    Defect(
        "stream with Content-Type application/json",
        "found in proxies",
        CHAT,
        STREAM,
        edit_response=_set_header("content-type", "application/json", on_stream=True),
    ),
    Defect(
        "empty deltas",
        "vLLM before 0.10",
        CHAT,
        STREAM,
        edit_response=edit_events(
            lambda e: [
                *e[:2],
                (
                    None,
                    {
                        **e[0][1],
                        "choices": [
                            {"index": 0, "delta": {}, "finish_reason": None, "logprobs": None}
                        ],
                    },
                ),
                *e[2:],
            ]
        ),
    ),
    Defect(
        "streams of concurrent requests are mixed",
        "class of shared parser state",
        CHAT,
        r"^chat\.concurrent",
        mixes_streams=True,
    ),
    Defect(
        "generation continues after a disconnect",
        "vllm#10087, ollama#9054 and similar",
        CHAT,
        r"^chat\.cancel",
        ignores_disconnect=True,
        model="tiny",
    ),
    Defect(
        "first chunk without a role",
        "ROCm/ATOM",
        CHAT,
        STREAM,
        edit_response=_edit_deltas(lambda d: d.pop("role", None)),
    ),
    Defect(
        "Completions stream drops the last text",
        "xPyD-sim",
        COMPLETIONS,
        r"^completions\.stream",
        edit_response=edit_events(_drop_last_completion),
    ),
    Defect(
        "Completions usage chunk unsolicited",
        "litellm#28735",
        COMPLETIONS,
        r"^completions\.stream",
        edit_response=edit_events(_add_usage_chunk),
    ),
)
CHAT_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "object is chat.completions",
        "mlx-examples#1119",
        CHAT,
        r"^chat\.(field|whole)",
        edit_response=edit_json(_set_field("object", "chat.completions")),
    ),
    Defect(
        "created is absent",
        "zed#34513",
        CHAT,
        r"^chat\.(field|whole)",
        edit_response=edit_json(lambda r: r.pop("created")),
    ),
    Defect(
        "created in milliseconds",
        "zed#42893",
        CHAT,
        r"^chat\.field",
        edit_response=edit_json(lambda r: r.update(created=r["created"] * 1000)),
    ),
    Defect(
        "id is the same in all answers",
        "mock servers",
        CHAT,
        r"^chat\.ids",
        edit_response=edit_json(_set_field("id", "chatcmpl-1")),
    ),
    Defect(
        "total_tokens is not the sum",
        "mlx-vlm#1060",
        CHAT,
        r"^chat\.field",
        edit_response=_edit_usage(_set_field("total_tokens", 3)),
    ),
    Defect(
        "usage is absent",
        "zed#34513",
        CHAT,
        r"^chat\.(usage|whole)",
        edit_response=edit_json(lambda r: r.update(usage={})),
    ),
    Defect(
        "usage counts words",
        "mock servers",
        CHAT,
        r"^(chat\.(usage|stream-usage|logprobs)|operations)",
        edit_response=_edit_usage(
            lambda u: u.update(completion_tokens=u["completion_tokens"] // 2 + 1)
        ),
    ),
    Defect(
        "more cached than prompt tokens",
        "xPyD-sim",
        CHAT,
        r"^chat\.field",
        edit_response=_edit_usage(
            lambda u: u.update(prompt_tokens_details={"cached_tokens": 99999})
        ),
    ),
    Defect(
        "finish_reason null",
        "found in proxies",
        CHAT,
        r"^chat\.(field|whole)",
        edit_response=_edit_choices(_clear_finish_reason),
    ),
    Defect(
        "tool_calls as an empty list",
        "vllm#53255",
        CHAT,
        r"^chat\.(field|whole)",
        edit_response=_edit_choices(_add_empty_tool_calls),
    ),
    Defect(
        "content is absent",
        "LM Studio",
        CHAT,
        r"^chat\.(field|whole)",
        edit_response=_edit_choices(lambda c: c["message"].pop("content")),
    ),
    Defect(
        "max_tokens is ignored",
        "text servers with a default",
        CHAT,
        r"^chat\.limit",
        edit_request=ignore_fields("max_tokens"),
    ),
    Defect(
        "max_completion_tokens is ignored",
        "ray#53922",
        CHAT,
        r"^chat\.max",
        edit_request=ignore_fields("max_completion_tokens"),
    ),
    Defect(
        "stop is ignored", "llamafile", CHAT, r"^chat\.stop", edit_request=ignore_fields("stop")
    ),
    Defect(
        "only the first stop string is used",
        "xPyD-sim",
        CHAT,
        r"^chat\.stop",
        edit_request=change_body(
            lambda b: b.update(stop=b["stop"][:1]) if isinstance(b.get("stop"), list) else None
        ),
    ),
    Defect(
        "stop as a string is ignored",
        "text-generation-webui",
        CHAT,
        r"^chat\.stop",
        edit_request=change_body(
            lambda b: b.pop("stop") if isinstance(b.get("stop"), str) else None
        ),
    ),
    Defect(
        "stop is ignored in streams",
        "class: a rule is implemented on one path only",
        CHAT,
        r"^chat\.stop",
        edit_request=change_body(lambda b: b.pop("stop", None) if b.get("stream") else None),
    ),
    Defect("n is ignored", "llama.cpp, ollama", CHAT, r"^chat\.n", edit_request=ignore_fields("n")),
    Defect(
        "logprobs are ignored",
        "mlx-lm",
        CHAT,
        r"^chat\.logprobs",
        edit_request=ignore_fields("logprobs", "top_logprobs"),
    ),
    Defect(
        "fewer top_logprobs than requested",
        "llama.cpp#10733",
        CHAT,
        r"^chat\.logprobs",
        edit_response=_edit_choices(_truncate_top_logprobs),
    ),
    Defect(
        "logprobs above 0",
        "simulators",
        CHAT,
        r"^chat\.logprobs",
        edit_response=_edit_choices(_raise_logprobs),
    ),
    Defect(
        "logprobs miss tokens",
        "vllm#7211",
        CHAT,
        r"^chat\.logprobs",
        edit_response=_edit_choices(_drop_logprob),
    ),
    Defect(
        "the system message is dropped",
        "templates without a system role",
        CHAT,
        r"^chat\.system",
        edit_request=change_body(_drop_system),
    ),
    Defect(
        "only the last message is used",
        "naive wrappers",
        CHAT,
        r"^chat\.each-turn",
        edit_request=change_body(_keep_last_message),
    ),
    Defect(
        "tools are ignored",
        "text servers",
        CHAT,
        r"^chat\.tool",
        edit_request=ignore_fields("tools", "tool_choice"),
    ),
    Defect(
        "developer messages are rejected",
        "llama.cpp#20079",
        CHAT,
        r"^chat\.accepts",
        edit_request=reject(_has_message_role("developer")),
    ),
    Defect(
        "content parts are rejected",
        "llama.cpp, mlx-lm",
        CHAT,
        r"^chat\.accepts",
        edit_request=reject(_has_parts),
    ),
    Defect(
        "content null with tool_calls is rejected",
        "vllm#3100 and similar",
        CHAT,
        r"^chat\.accepts",
        edit_request=reject(
            lambda b: any(m.get("content", 1) is None for m in list_objects(b, "messages"))
        ),
    ),
    Defect(
        "explicit nulls are rejected",
        "FastAPI models without Optional",
        CHAT,
        r"^chat\.nulls",
        edit_request=reject(_has_null(("stop", "tools", "user")), 422, VALIDATION),
    ),
    Defect(
        "a charset in the Content-Type is rejected",
        "strict comparison",
        CHAT,
        r"^chat\.charset",
        edit_request=lambda r: (
            build_json(415, {"error": {"message": "x", "type": "x", "param": None, "code": None}})
            if "charset" in r.headers.get("content-type", "")
            else None
        ),
    ),
    Defect(
        "unknown fields cause a 500",
        "pydantic extra=forbid and a bug",
        CHAT,
        r"^chat\.unknown",
        edit_request=reject(lambda b: "conformance_check" in b, 500),
    ),
    Defect(
        "too long prompts are truncated silently",
        "ollama",
        CHAT,
        r"^chat\.too-long",
        edit_request=change_body(_shorten_prompt),
    ),
    Defect(
        "control tokens of users are parsed",
        "vLLM, TGI",
        CHAT,
        r"^chat\.control",
        edit_request=change_body(_parse_markers),
    ),
    Defect(
        "the choice has no index",
        "found in proxies",
        CHAT,
        r"^chat\.(field|whole)",
        edit_response=_edit_choices(lambda c: c.pop("index")),
    ),
    Defect(
        "temperature 0 is sampled",
        "servers that read 0 as absent",
        CHAT,
        r"^chat\.(reproducible|stream-text)",
        edit_request=change_body(
            lambda b: b.update(temperature=1, seed=len(json.dumps(b)) + id(b) % 9973)
        ),
    ),
)
TOOL_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "tool_choice is ignored",
        "servers without a tool parser",
        CHAT,
        TOOL,
        edit_request=change_body(
            lambda b: b.update(tool_choice="none") if b.get("tools") else None
        ),
    ),
    Defect(
        "tool deltas without an index",
        "ollama#7881",
        CHAT,
        TOOL,
        edit_response=edit_each_event(_drop_index),
    ),
    Defect(
        "every tool delta has the name",
        "sglang#4700",
        CHAT,
        TOOL,
        edit_response=edit_events(_repeat_name),
    ),
    Defect(
        "arguments are repeated in streams",
        "lmstudio#649",
        CHAT,
        TOOL,
        edit_response=edit_each_event(_repeat_arguments),
    ),
    Defect(
        "tool deltas with name null",
        "openai-python#3246",
        CHAT,
        TOOL,
        edit_response=edit_each_event(
            lambda c: [call["function"].setdefault("name", None) for call in get_call_deltas(c)]
        ),
    ),
    Defect(
        "finish_reason is stop instead of tool_calls",
        "mlx-vlm#990",
        CHAT,
        TOOL,
        edit_response=_edit_choices(_finish_with_stop),
    ),
    Defect(
        "a truncated call has the finish_reason tool_calls",
        "vllm#53269",
        CHAT,
        TOOL,
        edit_response=_edit_choices(_finish_with_calls),
    ),
    Defect(
        "arguments are an object",
        "ollama in OpenAI's API",
        CHAT,
        TOOL,
        edit_response=_call_arguments(json.loads),
    ),
    Defect(
        "arguments are truncated",
        "parsers that lose the last brace",
        CHAT,
        TOOL,
        edit_response=_call_arguments(lambda text: text[:-1]),
    ),
    Defect(
        "arguments violate the schema",
        "tool calls without a grammar",
        CHAT,
        TOOL,
        edit_response=_call_arguments(lambda text: json.dumps({**json.loads(text), "extra": 1})),
    ),
    Defect(
        "all calls have the same id",
        "mlx-lm",
        CHAT,
        TOOL,
        edit_response=_edit_choices(_reuse_call_id),
    ),
    Defect(
        "a call has no type",
        "found in openai-agents",
        CHAT,
        TOOL,
        edit_response=_edit_choices(
            lambda c: [call.pop("type") for call in c["message"].get("tool_calls", ())]
        ),
    ),
    Defect(
        "response_format is ignored",
        "text servers",
        CHAT,
        r"^chat\.(schema|json)",
        edit_request=ignore_fields("response_format"),
    ),
    Defect(
        "JSON is in a Markdown fence",
        "models without a grammar",
        CHAT,
        r"^chat\.(schema|json)",
        edit_response=_edit_choices(
            lambda c: c["message"].update(content=f"```json\n{c['message']['content']}\n```")
        ),
    ),
    Defect(
        "schemas are ignored in streams",
        "class: a rule is implemented on one path only",
        CHAT,
        r"^chat\.schema",
        edit_request=change_body(
            lambda b: b.pop("response_format", None) if b.get("stream") else None
        ),
    ),
    Defect(
        "an undeclared tool_choice is accepted",
        "vllm before 0.6",
        CHAT,
        r"^chat\.rejects",
        edit_request=change_body(
            lambda b: (
                b.update(tool_choice="auto") if isinstance(b.get("tool_choice"), dict) else None
            )
        ),
    ),
)
ERROR_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "FastAPI's own validation errors",
        "many servers",
        CHAT,
        r"^chat\.error",
        edit_response=_replace_rejections(422, VALIDATION),
    ),
    Defect(
        "invalid input causes a 500",
        "many servers",
        CHAT,
        r"^chat\.error",
        edit_response=_replace_rejections(
            500, {"error": {"message": "x", "type": "x", "param": None, "code": None}}
        ),
    ),
    Defect(
        "errors have the status 200",
        "vLLM before 0.5",
        CHAT,
        r"^chat\.error",
        edit_response=edit_errors(_set_status_200),
    ),
    Defect(
        "errors are plain text",
        "uvicorn's 500",
        CHAT,
        r"^chat\.error",
        edit_response=edit_errors(_use_plain_text),
    ),
    Defect(
        "errors are sent as a stream",
        "found in proxies",
        CHAT,
        r"^chat\.error",
        edit_response=edit_errors(_send_as_stream),
    ),
    Defect(
        "errors echo the input",
        "vLLM: 23.6 MB of errors",
        CHAT,
        r"^chat\.error",
        edit_response=edit_errors(_echo_input),
    ),
    Defect(
        "errors contain a traceback",
        "debug mode left on",
        CHAT,
        r"^chat\.error",
        edit_response=edit_errors(_add_traceback),
    ),
    Defect(
        "errors do not name the field",
        "generic handlers",
        CHAT,
        r"^chat\.error",
        edit_response=edit_errors(_use_generic_message),
    ),
    Defect(
        "any model name is accepted",
        "llama.cpp, mlx-lm",
        CHAT,
        r"^chat\.error",
        edit_request=change_body(_replace_model),
    ),
    Defect(
        "a negative temperature is clamped",
        "TGI wrappers",
        CHAT,
        r"^chat\.error",
        edit_request=_clamp_number("temperature", 0, 9),
    ),
    Defect(
        "top_p above 1 is clamped",
        "TGI wrappers",
        CHAT,
        r"^chat\.error",
        edit_request=_clamp_number("top_p", 0, 1),
    ),
    Defect(
        "a lone surrogate causes a 500",
        "vllm: found by schemathesis",
        CHAT,
        r"^chat\.error",
        edit_request=reject_bytes(rb"\\ud8fe", 500),
    ),
    Defect(
        "deeply nested JSON causes a 500",
        "RecursionError in several servers",
        CHAT,
        r"^chat\.error",
        edit_request=reject_bytes(rb"\[{1000}", 500),
    ),
    Defect(
        "invalid UTF-8 causes a 500",
        "UnicodeDecodeError",
        CHAT,
        r"^chat\.error",
        edit_request=reject_bytes(rb"\xff", 500),
    ),
    Defect(
        "no request id",
        "vLLM without a flag",
        CHAT,
        r"^chat\.request",
        edit_response=_drop_header("x-request-id"),
    ),
    Defect(
        "unknown paths return 200",
        "LM Studio, cline#224",
        r"no-such-path|no/such/path",
        r"^http\.unknown",
        edit_response=edit_errors(_set_status_200),
    ),
    Defect(
        "405 without Allow",
        "own finding",
        r"^/v1/models$",
        r"^http\.allow",
        edit_response=_drop_header("allow"),
    ),
    Defect(
        "405 without the API's error body",
        "FastAPI's default",
        CHAT,
        r"^chat\.error-method",
        methods=("PUT",),
        edit_request=lambda _: build_json(405, {"detail": "Method Not Allowed"}),
    ),
    Defect(
        "Messages errors in OpenAI's format",
        "vLLM's global handlers",
        MESSAGES,
        r"^messages\.error",
        edit_response=edit_errors(_use_openai_error),
    ),
    Defect(
        "Ollama errors in OpenAI's format",
        "own finding",
        r"^/api/",
        r"^ollama",
        edit_response=edit_errors(
            lambda _, r: setattr(r, "body", b'{"error": {"message": "x", "type": "x"}}')
        ),
    ),
    Defect(
        "the error of Responses has no code",
        "llama.cpp",
        RESPONSES,
        r"^responses\.error",
        edit_response=edit_errors(
            lambda _, r: setattr(r, "body", b'{"error": {"message": "x", "type": "x"}}')
        ),
    ),
)
RESPONSES_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "no sequence_number",
        "llama.cpp#24957",
        RESPONSES,
        r"^responses\.stream",
        edit_response=edit_each_event(lambda v: v.pop("sequence_number", None)),
    ),
    Defect(
        "sequence_number restarts",
        "vllm#37071",
        RESPONSES,
        r"^responses\.stream",
        edit_response=edit_events(_reset_sequence),
    ),
    Defect(
        "no response.created",
        "litellm#9545",
        RESPONSES,
        r"^responses\.stream",
        edit_response=_drop_events("response.created"),
    ),
    Defect(
        "no response.completed",
        "ollama#14600",
        RESPONSES,
        r"^(responses\.stream|codex)",
        edit_response=_drop_events("response.completed", "response.incomplete"),
    ),
    Defect(
        "item ids differ in the final response",
        "litellm#37852, vllm#38227",
        RESPONSES,
        r"^responses\.stream",
        edit_response=edit_events(_renumber_items),
    ),
    Defect(
        "no output_text.done",
        "ogx#5309",
        RESPONSES,
        r"^responses\.stream",
        edit_response=_drop_events("response.output_text.done"),
    ),
    Defect(
        "content_index is wrong",
        "vllm#45742",
        RESPONSES,
        r"^(responses\.stream|sdk\.responses)",
        edit_response=_change_events("response.output_text.delta", _set_field("content_index", 1)),
    ),
    Defect(
        "no output_item.done",
        "Codex shows an empty turn",
        RESPONSES,
        r"^(responses\.stream|codex)",
        edit_response=_drop_events("response.output_item.done"),
    ),
    Defect(
        "vendor events",
        "heartbeats of gateways",
        RESPONSES,
        r"^responses\.stream",
        edit_response=edit_events(_add_heartbeat),
    ),
    Defect(
        "deltas without logprobs",
        "strict clients",
        RESPONSES,
        r"^responses\.stream",
        edit_response=_change_events("response.output_text.delta", lambda v: v.pop("logprobs")),
    ),
    Defect(
        "events without names",
        "several servers",
        RESPONSES,
        r"^responses\.stream",
        edit_response=edit_events(_drop_names),
    ),
    Defect(
        "incomplete responses have the status completed",
        "vLLM before 0.11",
        RESPONSES,
        r"^responses\.(incomplete|limit)",
        edit_response=edit_json(_set_completed),
    ),
    Defect(
        "defaults are echoed instead of the parameters",
        "vLLM",
        RESPONSES,
        r"^responses\.echoes",
        edit_response=edit_json(lambda r: r.update(temperature=1.0, metadata={})),
    ),
    Defect(
        "usage without cached tokens",
        "litellm",
        RESPONSES,
        r"^responses\.field",
        edit_response=edit_json(lambda r: r["usage"].pop("input_tokens_details")),
    ),
    Defect(
        "output text without annotations",
        "vercel/ai rejects it",
        RESPONSES,
        r"^responses\.(field|whole)",
        edit_response=edit_json(
            lambda r: [
                p.pop("annotations", None) for i in r["output"] for p in i.get("content", ())
            ]
        ),
    ),
    Defect(
        "namespaces are rejected",
        "llama.cpp#20156, vllm#49493",
        RESPONSES,
        r"^codex",
        edit_request=reject(_has_tool("namespace")),
    ),
    Defect(
        "namespaces are flattened",
        "vllm#46737",
        RESPONSES,
        r"^codex",
        edit_response=edit_json(_flatten_namespace),
    ),
    Defect(
        "hosted tools are rejected",
        "llama.cpp#20156",
        RESPONSES,
        r"^codex",
        edit_request=reject(_has_tool("web_search")),
    ),
    Defect(
        "lists as function call outputs are rejected",
        "llama.cpp#23465",
        RESPONSES,
        r"^responses\.accepts",
        edit_request=reject(_has_output_list),
    ),
    Defect(
        "outputs without a matching call are accepted",
        "own finding",
        RESPONSES,
        r"^codex",
        edit_request=change_body(
            lambda b: b.update(input="Hi") if "call_x" in json.dumps(b) else None
        ),
    ),
    Defect(
        "outputs without a call_id are rejected",
        "own finding",
        RESPONSES,
        r"^codex",
        edit_request=reject_bytes(b"goal_objective"),
    ),
    Defect(
        "previous_response_id is ignored",
        "several servers",
        RESPONSES,
        r"^(state|responses\.rejects)",
        edit_request=ignore_fields("previous_response_id"),
    ),
    Defect(
        "instructions are ignored",
        "several servers",
        RESPONSES,
        r"^responses\.instructions",
        edit_request=ignore_fields("instructions"),
    ),
    Defect(
        "responses with store false are stored",
        "class of privacy bugs",
        RESPONSES,
        r"^state\.store",
        edit_request=ignore_fields("store"),
    ),
    Defect(
        "stored responses lose their output",
        "race of streamed responses",
        r"^/v1/responses/resp_",
        r"^state\.retrieve",
        edit_response=edit_json(
            lambda r: r.update(output=[]) if r.get("object") == "response" else None
        ),
    ),
    Defect(
        "deleting a response twice succeeds",
        "SDK stubs",
        r"^/v1/responses/resp_",
        r"^state\.delete",
        methods=("DELETE",),
        edit_request=_return_deleted,
    ),
    Defect(
        "no input items",
        "vLLM",
        r"input_items$",
        r"^state\.input",
        edit_request=lambda _: build_json(
            404, {"error": {"message": "Not Found", "type": "x", "param": None, "code": None}}
        ),
        profile="openai",
    ),
    Defect(
        "the token count is an estimate",
        "claude-relay-service#731",
        r"input_tokens$",
        r"^state\.input-tokens",
        edit_response=edit_json(lambda r: r.update(input_tokens=r["input_tokens"] + 2)),
    ),
    Defect(
        "streams cannot be resumed",
        "vLLM",
        r"^/v1/responses/resp_",
        r"^background\.resume",
        edit_request=_reject_get,
    ),
    Defect(
        "background is ignored",
        "several servers",
        RESPONSES,
        r"^background\.run",
        edit_request=ignore_fields("background"),
    ),
    Defect(
        "cancel has no effect",
        "vLLM",
        r"/cancel$",
        r"^(background\.cancel|state\.cancel)",
        edit_request=lambda _: build_json(200, {"status": "in_progress"}),
    ),
    Defect(
        "responses are not appended to conversations",
        "several servers",
        RESPONSES,
        r"^conversations",
        edit_request=ignore_fields("conversation"),
    ),
    Defect(
        "pages repeat their last item",
        "off-by-one of cursors",
        r"^/v1/conversations/.*/items$",
        r"^conversations\.pages",
        edit_response=edit_json(
            lambda r: r.update(last_id=r["first_id"]) if "last_id" in r else None
        ),
    ),
)
MESSAGES_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "Messages events without names",
        "litellm#32357",
        MESSAGES,
        r"^messages\.stream",
        edit_response=edit_events(_drop_names),
    ),
    Defect(
        "Messages streams end with [DONE]",
        "proxies of OpenAI's API",
        MESSAGES,
        r"^messages\.stream",
        edit_response=edit_events(lambda e: [*e, (None, "[DONE]")]),
    ),
    Defect(
        "block indices are reused",
        "CLIProxyAPI#539",
        MESSAGES,
        r"^messages\.stream",
        edit_response=edit_each_event(_reuse_index),
    ),
    Defect(
        "no content_block_stop",
        "sglang#39782",
        MESSAGES,
        r"^messages\.stream",
        edit_response=_drop_events("content_block_stop"),
    ),
    Defect(
        "input tokens 0 in message_start",
        "litellm#31069",
        MESSAGES,
        r"^messages\.stream",
        edit_response=_change_events(
            "message_start",
            lambda v: v["message"]["usage"].update(
                input_tokens=0, cache_read_input_tokens=0, cache_creation_input_tokens=0
            ),
        ),
    ),
    Defect(
        "message_delta without usage",
        "mlx-lm#1068",
        MESSAGES,
        r"^messages\.stream",
        edit_response=_change_events("message_delta", lambda v: v.pop("usage")),
    ),
    Defect(
        "OpenAI's stop reasons in Messages",
        "proxies of OpenAI's API",
        MESSAGES,
        r"^messages\.stream",
        edit_response=edit_each_event(_use_openai_stop_reason),
    ),
    Defect(
        "the first text_delta is dropped",
        "litellm#30765",
        MESSAGES,
        r"^messages\.stream",
        edit_response=edit_events(
            lambda e: [
                x
                for i, x in enumerate(e)
                if i
                != next(
                    (
                        j
                        for j, y in enumerate(e)
                        if y[1] != "[DONE]" and y[1].get("type") == "content_block_delta"
                    ),
                    -1,
                )
            ]
        ),
    ),
    Defect(
        "system is ignored",
        "several servers",
        MESSAGES,
        r"^messages\.system",
        edit_request=ignore_fields("system"),
    ),
    Defect(
        "tool_use input is a string",
        "proxies of OpenAI's API",
        MESSAGES,
        r"^messages\.tool",
        edit_response=edit_json(_stringify_input),
    ),
    Defect(
        "stop_sequence is null after a match",
        "several servers",
        MESSAGES,
        r"^messages\.stop",
        edit_response=edit_json(lambda r: r.update(stop_sequence=None, stop_reason="end_turn")),
    ),
    Defect(
        "system messages are rejected",
        "vllm#44000",
        MESSAGES,
        r"^claude",
        edit_request=reject(_has_message_role("system")),
    ),
    Defect(
        "unknown betas are rejected",
        "opensquilla#1102",
        MESSAGES,
        r"^claude",
        edit_request=lambda r: (
            build_json(
                400,
                {"type": "error", "error": {"type": "invalid_request_error", "message": "beta"}},
            )
            if "not-known" in r.headers.get("anthropic-beta", "")
            else None
        ),
    ),
    Defect(
        "thinking.display: updates is rejected",
        "own finding",
        MESSAGES,
        r"^claude",
        edit_request=reject_bytes(b'"updates"'),
    ),
    Defect(
        "empty signatures are rejected",
        "intel/llm-scaler#341",
        MESSAGES,
        r"^claude",
        edit_request=reject_bytes(b'"signature": ""'),
    ),
    Defect(
        "a large max_tokens is rejected",
        "vLLM",
        MESSAGES,
        r"^claude",
        edit_request=reject(
            lambda b: isinstance(b.get("max_tokens"), int) and b["max_tokens"] > 8192
        ),
    ),
    Defect(
        "thread is ignored",
        "vLLM 0.33",
        MESSAGES,
        r"^claude",
        edit_request=change_body(_ignore_thread),
    ),
    Defect(
        "tool results as blocks are rejected",
        "several servers",
        MESSAGES,
        r"^messages\.accepts",
        edit_request=reject_bytes(b'"is_error"'),
    ),
    Defect(
        "the count ignores tools",
        "CLIProxyAPI#679",
        r"count_tokens$",
        r"^count",
        edit_request=ignore_fields("tools", "system"),
    ),
    Defect(
        "tool_choice any is ignored",
        "servers without a grammar",
        MESSAGES,
        r"^messages\.tool",
        edit_request=change_body(
            lambda b: b.update(tool_choice={"type": "none"}) if b.get("tool_choice") else None
        ),
    ),
    Defect(
        "a negative max_tokens is clamped",
        "several servers",
        MESSAGES,
        r"^messages\.error",
        edit_request=_clamp_number("max_tokens", 1, 1e9),
    ),
)
OTHER_API_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "base64 is ignored",
        "litellm#42426, lmstudio#756",
        r"^/v1/embeddings$",
        r"^embeddings",
        edit_response=edit_json(_decode_embeddings),
    ),
    Defect(
        "dimensions are ignored",
        "ollama#6934",
        r"^/v1/embeddings$",
        r"^embeddings",
        edit_request=ignore_fields("dimensions"),
    ),
    Defect(
        "embeddings are in the wrong order",
        "parallel workers",
        r"^/v1/embeddings$",
        r"^embeddings",
        edit_response=edit_json(_reverse_embeddings),
    ),
    Defect(
        "all indices of embeddings are 0",
        "llama.cpp#10887",
        r"^/v1/embeddings$",
        r"^embeddings",
        edit_response=edit_json(lambda r: [e.update(index=0) for e in r["data"]]),
    ),
    Defect(
        "usage of embeddings is 0",
        "several servers",
        r"^/v1/embeddings$",
        r"^embeddings",
        edit_response=_edit_usage(_set_field("prompt_tokens", 0)),
    ),
    Defect(
        "an empty list of inputs is accepted",
        "several servers",
        r"^/v1/embeddings$",
        r"^embeddings",
        edit_request=lambda r: (
            build_json(
                200,
                {
                    "object": "list",
                    "data": [],
                    "model": "m",
                    "usage": {"prompt_tokens": 0, "total_tokens": 0},
                },
            )
            if r.json.get("input") == []
            else None
        ),
    ),
    Defect(
        "all embeddings are the same",
        "pooling bugs",
        r"^/v1/embeddings$",
        r"^embeddings",
        edit_response=edit_json(
            lambda r: [e.update(embedding=r["data"][0]["embedding"]) for e in r["data"]]
        ),
    ),
    Defect(
        "models have no created",
        "zed#34513",
        r"^/v1/models$",
        r"^models",
        edit_response=edit_json(lambda r: [m.pop("created") for m in r["data"]]),
    ),
    Defect(
        "a model cannot be retrieved",
        "vLLM",
        r"^/v1/models/",
        r"^models",
        edit_request=lambda _: build_json(
            404, {"error": {"message": "x", "type": "x", "param": None, "code": None}}
        ),
    ),
    Defect(
        "Ollama's num_predict is ignored",
        "compatibility layers",
        r"^/api/(chat|generate)$",
        r"^ollama.*limit",
        edit_request=ignore_fields("num_predict"),
    ),
    Defect(
        "Ollama streams end without done",
        "compatibility layers",
        r"^/api/chat$",
        r"^ollama-chat\.stream",
        edit_response=edit_lines(lambda lines: lines[:-1]),
    ),
    Defect(
        "Ollama's durations are absent",
        "compatibility layers",
        r"^/api/chat$",
        r"^ollama-chat",
        edit_response=edit_json(
            lambda r: [r.pop(name, None) for name in ("total_duration", "eval_duration")]
        ),
    ),
    Defect(
        "Ollama does not stream by default",
        "compatibility layers",
        r"^/api/chat$",
        r"^ollama-chat\.streams",
        edit_request=change_body(lambda b: b.setdefault("stream", False)),
    ),
    Defect(
        "Ollama's counts differ in streams",
        "compatibility layers",
        r"^/api/generate$",
        r"^ollama-generate\.stream",
        edit_response=edit_lines(lambda lines: [*lines[:-1], {**lines[-1], "eval_count": 1}]),
    ),
    Defect(
        "Ollama's embeddings are not normalized",
        "ollama#4128",
        r"^/api/embed$",
        r"^ollama\.embed",
        edit_response=edit_json(_scale_ollama_embeddings),
    ),
    Defect(
        "Ollama's format is ignored",
        "compatibility layers",
        r"^/api/chat$",
        r"^ollama-chat\.(schema|json)",
        edit_request=ignore_fields("format"),
    ),
    Defect(
        "ignore_eos is ignored",
        "compatibility layers",
        CHAT,
        r"^vllm",
        edit_request=ignore_fields("ignore_eos"),
        model="tiny",
    ),
    Defect(
        "min_tokens is ignored",
        "compatibility layers",
        COMPLETIONS,
        r"^vllm",
        edit_request=ignore_fields("min_tokens"),
    ),
    Defect(
        "stop_token_ids are ignored",
        "compatibility layers",
        COMPLETIONS,
        r"^vllm",
        edit_request=ignore_fields("stop_token_ids"),
    ),
    Defect(
        "allowed_token_ids are ignored",
        "compatibility layers",
        COMPLETIONS,
        r"^vllm",
        edit_request=ignore_fields("allowed_token_ids"),
    ),
    Defect(
        "logit_bias is ignored",
        "compatibility layers",
        COMPLETIONS,
        r"^vllm",
        edit_request=ignore_fields("logit_bias"),
    ),
    Defect(
        "structured_outputs are ignored",
        "guided_* after its removal",
        CHAT,
        r"^vllm\.structured",
        edit_request=ignore_fields("structured_outputs"),
    ),
    Defect(
        "prompt_logprobs are ignored",
        "compatibility layers",
        COMPLETIONS,
        r"^vllm\.prompt",
        edit_request=ignore_fields("prompt_logprobs"),
    ),
    Defect(
        "echo is ignored",
        "vLLM-compatible mocks",
        COMPLETIONS,
        r"^completions\.echo",
        edit_request=ignore_fields("echo"),
    ),
    Defect(
        "only the first prompt of a list is used",
        "llama.cpp before 2024",
        COMPLETIONS,
        r"^completions\.prompt",
        edit_request=change_body(
            lambda b: (
                b.update(prompt=b["prompt"][0])
                if isinstance(b.get("prompt"), list)
                and b["prompt"]
                and isinstance(b["prompt"][0], str)
                else None
            )
        ),
    ),
    Defect(
        "text_offset is 0 everywhere",
        "vllm#5135",
        COMPLETIONS,
        r"^completions\.logprobs",
        edit_response=_edit_choices(
            lambda c: (
                c["logprobs"].update(text_offset=[0] * len(c["logprobs"]["tokens"]))
                if c.get("logprobs")
                else None
            )
        ),
    ),
    Defect(
        "detokenize adds a space",
        "SentencePiece wrappers",
        r"^/detokenize$",
        r"^tokenize",
        edit_response=edit_json(lambda r: r.update(prompt=f" {r['prompt']}")),
    ),
    Defect(
        "token counters do not increase",
        "own finding",
        r"^/metrics$",
        r"^operations",
        edit_response=_lower_counters,
    ),
    Defect(
        "metrics are duplicated",
        "multiprocess exporters",
        r"^/metrics$",
        r"^operations",
        edit_response=lambda _, r: setattr(r, "body", r.body * 2),
    ),
    Defect(
        "text/plain is accepted",
        "own finding",
        CHAT,
        r"^http\.simple",
        edit_request=_remove_origin,
    ),
    Defect(
        "CORS reflects every site with credentials",
        "gradio CVE-2024-1727",
        CHAT,
        r"^http\.cors",
        methods=("OPTIONS",),
        edit_request=lambda r: Response(
            204,
            {
                "access-control-allow-origin": r.headers["origin"],
                "access-control-allow-credentials": "true",
            },
        ),
    ),
    Defect(
        "other host names are served on loopback",
        "ollama CVE-2024-28224",
        r"^/v1/models$",
        r"^http\.rebinding",
        edit_request=lambda r: r.headers.update(host="localhost"),
    ),
    Defect(
        "streams may be buffered",
        "nginx in front of several servers",
        CHAT,
        r"^http\.stream-cache",
        edit_response=_drop_header("cache-control"),
    ),
)
HTTP_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "two Content-Lengths are accepted",
        "CVE-2019-16786 and similar",
        "",
        r"^http\.rejects",
        edit_bytes=_replace_bytes(rb"Content-Length: 3\r\nContent-Length: 4", b"Content-Length: 3"),
    ),
    Defect(
        "a signed Content-Length is accepted",
        "h11, waitress, Node before 2021",
        "",
        r"^http\.rejects",
        edit_bytes=_replace_bytes(rb"Content-Length: \+3", b"Content-Length: 3"),
    ),
    Defect(
        "a space before the colon is accepted",
        "CVE-2019-16276 (Go)",
        "",
        r"^http\.rejects",
        edit_bytes=_replace_bytes(rb"(Content-Length|Transfer-Encoding) :", rb"\1:"),
    ),
    Defect(
        "NUL in headers is accepted",
        "class of bugs",
        "",
        r"^http\.rejects",
        edit_bytes=_replace_bytes(rb"a\x00b", b"ab"),
    ),
    Defect(
        "a bare carriage return is accepted",
        "CVE-2023-30589 (Node)",
        "",
        r"^http\.rejects",
        edit_bytes=_replace_bytes(rb"a\rb", b"ab"),
    ),
    Defect(
        "folded lines are accepted",
        "CVE-2022-32215 (Node)",
        "",
        r"^http\.folded",
        edit_bytes=_replace_bytes(rb"X-Check: a\r\n b: c", b"X-Check: a b: c"),
    ),
    Defect(
        "a missing Host is accepted",
        "h2o, uvicorn with httptools",
        "",
        r"^http\.no-host",
        edit_bytes=_replace_bytes(
            rb"(GET /v1/models HTTP/1.1\r\n)(?!.*Host:)", rb"\1Host: localhost\r\n"
        ),
    ),
    Defect(
        "Content-Length with chunked is ignored, and the connection stays open",
        "CVE-2022-24766 (mitmproxy) and similar",
        "",
        r"^http\.both",
        edit_bytes=_replace_bytes(rb"Content-Length: 5\r\n", b""),
    ),
    Defect(
        "chunk sizes with 0x are accepted",
        "CVE-2020-8287 (Node) and similar",
        "",
        r"^http\.chunk",
        edit_bytes=_replace_bytes(rb"0x3\r\n", b"3\r\n"),
    ),
    Defect(
        "chunk sizes with a sign are accepted",
        "aiohttp CVE-2023-49081 and similar",
        "",
        r"^http\.chunk",
        edit_bytes=_replace_bytes(rb"\+3\r\n", b"3\r\n"),
    ),
    Defect(
        "an unknown transfer coding is read as chunked",
        "CVE-2022-32213 (Node)",
        "",
        r"^http\.rejects",
        edit_bytes=_replace_bytes(rb"xchunked", b"chunked"),
    ),
)


def _change_streaming_body(change: ObjectChange) -> Any:
    """ObjectChange only requests for streams, as a server whose other path follows the
    rule.
    """
    return change_body(lambda body: change(body) if body.get("stream") else None)


def _keep_first_part(body: JsonObject) -> None:
    for message in list_objects(body, "messages"):
        if isinstance(message.get("content"), list):
            message["content"] = message["content"][:1]


def _drop_results(body: JsonObject) -> None:
    _drop_messages(body, "tool")


def _replace_escapes(request: Request) -> None:
    request.body = re.sub(rb"\\u[0-9a-f]{4}", b"?", request.body)


def _rename_model(value: JsonObject) -> None:
    for target in (value, value.get("message"), value.get("response")):
        if isinstance(target, dict) and "model" in target:
            target["model"] = "gpt-4"


def _finish_calls_with(name: str) -> ObjectChange:
    def change(choice: JsonObject) -> None:
        if choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = name

    return change


def _add_call_markup(choice: JsonObject) -> None:
    if choice["message"].get("tool_calls"):
        choice["message"]["content"] = "<tool_call>"


def _count_one_choice(reply: JsonObject) -> None:
    if len(reply["choices"]) > 1:
        tokens = reply["usage"]["completion_tokens"] // 2
        reply["usage"].update(
            completion_tokens=tokens, total_tokens=reply["usage"]["prompt_tokens"] + tokens
        )


def _set_code(_: Request, response: Response) -> None:
    body = json.loads(response.body)
    body["error"]["code"] = 500
    response.body = json.dumps(body).encode()


def _scale_embeddings(reply: JsonObject) -> None:
    for entry in reply["data"]:
        if isinstance(entry["embedding"], list):
            entry["embedding"] = [3 * value for value in entry["embedding"]]


def _truncate_input(body: JsonObject) -> None:
    if isinstance(body.get("input"), str):
        body["input"] = body["input"][:2000]


CLASS = "class: a rule is implemented on one path only"
EMBEDDINGS = r"^/v1/embeddings$"
PROMPT_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "system is dropped in streams",
        CLASS,
        CHAT,
        r"^chat\.stream-of",
        edit_request=_change_streaming_body(_drop_system),
    ),
    Defect(
        "history is dropped in streams",
        CLASS,
        CHAT,
        r"^chat\.stream-of",
        edit_request=_change_streaming_body(_keep_last_message),
    ),
    Defect(
        "Messages drop system in streams",
        CLASS,
        MESSAGES,
        r"^messages\.stream-of",
        edit_request=_change_streaming_body(_drop_system),
    ),
    Defect(
        "instructions are dropped in streams",
        CLASS,
        RESPONSES,
        r"^responses\.stream-of",
        edit_request=_change_streaming_body(lambda body: body.pop("instructions", None)),
    ),
    Defect(
        "tool results are dropped",
        "templates without tools",
        CHAT,
        r"^chat\.each-result",
        edit_request=change_body(_drop_results),
    ),
    Defect(
        "only the first content part is used",
        "naive wrappers",
        CHAT,
        "each-part",
        edit_request=change_body(_keep_first_part),
    ),
    Defect(
        "only the first content block of Messages is used",
        "naive wrappers",
        MESSAGES,
        "each-part",
        edit_request=change_body(_keep_first_part),
    ),
    Defect(
        "JSON escape sequences are replaced",
        "hand-written JSON readers",
        CHAT,
        r"^chat\.escapes",
        edit_request=_replace_escapes,
    ),
    Defect(
        "suffix is ignored",
        "several servers",
        COMPLETIONS,
        r"^completions\.suffix",
        edit_request=ignore_fields("suffix"),
    ),
    Defect(
        "logprobs of Responses are ignored",
        "several servers",
        RESPONSES,
        r"^responses\.logprobs",
        edit_request=ignore_fields("include", "top_logprobs"),
    ),
    Defect(
        "long embedding inputs are truncated silently",
        "ollama",
        EMBEDDINGS,
        r"^embeddings\.too",
        edit_request=change_body(_truncate_input),
    ),
)
NAME_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "model is another model's name",
        "proxies with aliases",
        CHAT,
        "chat.model-name",
        edit_response=edit_json(_rename_model),
    ),
    Defect(
        "model is another model's name in streams",
        "proxies",
        CHAT,
        "chat.model-name",
        edit_response=edit_each_event(_rename_model),
    ),
    Defect(
        "model of Messages is another model's name",
        "proxies",
        MESSAGES,
        "messages.model-name",
        edit_response=edit_each_event(_rename_model),
    ),
    Defect(
        "model of Responses is another model's name",
        "proxies",
        RESPONSES,
        "responses.model-name",
        edit_response=edit_each_event(_rename_model),
    ),
    Defect(
        "model of embeddings is another model's name",
        "proxies",
        EMBEDDINGS,
        "embeddings.model",
        edit_response=edit_json(_rename_model),
    ),
    Defect(
        "models are duplicated",
        "routers of several servers",
        r"^/v1/models$",
        r"^models",
        edit_response=edit_json(lambda reply: reply.update(data=reply["data"] * 2)),
    ),
    Defect(
        "streams declare the charset Latin-1",
        "frameworks' default charset",
        CHAT,
        STREAM,
        edit_response=_set_header(
            "content-type", "text/event-stream; charset=iso-8859-1", on_stream=True
        ),
    ),
    Defect(
        "error.code differs from the status",
        "gateways",
        CHAT,
        r"^chat\.error",
        edit_response=edit_errors(_set_code),
    ),
)
OUTPUT_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "streamed calls have the finish_reason stop",
        "mlx-vlm#990",
        CHAT,
        TOOL,
        edit_response=_edit_chunk_choices(_finish_calls_with("stop")),
    ),
    Defect(
        "the markup of a call remains in the text",
        "tool parsers",
        CHAT,
        TOOL,
        edit_response=_edit_choices(_add_call_markup),
    ),
    Defect(
        "usage counts only some of n choices",
        "several servers",
        CHAT,
        r"^chat\.n$",
        edit_response=edit_json(_count_one_choice),
    ),
    Defect(
        "streamed tool_use ends with end_turn",
        "proxies of OpenAI's API",
        MESSAGES,
        r"^messages\.tool",
        edit_response=_change_events(
            "message_delta",
            lambda event: (
                event["delta"].update(stop_reason="end_turn")
                if event["delta"]["stop_reason"] == "tool_use"
                else None
            ),
        ),
    ),
    Defect(
        "all tool_use blocks have the same id",
        "proxies of OpenAI's API",
        MESSAGES,
        r"^messages\.tool",
        edit_response=edit_json(
            lambda r: [b.update(id="toolu_1") for b in r["content"] if b["type"] == "tool_use"]
        ),
    ),
    Defect(
        "all calls have the same call_id",
        "mlx-lm",
        RESPONSES,
        r"^responses\.tool",
        edit_response=edit_json(
            lambda r: [
                i.update(call_id="call_0") for i in r["output"] if i["type"] == "function_call"
            ]
        ),
    ),
    Defect(
        "message_start has a different input token count",
        "litellm#31069",
        MESSAGES,
        r"^messages\.stream",
        edit_response=_change_events(
            "message_start",
            lambda event: event["message"]["usage"].update(
                input_tokens=event["message"]["usage"]["input_tokens"] + 3
            ),
        ),
    ),
    Defect(
        "embeddings are not normalized",
        "ollama#4128",
        EMBEDDINGS,
        r"^embeddings",
        edit_response=edit_json(_scale_embeddings),
    ),
    Defect(
        "embeddings of a batch are zeros",
        "pooling bugs",
        EMBEDDINGS,
        r"^embeddings\.batch",
        edit_response=edit_json(
            lambda r: [e.update(embedding=[0.0] * len(e["embedding"])) for e in r["data"][40:]]
        ),
    ),
    Defect(
        "Ollama's embeddings are in the wrong order",
        "parallel workers",
        r"^/api/embed$",
        r"^ollama\.embed$",
        edit_response=edit_json(lambda reply: reply.update(embeddings=reply["embeddings"][::-1])),
    ),
    Defect(
        "sizes of Ollama's models are strings",
        "compatibility layers",
        r"^/api/tags$",
        r"^ollama\.tags",
        edit_response=edit_json(
            lambda reply: [model.update(size="1 GB") for model in reply["models"]]
        ),
    ),
    Defect(
        "Gemini's maxOutputTokens is ignored",
        "compatibility layers",
        GEMINI,
        r"^gemini\.limit",
        edit_request=_ignore_config("maxOutputTokens"),
    ),
    Defect(
        "Gemini's stopSequences are ignored",
        "compatibility layers",
        GEMINI,
        r"^gemini\.stop$",
        edit_request=_ignore_config("stopSequences"),
    ),
    Defect(
        "Gemini's responseJsonSchema is ignored",
        "compatibility layers",
        GEMINI,
        r"^gemini\.json-schema",
        edit_request=_ignore_config("responseJsonSchema", "responseMimeType"),
    ),
    Defect(
        "Gemini's candidateCount is ignored",
        "compatibility layers",
        GEMINI,
        r"^gemini\.candidates",
        edit_request=_ignore_config("candidateCount"),
    ),
    Defect(
        "Gemini's systemInstruction is ignored",
        "compatibility layers",
        GEMINI,
        r"^gemini\.each-system",
        edit_request=ignore_fields("systemInstruction"),
    ),
    Defect(
        "Gemini's function calling mode is ignored",
        "compatibility layers",
        GEMINI,
        r"^gemini\.force-call",
        edit_request=ignore_fields("toolConfig"),
    ),
    Defect(
        "Gemini's streams end without their last chunk",
        "gateways that drop the end",
        GEMINI,
        r"^gemini\.stream-equals",
        edit_response=edit_events(lambda events: events[:-1]),
    ),
    Defect(
        "Gemini's streams have a comment",
        "gateways with keepalives",
        GEMINI,
        r"^gemini\.stream-equals",
        edit_response=_add_comment,
    ),
    Defect(
        "Gemini's errors have OpenAI's envelope",
        "compatibility layers",
        GEMINI,
        r"^gemini\.(unknown-model|wrong-types)",
        edit_response=edit_errors(
            lambda _, response: setattr(response, "body", b'{"error":{"message":"x","type":"x"}}')
        ),
    ),
    Defect(
        "Gemini's countTokens counts no template",
        "estimates",
        r"countTokens$",
        r"^gemini\.count",
        edit_response=edit_json(lambda reply: reply.update(totalTokens=1)),
    ),
    Defect(
        "Gemini's batch embeddings are in the wrong order",
        "parallel workers",
        r"batchEmbedContents$",
        r"^gemini\.embeddings",
        edit_response=edit_json(lambda r: r.update(embeddings=r["embeddings"][::-1])),
    ),
    Defect(
        "Gemini's models lack the prefix",
        "compatibility layers",
        r"^/v1beta/models",
        r"^gemini\.models",
        edit_response=edit_json(
            lambda r: [m.update(name=m["name"][7:]) for m in r.get("models", ())]
        ),
    ),
)
DEFECTS = (
    *STREAM_DEFECTS,
    *CHAT_DEFECTS,
    *TOOL_DEFECTS,
    *ERROR_DEFECTS,
    *RESPONSES_DEFECTS,
    *MESSAGES_DEFECTS,
    *OTHER_API_DEFECTS,
    *HTTP_DEFECTS,
    *PROMPT_DEFECTS,
    *NAME_DEFECTS,
    *OUTPUT_DEFECTS,
    *CONTEXT_DEFECTS,
)
