"""Which grammar binds an answer: reasoning first, then the asked-for format or calls of the declared tools."""

from __future__ import annotations

from ..constraints.grammar_compiler import CompiledGrammar
from ..constraints.lark import CallForm, ReasoningSection, ToolCallRules, compose_grammar
from ..constraints.schema import check_schema
from ..core.errors import RequestError, Unsupported
from ..core.message import CustomTool, FunctionTool, Tool
from ..core.request import Conversation, GenerateRequest, JsonSchema
from ..core.syntax import SyntaxPiece, ToolFormat
from .models import ServedModel, TokenBackend
from .sampling import ends_in_reasoning, find_callable_tools


def compile_grammar(
    model: ServedModel,
    backend: TokenBackend,
    request: GenerateRequest,
    prompt_tail: str,
    warnings: list[str],
) -> CompiledGrammar | None:
    """Blocking. Raises RequestError naming the schema or pattern that cannot be enforced.

    A schema that is not strict and has a keyword nobody can enforce is loosened to any JSON object, with a
    warning, while the tools may be called freely.
    """
    body = request.constraint
    if isinstance(body, JsonSchema):
        check_schema(body.schema, "response_format.json_schema.schema")
    tools = find_callable_tools(request)
    calls = None if model.tools is None or not tools else _build_calls(model.tools, backend, request, tools, warnings)
    if body is None and calls is None:
        return None
    grammar = compose_grammar(
        backend.tokenizer.special_tokens,
        body=body,
        calls=calls,
        reasoning=_build_reasoning_section(model, backend, request, prompt_tail),
        answer_prefix="" if model.reasoning is None else model.reasoning.syntax.answer_prefix,
    )
    return backend.compiler.compile(grammar)


def _build_calls(
    format: ToolFormat,
    backend: TokenBackend,
    request: GenerateRequest,
    tools: tuple[Tool, ...],
    warnings: list[str],
) -> ToolCallRules:
    assert isinstance(request.prompt, Conversation)
    tool_choice = request.prompt.tool_choice
    declared_tools = list(request.prompt.tools)
    forms = tuple(_build_call_form(format, backend, tool, declared_tools.index(tool), warnings) for tool in tools)
    allows_parallel = request.prompt.parallel_tool_calls and not tool_choice.is_named
    return ToolCallRules(
        forms,
        format.call_separator,
        tool_choice.mode == "required",
        allows_parallel,
        format.section_delimiters,
        format.has_unmarked_calls,
    )


def _build_call_form(
    format: ToolFormat, backend: TokenBackend, tool: Tool, index: int, warnings: list[str]
) -> CallForm:
    param = f"tools[{index}].function.parameters"
    if isinstance(tool, CustomTool):
        return _build_custom_form(format, tool, f"tools[{index}].custom", warnings)
    if tool.parameters is None:
        return CallForm(_build_pieces(format, tool, param), param, bool(tool.strict))
    try:
        check_schema(tool.parameters, param)
        form = CallForm(_build_pieces(format, tool, param), param, bool(tool.strict))
        single_call = ToolCallRules((form,), is_required=True, around=format.section_delimiters)
        backend.compiler.compile(compose_grammar(backend.tokenizer.special_tokens, calls=single_call))
    except RequestError as error:
        if tool.strict:
            raise
        warnings.append(f"{param} is not enforced: {error.message}")
        relaxed_tool = FunctionTool(tool.name, tool.description, None, tool.strict)
        return CallForm(_build_pieces(format, relaxed_tool, param), param, False)
    return form


def _build_custom_form(format: ToolFormat, tool: CustomTool, param: str, warnings: list[str]) -> CallForm:
    """A pattern holds inside a JSON string too; how a grammar would have to be escaped there nobody can say."""
    if tool.syntax == "lark":
        warnings.append(f"{param}.format is not enforced: only a regex can be; the model is told of the grammar")
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
    """None where no reasoning can come: raw prompts, and templates that think only when told to, untold."""
    prompt = request.prompt
    if model.reasoning is None or not isinstance(prompt, Conversation):
        return None
    syntax = model.reasoning.syntax
    if ends_in_reasoning(syntax, prompt_tail):
        return ReasoningSection(syntax, is_open=True)
    enabled = prompt.reasoning.enabled
    is_optional = backend.renderer is not None and not backend.renderer.template.features.supports_thinking
    return ReasoningSection(syntax) if enabled or (enabled is None and is_optional) else None
