"""Which grammar binds an answer: reasoning first, then the asked-for format or calls of the declared tools."""

from __future__ import annotations

from typing import NamedTuple

import anyio.to_thread

from ..constraints.lark import CallForm, Calls, Grammar, Thought, compose
from ..constraints.matcher import Compiled
from ..constraints.schema import check_schema
from ..core.errors import RequestError, Unsupported
from ..core.message import CustomTool, FunctionTool, Tool
from ..core.request import Conversation, GenerateRequest, JsonSchema
from ..core.syntax import Piece, ToolFormat
from .choosing import callable_tools, opened
from .models import ServedModel, TokenBackend


async def compose_for(
    model: ServedModel,
    backend: TokenBackend,
    request: GenerateRequest,
    tail: str,
    warnings: list[str],
) -> Compiled | None:
    """Raises RequestError naming the schema or pattern that cannot be enforced.

    A schema that is not strict and has a keyword nobody can enforce is loosened to any JSON object, with a
    warning, while the tools may be called freely.
    """
    tools = callable_tools(request)
    calls = None if model.tools is None or not tools else await _calls(model.tools, backend, request, tools, warnings)

    def compose_whole() -> Grammar | None:
        body = request.constraint
        if isinstance(body, JsonSchema):
            check_schema(body.schema, "response_format.json_schema.schema")
        if body is None and calls is None:
            return None
        return compose(
            backend.tokenizer.special_tokens,
            body=body,
            calls=calls,
            thought=_thought(model, backend, request, tail),
            heading="" if model.reasoning is None else model.reasoning.thought.answer,
        )

    grammar = await anyio.to_thread.run_sync(compose_whole)
    return None if grammar is None else await backend.compiler.compile(grammar)


async def _calls(
    format: ToolFormat,
    backend: TokenBackend,
    request: GenerateRequest,
    tools: tuple[Tool, ...],
    warnings: list[str],
) -> Calls:
    assert isinstance(request.prompt, Conversation)
    choice = request.prompt.tool_choice
    declared = list(request.prompt.tools)
    params = [f"tools[{declared.index(tool)}]" for tool in tools]

    def compose_each() -> list[_Composed]:
        each = zip(tools, params, strict=True)
        return [_compose_tool(format, backend, tool, param, warnings) for tool, param in each]

    forms = [await _enforce(format, backend, made) for made in await anyio.to_thread.run_sync(compose_each)]
    warnings += [warning for _, warning in forms if warning is not None]
    parallel = request.prompt.parallel_tool_calls and not choice.named
    called = tuple(form for form, _ in forms)
    return Calls(called, format.between, choice.mode == "required", parallel, format.around, format.leading)


class _Composed(NamedTuple):
    """A tool with its form and the grammar of this form alone, or the error of a schema that cannot be enforced.

    Without either there is nothing to compile.
    """

    tool: Tool
    param: str
    form: CallForm | None
    grammar: Grammar | None = None
    error: RequestError | None = None


def _compose_tool(format: ToolFormat, backend: TokenBackend, tool: Tool, place: str, warnings: list[str]) -> _Composed:
    param = f"{place}.function.parameters"
    if isinstance(tool, CustomTool):
        return _Composed(tool, param, _custom_form(format, tool, f"{place}.custom", warnings))
    if tool.parameters is None:
        return _Composed(tool, param, CallForm(_pieces(format, tool, param), param, bool(tool.strict)))
    try:
        check_schema(tool.parameters, param)
        form = CallForm(_pieces(format, tool, param), param, bool(tool.strict))
        alone = Calls((form,), required=True, around=format.around)
        return _Composed(tool, param, form, compose(backend.tokenizer.special_tokens, calls=alone))
    except RequestError as error:
        return _Composed(tool, param, None, error=error)


async def _enforce(format: ToolFormat, backend: TokenBackend, made: _Composed) -> tuple[CallForm, str | None]:
    """The tool's form, and a warning where its schema is not enforced. Raises RequestError if it is strict."""
    tool, error = made.tool, made.error
    try:
        if made.grammar is not None:
            await backend.compiler.compile(made.grammar)
    except RequestError as not_compiled:
        error = not_compiled
    if error is None:
        assert made.form is not None
        return made.form, None
    assert isinstance(tool, FunctionTool)
    if tool.strict:
        raise error
    loose = FunctionTool(tool.name, tool.description, None, tool.strict)
    warning = f"{made.param} is not enforced: {error.message}"
    return CallForm(_pieces(format, loose, made.param), made.param, False), warning


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
