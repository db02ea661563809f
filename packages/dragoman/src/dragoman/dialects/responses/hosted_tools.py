"""Reads the calls of hosted tools, those that OpenAI runs, with their results.

Another model gets them as calls of functions, as it does in Messages. The shapes are
those of openai-python 3.54 (`openai.types.responses.response_input_item_param`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from ...core.message import Text, ToolResult
from ..field_errors import missing_parameter
from .mcp_tools import read_tool_list
from .parsed_items import ApprovalRequest, ApprovalResponse, HostedCall, ListedTools
from .wire import WireItem

T = TypeVar("T")

_NO_RESULT = "The result of this call is not part of the conversation."
_EMPTY = "The call returned nothing."
_FAILED = "The call failed."


class _FoundFile(Struct, frozen=True):
    filename: str | None = None
    text: str | None = None


class _CodeOutput(Struct, frozen=True):
    """An output of the code interpreter: `logs`, or an image at `url`."""

    logs: str | None = None
    url: str | None = None


class _Source(Struct, frozen=True):
    url: str | None = None
    name: str | None = None


class _SearchAction(Struct, frozen=True):
    sources: list[_Source] | None = None


class _Failure(Struct, frozen=True):
    message: str | None = None
    content: Raw = Raw()


def read_hosted_item(
    item: WireItem, kind: str, path: str, warnings: list[str]
) -> HostedItem | None:
    """Read an item of a hosted tool; None, with a warning, if it is no call or has not the
    shape of one.
    """
    read = _READERS.get(kind)
    try:
        parsed = None if read is None else read(item, path, warnings)
    except msgspec.MsgspecError:
        parsed = None
    if parsed is None:
        warnings.append(f"{path}: items of type '{kind}' cannot be replayed here; it was left out")
    return parsed


def _read_mcp_call(item: WireItem, path: str, warnings: list[str]) -> HostedCall | None:
    del warnings
    if not item.name:
        return None
    output = item.output if isinstance(item.output, str) else None
    error = _read_error(item.error)
    arguments = _decode(item.arguments, str) or "{}"
    texts = [error] if error else None if output is None else [output]
    call = _build_call(item, path, item.name, arguments, texts, is_error=bool(error))
    return msgspec.structs.replace(
        call, server=item.server_label or "", approval=item.approval_request_id
    )


def _read_mcp_list(item: WireItem, path: str, warnings: list[str]) -> ListedTools | None:
    del path, warnings
    return read_tool_list(item)


def _read_approval_request(
    item: WireItem, path: str, warnings: list[str]
) -> ApprovalRequest | None:
    del path, warnings
    if not item.id or not item.name or not item.server_label:
        return None
    arguments = _decode(item.arguments, str) or "{}"
    return ApprovalRequest(item.id, item.server_label, item.name, arguments)


def _read_approval_response(
    item: WireItem, path: str, warnings: list[str]
) -> ApprovalResponse | None:
    del warnings
    if not item.approval_request_id:
        return None
    if item.approve is None:
        raise missing_parameter(f"{path}.approve")
    return ApprovalResponse(item.approval_request_id, item.approve, item.reason)


def _read_error(raw: Raw) -> str:
    """Return the text of an error; it was a string before it became an object."""
    text = bytes(raw).strip()
    if text.startswith(b"{"):
        failure = msgspec.json.decode(text, type=_Failure)
        content = bytes(failure.content)
        text = msgspec.json.decode(content) if content.startswith(b'"') else text.decode()
        return failure.message or text
    return _decode(raw, str) or ""


def _read_web_search(item: WireItem, path: str, warnings: list[str]) -> HostedCall | None:
    del warnings
    action = _decode(item.action, dict[str, Raw]) or {}
    sources = (_decode(item.action, _SearchAction) or _SearchAction()).sources
    arguments = {name: raw for name, raw in action.items() if name not in ("type", "sources")}
    texts = None
    if sources is not None:
        texts = ["\n".join(source.url or source.name or "" for source in sources)]
    return _build_call(item, path, "web_search", _encode(arguments), texts)


def _read_file_search(item: WireItem, path: str, warnings: list[str]) -> HostedCall | None:
    del warnings
    arguments = _encode({"queries": _decode(item.queries, list[str]) or []})
    files = _decode(item.results, list[_FoundFile])
    texts = None
    if files is not None:
        texts = ["\n".join(filter(None, (file.filename, file.text))) for file in files]
    return _build_call(item, path, "file_search", arguments, texts)


def _read_code(item: WireItem, path: str, warnings: list[str]) -> HostedCall | None:
    outputs = _decode(item.outputs, list[_CodeOutput])
    texts = None
    if outputs is not None:
        texts = [output.logs or _describe_image(output.url) for output in outputs]
    if any(output.url is not None for output in outputs or ()):
        warnings.append(f"{path}.outputs: images were left out")
    arguments = _encode({"code": _decode(item.code, str) or ""})
    return _build_call(item, path, "code_interpreter", arguments, texts)


def _describe_image(url: str | None) -> str:
    # A model without vision would reject the conversation with the image itself.
    if url is None:
        return ""
    return "[an image]" if url.startswith("data:") else f"[an image: {url}]"


def _read_image_generation(item: WireItem, path: str, warnings: list[str]) -> HostedCall | None:
    prompt = _decode(item.revised_prompt, str)
    arguments = _encode({} if prompt is None else {"prompt": prompt})
    error = _read_error(item.error)
    texts = [error] if error else []
    if bytes(item.result).strip() not in (b"", b"null"):
        warnings.append(f"{path}.result: the image was left out")
        texts.append("[an image]")
    return _build_call(
        item, path, "image_generation", arguments, texts or None, is_error=bool(error)
    )


def _read_program(item: WireItem, path: str, warnings: list[str]) -> HostedCall | None:
    del warnings
    arguments = _encode({"code": _decode(item.code, str) or ""})
    call = _build_call(item, path, "program", arguments, None)
    # Its output is an item of its own.
    return msgspec.structs.replace(call, result=None)


def _read_program_output(item: WireItem, path: str, warnings: list[str]) -> ToolResult | None:
    del path, warnings
    result = _decode(item.result, str)
    if not item.call_id or result is None:
        return None
    return ToolResult(item.call_id, (Text(result),), answers_call=False)


HostedItem = HostedCall | ToolResult | ListedTools | ApprovalRequest | ApprovalResponse
"""A parsed item of a hosted tool."""

_Reader = Callable[[WireItem, str, list[str]], HostedItem | None]
_READERS: Mapping[str, _Reader] = {
    "mcp_call": _read_mcp_call,
    "mcp_list_tools": _read_mcp_list,
    "mcp_approval_request": _read_approval_request,
    "mcp_approval_response": _read_approval_response,
    "web_search_call": _read_web_search,
    "file_search_call": _read_file_search,
    "code_interpreter_call": _read_code,
    "image_generation_call": _read_image_generation,
    "program": _read_program,
    "program_output": _read_program_output,
}


def _build_call(
    item: WireItem,
    path: str,
    name: str,
    arguments: str,
    texts: list[str] | None,
    is_error: bool = False,
) -> HostedCall:
    """Build a call with its result. Templates and upstreams reject a call without one.

    texts: the texts of the result; None if the item has no result.
    """
    is_error = is_error or item.status == "failed"
    absence = _FAILED if is_error else _NO_RESULT if texts is None else _EMPTY
    text = "\n\n".join(filter(None, texts or ())) or absence
    # The ids are optional for clients that write items themselves.
    id = item.call_id or item.id or f"call_{path}"
    return HostedCall(id, name, arguments, ToolResult(id, (Text(text),), is_error))


def _decode(raw: Raw, type: type[T]) -> T | None:
    """Decode a field; None if it is absent or null. Raises MsgspecError."""
    text = bytes(raw).strip()
    return None if text in (b"", b"null") else msgspec.json.decode(text, type=type)


def _encode(arguments: Mapping[str, object]) -> str:
    return msgspec.json.encode(arguments).decode()
