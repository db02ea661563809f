"""Builds the grammar of a response: reasoning first, then the response format or calls of the declared tools."""

from __future__ import annotations

from typing import NamedTuple

import anyio.to_thread

from ..constraints.grammar_compiler import CompiledGrammar
from ..constraints.lark import CallForm, ConstraintGrammar, ReasoningSection, ToolCallRules, compose_grammar
from ..constraints.schema import check_schema
from ..core.errors import RequestError, Unsupported
from ..core.message import CustomTool, FunctionTool, Tool
from ..core.request import Conversation, GenerateRequest, JsonSchema
from ..core.syntax import SyntaxPiece, ToolFormat
from .models import ServedModel, TokenBackend
from .sampling import ends_in_reasoning, find_callable_tools


async def compile_grammar(
    model: ServedModel,
    backend: TokenBackend,
    request: GenerateRequest,
    tool_format: ToolFormat | None,
    prompt_tail: str,
    warnings: list[str],
) -> CompiledGrammar | None:
    """Compile the grammar that constrains a response; None for free text.

    A non-strict schema with a keyword that cannot be enforced is relaxed to any JSON object, with a warning, while tool
    calls are optional.

    Raises:
        RequestError: a schema or pattern cannot be enforced; the message names it.
    """
    tools = find_callable_tools(request)
    calls = (
        None if tool_format is None or not tools else await _build_calls(tool_format, backend, request, tools, warnings)
    )

    def compose_whole() -> ConstraintGrammar | None:
        body = request.constraint
        if isinstance(body, JsonSchema):
            check_schema(body.schema, "response_format.json_schema.schema")
        if body is None and calls is None:
            return None
        return compose_grammar(
            backend.tokenizer.special_tokens,
            body=body,
            calls=calls,
            reasoning=_build_reasoning_section(model, backend, request, prompt_tail),
            answer_prefix="" if model.reasoning is None else model.reasoning.syntax.answer_prefix,
        )

    grammar = await anyio.to_thread.run_sync(compose_whole)
    return None if grammar is None else await backend.compiler.compile(grammar)


async def _build_calls(
    format: ToolFormat,
    backend: TokenBackend,
    request: GenerateRequest,
    tools: tuple[Tool, ...],
    warnings: list[str],
) -> ToolCallRules:
    assert isinstance(request.prompt, Conversation)
    tool_choice = request.prompt.tool_choice
    declared_tools = list(request.prompt.tools)
    params = [f"tools[{declared_tools.index(tool)}]" for tool in tools]

    def compose_each() -> list[_Composed]:
        each = zip(tools, params, strict=True)
        return [_compose_tool(format, backend, tool, param, warnings) for tool, param in each]

    forms = [await _enforce(format, backend, composed) for composed in await anyio.to_thread.run_sync(compose_each)]
    warnings += [warning for _, warning in forms if warning is not None]
    allows_parallel = request.prompt.parallel_tool_calls and not tool_choice.is_named
    called = tuple(form for form, _ in forms)
    return ToolCallRules(
        called,
        format.call_separator,
        tool_choice.mode == "required",
        allows_parallel,
        format.section_delimiters,
        format.has_unmarked_calls,
    )


class _Composed(NamedTuple):
    """A tool with its form and the grammar of this form alone, or the error of a schema that cannot be enforced.

    Without form and error there is nothing to compile.
    """

    tool: Tool
    param: str
    form: CallForm | None
    grammar: ConstraintGrammar | None = None
    error: RequestError | None = None


def _compose_tool(format: ToolFormat, backend: TokenBackend, tool: Tool, place: str, warnings: list[str]) -> _Composed:
    param = f"{place}.function.parameters"
    if isinstance(tool, CustomTool):
        return _Composed(tool, param, _build_custom_form(format, tool, f"{place}.custom", warnings))
    if tool.parameters is None:
        return _Composed(tool, param, CallForm(_build_pieces(format, tool, param), param, bool(tool.strict)))
    try:
        check_schema(tool.parameters, param)
        form = CallForm(_build_pieces(format, tool, param), param, bool(tool.strict))
        alone = ToolCallRules((form,), is_required=True, around=format.section_delimiters)
        return _Composed(tool, param, form, compose_grammar(backend.tokenizer.special_tokens, calls=alone))
    except RequestError as error:
        return _Composed(tool, param, None, error=error)


async def _enforce(format: ToolFormat, backend: TokenBackend, composed: _Composed) -> tuple[CallForm, str | None]:
    """The tool's form, and a warning where its schema is not enforced. Raises RequestError if it is strict."""
    tool, error = composed.tool, composed.error
    try:
        if composed.grammar is not None:
            await backend.compiler.compile(composed.grammar)
    except RequestError as not_compiled:
        error = not_compiled
    if error is None:
        assert composed.form is not None
        return composed.form, None
    assert isinstance(tool, FunctionTool)
    if tool.strict:
        raise error
    loose = FunctionTool(tool.name, tool.description, None, tool.strict)
    warning = f"{composed.param} is not enforced: {error.message}"
    return CallForm(_build_pieces(format, loose, composed.param), composed.param, False), warning


def _build_custom_form(format: ToolFormat, tool: CustomTool, param: str, warnings: list[str]) -> CallForm:
    """The form of a custom tool. A regex also holds inside a JSON string; a grammar cannot be escaped for one."""
    if tool.syntax == "lark":
        warnings.append(f"{param}.format is not enforced: only a regex can be; the prompt shows the grammar")
    return CallForm(_build_pieces(format, tool, param), param, True)


def _build_pieces(format: ToolFormat, tool: Tool, param: str) -> tuple[SyntaxPiece, ...]:
    """The tool's form. Raises Unsupported, with its place in the request, where there is none."""
    try:
        return format.build_call_syntax(tool)
    except Unsupported as error:
        raise Unsupported(error.message, param=param) from error


def _build_reasoning_section(
    model: ServedModel, backend: TokenBackend, request: GenerateRequest, prompt_tail: str
) -> ReasoningSection | None:
    """The reasoning section of the grammar.

    None where no reasoning can occur: raw prompts, and templates whose reasoning is off by default and was not enabled.
    """
    prompt = request.prompt
    if model.reasoning is None or not isinstance(prompt, Conversation):
        return None
    syntax = model.reasoning.syntax
    if ends_in_reasoning(syntax, prompt_tail):
        return ReasoningSection(syntax, is_open=True)
    enabled = prompt.reasoning.enabled
    is_optional = backend.renderer is not None and not backend.renderer.template.features.supports_thinking
    return ReasoningSection(syntax) if enabled or (enabled is None and is_optional) else None
