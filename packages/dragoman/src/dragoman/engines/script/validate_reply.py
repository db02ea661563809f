"""Validation of a scripted reply against its request. A reply that violates the request
is an error, not adapted.
"""

from __future__ import annotations

import json

from ...core.errors import Unsupported
from ...core.message import CustomTool, FunctionTool
from ...core.request import AnyJsonObject, Conversation, GenerateRequest, JsonSchema, StringChoices
from .script import CallTool, Fail, Part, Refuse, Say, Think, join_pieces


def filter_reasoning(reply: tuple[Part, ...], request: GenerateRequest) -> tuple[Part, ...]:
    """Remove reasoning if the client disabled it."""
    if not isinstance(request.prompt, Conversation):
        return reply
    reasoning = request.prompt.reasoning
    if reasoning.enabled is False or reasoning.effort == "none":
        return tuple(part for part in reply if not isinstance(part, Think))
    return reply


def validate_reply(reply: tuple[Part, ...], request: GenerateRequest) -> None:
    """Raise Unsupported if the reply violates the request's constraints. A reply that
    ends in an error is not validated.
    """
    if any(isinstance(part, Fail) for part in reply):
        return
    calls = [part for part in reply if isinstance(part, CallTool)]
    if isinstance(request.prompt, Conversation):
        _check_calls(calls, request.prompt)
    elif calls:
        raise Unsupported(
            f"The script calls the tool {calls[0].name!r}, but a plain prompt declares no tools.",
            param="prompt",
        )
    has_refusal = any(isinstance(part, Refuse) for part in reply)
    if request.constraint is not None and not calls and not has_refusal:
        text = "".join(join_pieces(part.text) for part in reply if isinstance(part, Say))
        match request.constraint:
            case AnyJsonObject() | JsonSchema():
                schema = request.constraint.schema
                _check_json(text, schema, "The scripted text", "response_format")
            case StringChoices(options):
                if text not in options:
                    message = "The scripted text is not one of the choices that the request allows."
                    raise Unsupported(message, param="response_format")
            case _:
                message = "Scripted replies do not support regular expressions and grammars."
                raise Unsupported(message, param="response_format")


def _check_calls(calls: list[CallTool], prompt: Conversation) -> None:
    choice = prompt.tool_choice
    if not calls:
        if choice.mode == "required":
            raise Unsupported(
                "tool_choice requires a tool call, but the script makes none.", param="tool_choice"
            )
        return
    tools = {tool.name: tool for tool in prompt.tools}
    allowed = tools.keys() if choice.names is None else tools.keys() & set(choice.names)
    for call in calls:
        if call.name not in tools:
            names = ", ".join(sorted(tools)) or "none"
            raise Unsupported(
                f"The script calls the tool {call.name!r}; declared are: {names}.", param="tools"
            )
        if choice.mode == "none" or call.name not in allowed:
            raise Unsupported(
                f"The script calls {call.name!r}, which tool_choice does not allow.",
                param="tool_choice",
            )
        tool = tools[call.name]
        if isinstance(tool, FunctionTool) and tool.strict and tool.parameters is not None:
            _check_json(
                join_pieces(call.arguments),
                tool.parameters,
                f"The arguments of {call.name!r}",
                "tools",
            )
        # As a JSON Schema pattern, so that scripts and constraints are checked by the
        # same regex engine. It is anchored because the tool's pattern must match the
        # whole input, while a schema's pattern matches any part of it.
        elif (
            isinstance(tool, CustomTool) and tool.syntax == "regex" and tool.definition is not None
        ):
            schema = json.dumps({"pattern": f"^(?:{tool.definition})$"})
            _check_json(
                json.dumps(join_pieces(call.arguments)),
                schema,
                f"The input of {call.name!r}",
                "tools",
            )
    if len(calls) > 1 and not prompt.parallel_tool_calls:
        raise Unsupported(
            f"The script makes {len(calls)} tool calls at once, but parallel_tool_calls allows "
            f"only one.",
            param="parallel_tool_calls",
        )


def _check_json(text: str, schema: str, label: str, param: str) -> None:
    # Few requests have schemas, and the library takes long to import.
    from .bounded_schema_validation import SchemaError, validate_text  # noqa: PLC0415

    try:
        validate_text(text, schema)
    except SchemaError as error:
        raise Unsupported(
            f"{label} cannot be returned as requested: {error}.", param=param
        ) from None
