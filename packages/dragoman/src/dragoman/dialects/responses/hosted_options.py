"""The options of hosted tools: which of them reach the operator's tool, as arguments that
the model cannot write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...core.server_tools import ListedTool
from ..json_encoding import encode_string
from ..request_body import BodySchema, ParsedBody, prefix_param, read_json_value
from .client_tools import decode_or_none
from .wire import (
    CodeInterpreterOptions,
    FileSearchOptions,
    ImageGenerationOptions,
    ResponsesWireTool,
    ShellOptions,
    WebSearchOptions,
    minify,
)

_SCHEMAS: Mapping[str, BodySchema[Any]] = {
    "web_search": BodySchema(WebSearchOptions),
    "code_interpreter": BodySchema(CodeInterpreterOptions),
    "file_search": BodySchema(FileSearchOptions),
    "image_generation": BodySchema(ImageGenerationOptions),
    "shell": BodySchema(ShellOptions),
}
"""The options by the kind of the hosted tool."""
_NAMES: Mapping[str, tuple[str, ...]] = {
    "web_search": WebSearchOptions.__struct_fields__,
    "code_interpreter": CodeInterpreterOptions.__struct_fields__,
    "file_search": FileSearchOptions.__struct_fields__,
    "image_generation": ImageGenerationOptions.__struct_fields__,
    "shell": ShellOptions.__struct_fields__,
}
_DEFAULTS = {
    "container": {"type": "auto"},
    "environment": {"type": "container_auto"},
}
"""Values that mean nothing to a tool without the option: clients must send them."""
_HONORED_HERE = ("partial_images",)
"""Options that this server honors itself, whatever the tool does with them."""
_NOT_ECHOED = ("input_image_mask",)
"""Options that can be as large as an image."""


def read_hosted_options(tool: ResponsesWireTool, kind: str, path: str) -> dict[str, Raw]:
    """Return the options of a hosted tool that are not null. Raises RequestError."""
    options = {name: getattr(tool, name) for name in _NAMES[kind]}
    given = {name: raw for name, raw in options.items() if bytes(raw).strip() not in (b"", b"null")}
    for name, raw in given.items():
        read_json_value(raw, f"{path}.{name}")
    with prefix_param(path):
        ParsedBody(msgspec.json.encode(given)).decode(_SCHEMAS[kind])
    return given


def render_hosted_tool(type: str, options: Mapping[str, Raw]) -> bytes:
    """Render a hosted tool as the response object repeats it."""
    fields = [b'"type":' + encode_string(type)]
    # OpenAI's type requires the container.
    if type == "code_interpreter" and "container" not in options:
        options = {"container": Raw(msgspec.json.encode(_DEFAULTS["container"]))}
    for name, raw in options.items():
        if name not in _NOT_ECHOED:
            fields.append(b'"%s":%s' % (name.encode(), minify(raw)))
    return b"{%s}" % b",".join(fields)


def read_partial_images(options: Mapping[str, Raw]) -> int:
    return msgspec.json.decode(options.get("partial_images", b"0"), type=int)


class FittedTool(Struct, frozen=True):
    """The operator's tool with the options of a hosted tool.

    tool: without the arguments that the options set.
    fixed_arguments: these arguments, as a JSON object.
    ignored: names of the options that the tool does not have.
    """

    tool: ListedTool
    fixed_arguments: str
    ignored: tuple[str, ...]


def fit_options(tool: ListedTool, options: Mapping[str, Raw]) -> FittedTool:
    """Set those arguments of a tool that have the names of options."""
    if not options:
        return FittedTool(tool, "{}", ())
    schema = msgspec.json.decode(tool.schema, type=dict[str, Raw])
    properties = decode_or_none(schema.get("properties", Raw()), dict[str, Raw]) or {}
    fixed = {name: raw for name, raw in options.items() if name in properties}
    ignored = tuple(
        name
        for name, raw in options.items()
        if name not in fixed
        and name not in _HONORED_HERE
        and msgspec.json.decode(raw) != _DEFAULTS.get(name)
    )
    if fixed:
        tool = msgspec.structs.replace(tool, schema=_remove_properties(schema, properties, fixed))
    return FittedTool(tool, msgspec.json.encode(fixed).decode(), ignored)


def _remove_properties(
    schema: Mapping[str, Raw], properties: Mapping[str, Raw], names: Collection[str]
) -> str:
    changed: dict[str, object] = dict(schema)
    changed["properties"] = {name: raw for name, raw in properties.items() if name not in names}
    required = decode_or_none(schema.get("required", Raw()), list[str])
    if required is not None:
        changed["required"] = [name for name in required if name not in names]
    return msgspec.json.encode(changed).decode()
