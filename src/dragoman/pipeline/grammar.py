"""Which grammar binds an answer: reasoning first, then the asked-for format or calls of the declared tools."""

from __future__ import annotations

from ..constraints.lark import CallForm, Calls, Thought, compose
from ..constraints.matcher import Compiled
from ..constraints.schema import check_schema
from ..core.errors import RequestError, Unsupported
from ..core.message import CustomTool, FunctionTool, Tool
from ..core.request import Conversation, GenerateRequest, JsonSchema
from ..core.syntax import Piece, ToolFormat
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
        heading="" if model.reasoning is None else model.reasoning.thought.answer,
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
    return Calls(forms, format.between, choice.mode == "required", parallel, format.around, format.leading)


def _form(format: ToolFormat, backend: TokenBackend, tool: Tool, index: int, warnings: list[str]) -> CallForm:
    param = f"tools[{index}].function.parameters"
    if isinstance(tool, CustomTool):
        return _custom_form(format, tool, f"tools[{index}].custom", warnings)
    if tool.parameters is None:
        return CallForm(_pieces(format, tool, param), param, bool(tool.strict))
    try:
        check_schema(tool.parameters, param)
        form = CallForm(_pieces(format, tool, param), param, bool(tool.strict))
        alone = Calls((form,), required=True, around=format.around)
        backend.compiler.compile(compose(backend.tokenizer.special_tokens, calls=alone))
    except RequestError as error:
        if tool.strict:
            raise
        warnings.append(f"{param} is not enforced: {error.message}")
        loose = FunctionTool(tool.name, tool.description, None, tool.strict)
        return CallForm(_pieces(format, loose, param), param, False)
    return form


def _custom_form(format: ToolFormat, tool: CustomTool, param: str, warnings: list[str]) -> CallForm:
    """A pattern holds inside a JSON string too; how a grammar would have to be escaped there nobody can say."""
    if tool.syntax == "lark":
        warnings.append(f"{param}.format is not enforced: only a regex can be; the model is told of the grammar")
    return CallForm(_pieces(format, tool, param), param, True)


def _pieces(format: ToolFormat, tool: Tool, param: str) -> tuple[Piece, ...]:
    """The tool's form. Raises Unsupported, with its place in the request, where there is none."""
    try:
        return format.call(tool)
    except Unsupported as error:
        raise Unsupported(error.message, param=param) from error


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
