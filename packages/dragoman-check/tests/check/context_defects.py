"""Planted defects that lose a part of a request, or a parameter, without an error.

They were written before the checker ran against them, so the share that it finds is its
score on defects that it does not know.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

from dragoman_check.rules.json_values import JsonObject

from .wire import (
    Defect,
    EditRequest,
    EditResponse,
    Request,
    Response,
    change_body,
    edit_each_event,
    edit_json,
    get_call_deltas,
    get_deltas,
    ignore_fields,
    list_objects,
)

CHAT = r"^/v1/chat/completions$"
COMPLETIONS = r"^/v1/completions$"
RESPONSES = r"^/v1/responses$"
MESSAGES = r"^/v1/messages$"
OLLAMA = r"^/api/(chat|generate)$"
GEMINI = r"^/v1beta/models/.*[gG]enerateContent"
ORIGIN = "class: context or a parameter is lost without an error"
SAMPLING = r"\.(effect|temperature$|seed$)"
CALLS = r"\.(several-calls|one-call)$"
Keep = Callable[[list[Any]], list[Any]]


def _keep_first(entries: list[Any]) -> list[Any]:
    return entries[:1]


def _keep_last(entries: list[Any]) -> list[Any]:
    return entries[-1:]


def _keep_two(entries: list[Any]) -> list[Any]:
    return entries[:2]


def _drop_last(entries: list[Any]) -> list[Any]:
    return entries[:-1] if len(entries) > 1 else entries


def _keep(name: str, keep: Keep) -> EditRequest:
    """Keep some entries of a list of the body."""

    def change(body: JsonObject) -> None:
        if isinstance(body.get(name), list):
            body[name] = keep(body[name])
        if isinstance(body.get("options"), dict) and isinstance(body["options"].get(name), list):
            body["options"][name] = keep(body["options"][name])

    return change_body(change)


def _keep_in(outer: str, name: str, keep: Keep) -> EditRequest:
    """Keep some entries of a list in each object of a list of the body."""

    def change(body: JsonObject) -> None:
        for entry in list_objects(body, outer):
            if isinstance(entry.get(name), list):
                entry[name] = keep(entry[name])

    return change_body(change)


def _drop(outer: str, condition: Callable[[JsonObject, int], object]) -> EditRequest:
    """Drop the objects of a list of the body for which the condition of object and index
    holds.
    """

    def change(body: JsonObject) -> None:
        if isinstance(body.get(outer), list):
            body[outer] = [
                entry
                for i, entry in enumerate(body[outer])
                if not isinstance(entry, dict) or not condition(entry, i)  # pyright: ignore
            ]

    return change_body(change)


def _drop_all_but_first(outer: str, condition: Callable[[JsonObject], object]) -> EditRequest:
    def change(body: JsonObject) -> None:
        matching = [entry for entry in list_objects(body, outer) if condition(entry)]
        if matching[1:]:
            body[outer] = [entry for entry in body[outer] if entry not in matching[1:]]

    return change_body(change)


def _drop_system_beside_tools(body: JsonObject) -> None:
    if body.get("tools"):
        body["messages"] = [m for m in list_objects(body, "messages") if m.get("role") != "system"]


def _merge_same_roles(body: JsonObject) -> None:
    merged: list[JsonObject] = []
    for message in list_objects(body, "messages"):
        if merged and merged[-1].get("role") == message.get("role") == "user":
            merged[-1] = message
        else:
            merged.append(message)
    if merged:
        body["messages"] = merged


def _edit_functions(change: Callable[[JsonObject], object]) -> EditRequest:
    """Change the definition of each function of Chat."""

    def edit(body: JsonObject) -> None:
        for tool in list_objects(body, "tools"):
            if isinstance(tool.get("function"), dict):
                change(tool["function"])

    return change_body(edit)


def _strip_descriptions(value: Any) -> None:
    if isinstance(value, dict):
        if isinstance(value.get("description"), str):  # pyright: ignore
            del value["description"]
        for entry in value.values():  # pyright: ignore
            _strip_descriptions(entry)
    elif isinstance(value, list):
        for entry in value:  # pyright: ignore
            _strip_descriptions(entry)


def _cut_description(function: JsonObject) -> None:
    function["description"] = str(function.get("description", ""))[:20]


def _flatten_nested(function: JsonObject) -> None:
    for value in function.get("parameters", {}).get("properties", {}).values():
        value.pop("properties", None)


def _write_none(body: JsonObject) -> None:
    for message in list_objects(body, "messages"):
        if message.get("content", "") is None:
            message["content"] = "None"


def _negate(name: str) -> EditRequest:
    def change(body: JsonObject) -> None:
        for target in (body, body.get("options") or {}):
            if isinstance(target.get(name), int | float):
                target[name] = -target[name]

    return change_body(change)


def _set(name: str, value: Any) -> EditRequest:
    def change(body: JsonObject) -> None:
        body[name] = value

    return change_body(change)


def _set_default(name: str, value: Any) -> EditRequest:
    def change(body: JsonObject) -> None:
        if "max_completion_tokens" not in body:
            body.setdefault(name, value)

    return change_body(change)


def _ignore_config(*names: str) -> EditRequest:
    return change_body(
        lambda body: [body.get("generationConfig", {}).pop(name, None) for name in names]
    )


def _choose_first_tool(body: JsonObject) -> None:
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):  # pyright: ignore
        choice["function"]["name"] = body["tools"][0]["function"]["name"]


def _choose_any_tool(body: JsonObject) -> None:
    if isinstance(body.get("tool_choice"), dict):
        body["tool_choice"] = "required"


CITIES = " ".join(
    f'[[tool get_weather {{"city": "{city}", "unit": "celsius"}}]]'
    for city in ("Rome", "Oslo", "Cairo")
)


def call_three_times(change: Callable[[JsonObject], object] = lambda _: None) -> EditRequest:
    """Let the scripted engine make three calls, as a model that is asked for them.

    change: the defect.
    """

    def edit(body: JsonObject) -> None:
        change(body)
        if isinstance(body.get("input"), str):
            body["input"] = CITIES
        for message in list_objects(body, "messages")[-1:]:
            message["content"] = CITIES

    return change_body(edit)


def _ignore_parallel(body: JsonObject) -> None:
    body.pop("parallel_tool_calls", None)
    if isinstance(body.get("tool_choice"), dict):
        body["tool_choice"].pop("disable_parallel_tool_use", None)


def _reset_call_index(chunk: JsonObject) -> None:
    for call in get_call_deltas(chunk):
        call["index"] = 0


def _share_call_id(reply: JsonObject) -> None:
    for choice in reply["choices"]:
        for call in choice["message"].get("tool_calls", ()):
            call["id"] = "call_abc"


def _share_use_id(reply: JsonObject) -> None:
    for block in reply["content"]:
        if block["type"] == "tool_use":
            block["id"] = "toolu_abc"


def _reset_index(name: str) -> EditResponse:
    def change(event: JsonObject) -> None:
        if name in event:
            event[name] = 0

    return edit_each_event(change)


def _edit_strings(change: Callable[[str], str]) -> EditResponse:
    """Change all strings of a response, streamed or not."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [walk(entry) for entry in value]  # pyright: ignore
        if isinstance(value, dict):
            return {name: walk(entry) for name, entry in value.items()}  # pyright: ignore
        return value

    def edit(_: Request, response: Response) -> None:
        lines: list[str] = []
        for line in response.body.decode().split("\n"):
            prefix = "data: " if line.startswith("data: ") else ""
            data = line.removeprefix(prefix)
            is_object = data.startswith("{")
            lines.append(prefix + json.dumps(walk(json.loads(data))) if is_object else line)
        response.body = "\n".join(lines).encode()

    return edit


