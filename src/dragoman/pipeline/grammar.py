"""Which grammar binds an answer: reasoning first, then the asked-for format or calls of the declared tools."""

from __future__ import annotations

from ..constraints.lark import CallForm, Calls, Thought, compose
from ..constraints.matcher import Compiled
from ..constraints.schema import check_schema
from ..core.errors import RequestError
from ..core.message import CustomTool, FunctionTool, Tool
from ..core.request import Conversation, GenerateRequest, JsonSchema
from ..core.syntax import ToolFormat
from .choosing import callable_tools, opened
from .models import ServedModel, TokenBackend


def compose_for(
    model: ServedModel,
    backend: TokenBackend,
    request: GenerateRequest,
    tail: str,
    warnings: list[str],
) -> Compiled | None:
    """Blocking. Raises RequestError naming the schema or pattern that cannot be enforced.

    A schema that is not strict and has a keyword nobody can enforce is loosened to any JSON object, with a
    warning, while the tools may be called freely.
    """
    body = request.constraint
    if isinstance(body, JsonSchema):
        check_schema(body.schema, "response_format.json_schema.schema")
    tools = callable_tools(request)
    calls = None if model.tools is None or not tools else _calls(model.tools, backend, request, tools, warnings)
    if body is None and calls is None:
        return None
    grammar = compose(
        backend.tokenizer.special_tokens,
        body=body,
        calls=calls,
        thought=_thought(model, backend, request, tail),
    )
    return backend.compiler.compile(grammar)


def _calls(
    format: ToolFormat,
    backend: TokenBackend,
    request: GenerateRequest,
    tools: tuple[Tool, ...],
    warnings: list[str],
) -> Calls:
    assert isinstance(request.prompt, Conversation)
    choice = request.prompt.tool_choice
    declared = list(request.prompt.tools)
    forms = tuple(_form(format, backend, tool, declared.index(tool), warnings) for tool in tools)
    parallel = request.prompt.parallel_tool_calls and not choice.named
    return Calls(forms, format.between, choice.mode == "required", parallel)


def _form(format: ToolFormat, backend: TokenBackend, tool: Tool, index: int, warnings: list[str]) -> CallForm:
    param = f"tools[{index}].function.parameters"
    if isinstance(tool, CustomTool):
        return CallForm(format.call(tool), f"tools[{index}].custom", True)
    form = CallForm(format.call(tool), param, bool(tool.strict))
    if tool.parameters is None:
        return form
    try:
        check_schema(tool.parameters, param)
        backend.compiler.compile(compose(backend.tokenizer.special_tokens, calls=Calls((form,), required=True)))
    except RequestError as error:
        if tool.strict:
            raise
        warnings.append(f"{param} is not enforced: {error.message}")
        loose = FunctionTool(tool.name, tool.description, None, tool.strict)
        return CallForm(format.call(loose), param, False)
    return form


def _thought(model: ServedModel, backend: TokenBackend, request: GenerateRequest, tail: str) -> Thought | None:
    """None where no reasoning can come: raw prompts, and templates that think only when told to, untold."""
    prompt = request.prompt
    if model.reasoning is None or not isinstance(prompt, Conversation):
        return None
    syntax = model.reasoning.thought
    if opened(syntax, tail):
        return Thought(syntax, open=True)
    enabled = prompt.reasoning.enabled
    optional = backend.renderer is not None and not backend.renderer.template.traits.enable_thinking
    return Thought(syntax) if enabled or (enabled is None and optional) else None