def _compose(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _replace_cjk(text: str) -> str:
    return text.replace("本", "��")


def _strip_text(reply: JsonObject) -> None:
    for choice in reply["choices"]:
        choice["message"]["content"] = (choice["message"].get("content") or "").strip()


def _strip_last_delta(chunk: JsonObject) -> None:
    for delta in get_deltas(chunk):
        if isinstance(delta.get("content"), str):
            delta["content"] = delta["content"].rstrip(" ")


def _set_header(name: str, value: str) -> EditResponse:
    def edit(_: Request, response: Response) -> None:
        response.headers[name] = value

    return edit


def _scale_context(factor: float) -> EditResponse:
    def change(reply: JsonObject) -> None:
        for model in reply.get("data", ()):
            if "max_model_len" in model:
                model["max_model_len"] = int(model["max_model_len"] * factor)

    return edit_json(change)


def _repeat_bos(reply: JsonObject) -> None:
    for target in (reply, *reply.get("choices", ())):
        if target.get("prompt_token_ids"):
            target["prompt_token_ids"].insert(0, target["prompt_token_ids"][0])


def _keep_first_prompt(body: JsonObject) -> None:
    if body.get("stream") and isinstance(body.get("prompt"), list):
        body["prompt"] = body["prompt"][:1]


def _is_role(role: str) -> Callable[[JsonObject, int], bool]:
    return lambda message, _: message.get("role") == role


def build(
    paths: str,
    area: str,
    name: str,
    edit_request: EditRequest | None = None,
    edit_response: EditResponse | None = None,
    **fields: Any,
) -> Defect:
    options: dict[str, Any] = {}
    if edit_request is not None:
        options["edit_request"] = edit_request
    if edit_response is not None:
        options["edit_response"] = edit_response
    return Defect(name, ORIGIN, paths, area, **options, **fields)


UNRELATED = r"(?!error|field|rejects|accepts|cancel|concurrent|control|too-long)"
"""Names of checks of other subjects, which would take time."""
C = r"^(chat|traps)\." + UNRELATED
TINY: dict[str, Any] = {"model": "tiny"}
SCRIPTED: dict[str, Any] = {"model": "scripted"}
CHAT_CONTEXT = (
    build(CHAT, C, "Chat: only the first tool", _keep("tools", _keep_first)),
    build(CHAT, C, "Chat: the last tool is lost", _keep("tools", _drop_last)),
    build(CHAT, C, "Chat: long descriptions are cut", _edit_functions(_cut_description)),
    build(
        CHAT,
        C,
        "Chat: parameters lose their descriptions",
        _edit_functions(lambda f: _strip_descriptions(f.get("parameters"))),
    ),
    build(CHAT, C, "Chat: nested parameters are lost", _edit_functions(_flatten_nested)),
    build(CHAT, C, "Chat: assistant turns are lost", _drop("messages", _is_role("assistant"))),
    build(
        CHAT,
        C,
        "Chat: the first turn of a long history is lost",
        change_body(
            lambda b: b.update(messages=b["messages"][1:]) if len(b["messages"]) > 3 else None
        ),
    ),
    build(CHAT, C, "Chat: the last four messages", _keep("messages", lambda m: m[-4:])),
    build(CHAT, C, "Chat: only the last text part", _keep_in("messages", "content", _keep_last)),
    build(CHAT, C, "Chat: two parts at most", _keep_in("messages", "content", _keep_two)),
    build(CHAT, C, "Chat: the last of several user messages", change_body(_merge_same_roles)),
    build(CHAT, C, "Chat: no system beside tools", change_body(_drop_system_beside_tools)),
    build(
        CHAT,
        C,
        "Chat: only the first system message",
        _drop_all_but_first("messages", lambda m: m.get("role") == "system"),
    ),
    build(CHAT, C, "Chat: developer messages are lost", _drop("messages", _is_role("developer"))),
    build(
        CHAT,
        C,
        "Chat: only the first tool result",
        _drop_all_but_first("messages", lambda m: m.get("role") == "tool"),
    ),
    build(CHAT, C, "Chat: only the first call", _keep_in("messages", "tool_calls", _keep_first)),
    build(
        CHAT,
        C,
        "Chat: past reasoning is lost",
        change_body(
            lambda b: [
                (m.pop("reasoning_content", None), m.pop("reasoning", None))
                for m in list_objects(b, "messages")
            ]
        ),
    ),
    build(CHAT, C, "Chat: null is the word None", change_body(_write_none)),
    build(CHAT, C, "Chat: two stop strings at most", _keep("stop", _keep_two)),
    build(CHAT, C, "Chat: only the last stop string", _keep("stop", _keep_last)),
    build(CHAT, C, "Chat: a named tool is the first one", change_body(_choose_first_tool)),
    build(CHAT, C, "Chat: a default limit of 20 tokens", _set_default("max_tokens", 20)),
    build(CHAT, C, "Chat: the seed is ignored", ignore_fields("seed")),
    build(
        CHAT, C, "Chat: decomposed characters are composed", edit_response=_edit_strings(_compose)
    ),
    build(
        CHAT,
        C,
        "Chat: bytes of a character are replaced",
        edit_response=_edit_strings(_replace_cjk),
    ),
    build(CHAT, C, "Chat: whole texts are stripped", edit_response=edit_json(_strip_text)),
    build(
        CHAT,
        C,
        "Chat: deltas lose their last space",
        edit_response=edit_each_event(_strip_last_delta),
    ),
    build(
        CHAT, C, "Chat: one request id for all", edit_response=_set_header("x-request-id", "abc")
    ),
    build(r"^/v1/models$", C, "models: twice the context", edit_response=_scale_context(2)),
    build(r"^/v1/models$", C, "models: half of the context", edit_response=_scale_context(0.5)),
    build(CHAT, C, "Chat: two BOS tokens", edit_response=edit_json(_repeat_bos)),
    build(
        CHAT,
        r"^traps\.(end|no-markup)",
        "Chat: end-of-turn tokens are ignored",
        _set("ignore_eos", True),
    ),
    build(CHAT, "^chat" + SAMPLING, "Chat: wrong sign", _negate("frequency_penalty"), **TINY),
    build(
        CHAT,
        "^chat" + SAMPLING,
        "Chat: presence_penalty is ignored",
        ignore_fields("presence_penalty"),
        **TINY,
    ),
    build(CHAT, "^chat" + SAMPLING, "Chat: top_p is ignored", ignore_fields("top_p"), **TINY),
    build(CHAT, "^chat" + SAMPLING, "Chat: always greedy", _set("temperature", 0), **TINY),
)
SEVERAL_CALLS = (
    build(CHAT, CALLS, "Chat: parallel calls", call_three_times(_ignore_parallel), **SCRIPTED),
    build(
        CHAT,
        CALLS,
        "Chat: all calls have index 0",
        call_three_times(),
        edit_each_event(_reset_call_index),
        **SCRIPTED,
    ),
    build(
        CHAT,
        CALLS,
        "Chat: all calls have one id",
        call_three_times(),
        edit_json(_share_call_id),
        **SCRIPTED,
    ),
    build(
        MESSAGES, CALLS, "Messages: parallel calls", call_three_times(_ignore_parallel), **SCRIPTED
    ),
    build(
        MESSAGES,
        CALLS,
        "Messages: all blocks have index 0",
        call_three_times(),
        _reset_index("index"),
        **SCRIPTED,
    ),
    build(
        MESSAGES,
        CALLS,
        "Messages: all calls have one id",
        call_three_times(),
        edit_json(_share_use_id),
        **SCRIPTED,
    ),
    build(
        RESPONSES,
        CALLS,
        "Responses: parallel calls",
        call_three_times(_ignore_parallel),
        **SCRIPTED,
    ),
    build(
        RESPONSES,
        CALLS,
        "Responses: output_index is 0",
        call_three_times(),
        _reset_index("output_index"),
        **SCRIPTED,
    ),
)
M = r"^messages\." + UNRELATED
R = r"^responses\." + UNRELATED
OLLAMA_CHECKS = r"^ollama-(chat|generate)\." + UNRELATED
G = r"^gemini\." + UNRELATED
P = r"^completions\." + UNRELATED


def _is_kind(kind: str) -> Callable[[JsonObject], bool]:
    return lambda entry: entry.get("type") == kind


def _drop_blocks(kind: str) -> EditRequest:
    """Keep only the first block of a kind in each message."""

    def change(body: JsonObject) -> None:
        for message in list_objects(body, "messages"):
            blocks = [b for b in list_objects(message, "content") if b.get("type") == kind]
            if blocks[1:]:
                message["content"] = [b for b in message["content"] if b not in blocks[1:]]

    return change_body(change)


def _drop_instructions(body: JsonObject) -> None:
    if any(item.get("role") == "developer" for item in list_objects(body, "input")):
        body.pop("instructions", None)


def _keep_first_system_part(body: JsonObject) -> None:
    if isinstance(body.get("systemInstruction"), dict):
        body["systemInstruction"]["parts"] = body["systemInstruction"]["parts"][:1]


def _keep_first_result_block(body: JsonObject) -> None:
    for message in list_objects(body, "messages"):
        for block in list_objects(message, "content"):
            if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
                block["content"] = block["content"][:1]


OTHER_CONTEXT = (
    build(MESSAGES, M, "Messages: only the first system block", _keep("system", _keep_first)),
    build(
        MESSAGES,
        M,
        "Messages: only the last text block",
        _keep_in("messages", "content", _keep_last),
    ),
    build(MESSAGES, M, "Messages: only the first tool_result", _drop_blocks("tool_result")),
    build(MESSAGES, M, "Messages: only the first tool_use", _drop_blocks("tool_use")),
    build(MESSAGES, M, "Messages: two tools at most", _keep("tools", _keep_two)),
    build(
        MESSAGES, M, "Messages: assistant turns are lost", _drop("messages", _is_role("assistant"))
    ),
    build(MESSAGES, M, "Messages: results lose blocks", change_body(_keep_first_result_block)),
    build(MESSAGES, M, "Messages: only the first stop", _keep("stop_sequences", _keep_first)),
    build(
        MESSAGES,
        M,
        "Messages: one request id for all",
        edit_response=_set_header("request-id", "req_1"),
    ),
    build(
        MESSAGES,
        "^messages" + SAMPLING,
        "Messages: top_k is ignored",
        ignore_fields("top_k"),
        **TINY,
    ),
    build(RESPONSES, R, "Responses: only the last input item", _keep("input", _keep_last)),
    build(RESPONSES, R, "Responses: instructions are replaced", change_body(_drop_instructions)),
    build(
        RESPONSES,
        R,
        "Responses: only the first output",
        _drop_all_but_first("input", _is_kind("function_call_output")),
    ),
    build(RESPONSES, R, "Responses: only the first tool", _keep("tools", _keep_first)),
    build(
        RESPONSES, R, "Responses: only the first part", _keep_in("input", "content", _keep_first)
    ),
    build(RESPONSES, R, "Responses: a named tool is any tool", change_body(_choose_any_tool)),
    build(
        RESPONSES,
        R,
        "Responses: characters are replaced",
        edit_response=_edit_strings(_replace_cjk),
    ),
    build(
        RESPONSES,
        "^responses" + SAMPLING,
        "Responses: top_p is ignored",
        ignore_fields("top_p"),
        **TINY,
    ),
    build(
        OLLAMA,
        OLLAMA_CHECKS,
        "Ollama: system messages are lost",
        _drop("messages", _is_role("system")),
    ),
    build(OLLAMA, OLLAMA_CHECKS, "Ollama: only the first tool", _keep("tools", _keep_first)),
    build(
        OLLAMA,
        OLLAMA_CHECKS,
        "Ollama: only the first call",
        _keep_in("messages", "tool_calls", _keep_first),
    ),
    build(OLLAMA, OLLAMA_CHECKS, "Ollama: only the first stop", _keep("stop", _keep_first)),
    build(OLLAMA, OLLAMA_CHECKS, "Ollama: the seed is ignored", ignore_fields("seed")),
    build(
        OLLAMA,
        OLLAMA_CHECKS,
        "Ollama: characters are composed",
        edit_response=_edit_strings(_compose),
    ),
    build(
        OLLAMA,
        "^ollama-chat" + SAMPLING,
        "Ollama: top_k is ignored",
        ignore_fields("top_k"),
        **TINY,
    ),
    build(
        OLLAMA,
        "^ollama-chat" + SAMPLING,
        "Ollama: wrong sign",
        _negate("presence_penalty"),
        **TINY,
    ),
    build(GEMINI, G, "Gemini: only the last content", _keep("contents", _keep_last)),
    build(GEMINI, G, "Gemini: only the first part", _keep_in("contents", "parts", _keep_first)),
    build(GEMINI, G, "Gemini: only the first list of tools", _keep("tools", _keep_first)),
    build(GEMINI, G, "Gemini: only the first system part", change_body(_keep_first_system_part)),
    build(GEMINI, G, "Gemini: the seed is ignored", _ignore_config("seed")),
    build(GEMINI, "^gemini" + SAMPLING, "Gemini: topK is ignored", _ignore_config("topK"), **TINY),
    build(COMPLETIONS, P, "Completions: a default of 5 tokens", _set_default("max_tokens", 5)),
    build(
        COMPLETIONS, P, "Completions: a stream of the first prompt", change_body(_keep_first_prompt)
    ),
    build(COMPLETIONS, P, "Completions: only the first stop", _keep("stop", _keep_first)),
    build(
        COMPLETIONS,
        "^completions" + SAMPLING,
        "Completions: wrong sign",
        _negate("presence_penalty"),
        **TINY,
    ),
    build(
        COMPLETIONS,
        "^(completions|vllm)" + SAMPLING,
        "Completions: min_p is ignored",
        ignore_fields("min_p"),
        **TINY,
    ),
)
CONTEXT_DEFECTS = (*CHAT_CONTEXT, *SEVERAL_CALLS, *OTHER_CONTEXT)
