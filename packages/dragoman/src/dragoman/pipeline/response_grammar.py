"""The grammar that constrains a response.

The reasoning comes first, then the response format or calls of the declared tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import anyio.to_thread
import msgspec

from ..constraints.grammar_matcher import CompiledGrammar
from ..constraints.json_schema import parse_schema
from ..constraints.response_grammar import (
    CallForm,
    ConstraintGrammar,
    ReasoningSection,
    ToolCallRules,
    compose_grammar,
)
from ..core.errors import RequestError, Unsupported
from ..core.message import CustomTool, FunctionTool, Tool
from ..core.request import Constraint, Conversation, GenerateRequest, JsonSchema
from ..core.syntax import (
    Alternation,
    FreeText,
    LiteralText,
    OptionalPieces,
    RepeatedPieces,
    SyntaxPiece,
    ToolFormat,
)
from .composed_grammars import ComposedGrammar, GrammarSource
from .engine_backends import TokenBackend
from .pattern_relaxation import relax_patterns
from .sampling import ends_in_reasoning, find_callable_tools
from .served_model import ServedModel

_Compile = Callable[[ConstraintGrammar], Awaitable[CompiledGrammar]]

_STRICT_FIELDS = frozenset(
    {"response_format", "text.format", "output_config.format", "output_format"}
)
"""The fields whose schemas are strict because the client or its API says so. Those of
vLLM, SGLang and TGI have no `strict`: a pattern may be left out of them.
"""


async def compile_grammar(
    model: ServedModel,
    backend: TokenBackend,
    request: GenerateRequest,
    tool_format: ToolFormat | None,
    prompt_tail: str,
    warnings: list[str],
    *,
    owner: str = "",
    is_strict: bool = False,
) -> CompiledGrammar | None:
    """Compile the grammar that constrains a response; None for free text.

    owner: see `BoundedCompiler.compile`.
    is_strict: a keyword that cannot be enforced is an error in non-strict schemas too.
    Otherwise the rest of such a schema is enforced, and a warning names the keyword or
    the regular expression; a tool's schema that cannot be compiled without its regular
    expressions either is relaxed to any JSON object.

    Raises:
        RequestError: a schema or pattern cannot be enforced; the message names it.
    """
    prompt = request.prompt
    conversation = prompt if isinstance(prompt, Conversation) else None
    source = GrammarSource(
        owner=owner,
        constraint=request.constraint,
        constraint_param=request.constraint_param,
        tools=() if conversation is None else conversation.tools,
        tool_choice=None if conversation is None else conversation.tool_choice,
        allows_parallel=conversation is None or conversation.parallel_tool_calls,
        reasoning=_build_reasoning_section(model, backend, request, prompt_tail),
        is_strict=is_strict,
    )
    compile_fairly = partial(backend.compiler.compile, owner=owner)
    composed = backend.grammars.find(source)
    if composed is None:
        reasoning = model.formats.reasoning
        answer_prefix = "" if reasoning is None else reasoning.syntax.answer_prefix
        composed = await _compose(
            backend, compile_fairly, request, source, tool_format, answer_prefix
        )
        backend.grammars.add(source, composed)
    warnings += composed.warnings
    return None if composed.grammar is None else await compile_fairly(composed.grammar)


async def _compose(
    backend: TokenBackend,
    compile_fairly: _Compile,
    request: GenerateRequest,
    source: GrammarSource,
    tool_format: ToolFormat | None,
    answer_prefix: str,
) -> ComposedGrammar:
    """Compose the grammar of a response, and compile its parts.

    Raises RequestError, as `compile_grammar`.
    """
    tools = find_callable_tools(request)
    warnings: list[str] = []
    relaxations: list[_Relaxation | None] = []
    calls = (
        None
        if tool_format is None or not tools
        else await _build_calls(
            tool_format, backend, compile_fairly, request, tools, warnings, relaxations
        )
    )

    def compose_whole(body: Constraint | None) -> ConstraintGrammar | None:
        if isinstance(body, JsonSchema):
            parse_schema(body.schema, request.constraint_param)
        if body is None and calls is None:
            return None
        return compose_grammar(
            backend.tokenizer.special_tokens,
            body=body,
            body_param=request.constraint_param,
            calls=calls,
            reasoning=source.reasoning,
            answer_prefix=answer_prefix,
        )

    # Tools' schemas can be megabytes long, and their conversion must not block the
    # event loop.
    grammar = await anyio.to_thread.run_sync(compose_whole, request.constraint)
    if grammar is None:
        return ComposedGrammar(None, tuple(warnings))
    body = request.constraint
    param = request.constraint_param
    if isinstance(body, JsonSchema) and not (body.strict and param in _STRICT_FIELDS):
        try:
            unenforced = await _compile_body(compile_fairly, grammar, param)
        except RequestError:
            relaxed = await relax_patterns(
                body.schema,
                param,
                partial(_compile_probe, compile_fairly),
                must_be_valid=body.strict,
            )
            if relaxed is None:
                raise
            body = msgspec.structs.replace(body, schema=relaxed.schema)
            grammar = await anyio.to_thread.run_sync(compose_whole, body)
            assert grammar is not None
            unenforced = (*relaxed.removed, *await _compile_body(compile_fairly, grammar, param))
        relaxations.append(_Relaxation.of(param, unenforced))
    for relaxation in filter(None, relaxations):
        if source.is_strict:
            raise Unsupported(
                f"This server is strict (--strict): {relaxation.text}.", param=relaxation.param
            )
        warnings.append(relaxation.text)
    return ComposedGrammar(grammar, tuple(warnings))


class _Relaxation(NamedTuple):
    """A schema that is not fully enforced.

    param: its field in the request.
    text: a sentence that says what is not enforced.
    """

    param: str
    text: str

    @classmethod
    def of(cls, param: str, unenforced: tuple[str, ...]) -> _Relaxation | None:
        return (
            cls(param, f"{param} is not fully enforced: {', '.join(unenforced)}")
            if unenforced
            else None
        )


async def _compile_body(
    compile_fairly: _Compile, grammar: ConstraintGrammar, param: str
) -> tuple[str, ...]:
    """Compile the part of the response format, and return what it does not enforce.

    Raises RequestError if it cannot be compiled.
    """
    parts = tuple((part_param, text) for part_param, text in grammar.parts if part_param == param)
    # Required calls are the whole answer, whatever its format.
    if not parts:
        return ()
    # The part is compiled alone; it is cached.
    part = ConstraintGrammar(parts[0][1], parts, grammar.is_cheap, grammar.costly)
    return (await compile_fairly(part)).warnings


async def _compile_probe(compile_fairly: _Compile, schema: str) -> None:
    grammar = compose_grammar({}, body=JsonSchema(schema))
    await compile_fairly(grammar)


async def _build_calls(
    format: ToolFormat,
    backend: TokenBackend,
    compile_fairly: _Compile,
    request: GenerateRequest,
    tools: tuple[Tool, ...],
    warnings: list[str],
    relaxations: list[_Relaxation | None],
) -> ToolCallRules:
    assert isinstance(request.prompt, Conversation)
    tool_choice = request.prompt.tool_choice
    declared_tools = list(request.prompt.tools)
    # Errors name a tool's position in the request's list, of which `tools` may be a
    # subset.
    params = [f"tools[{declared_tools.index(tool)}]" for tool in tools]

    # Composing and checking takes milliseconds per schema, so it runs in a thread and
    # does not block streams.
    def compose_tools() -> list[_Composed]:
        pairs = zip(tools, params, strict=True)
        return [_compose_tool(format, backend, tool, param, warnings) for tool, param in pairs]

    forms = [
        await _enforce(format, backend, compile_fairly, composed)
        for composed in await anyio.to_thread.run_sync(compose_tools)
    ]
    relaxations += [relaxation for _, relaxation in forms]
    return ToolCallRules(
        tuple(form for form, _ in forms),
        format.call_separator,
        tool_choice.mode == "required",
        request.prompt.parallel_tool_calls and not tool_choice.is_named,
        format.section_delimiters,
        format.has_unmarked_calls,
    )


class _Composed(NamedTuple):
    """A tool with the form of its calls, or the error of a schema that cannot be
    enforced.

    form: None if there is an error.
    grammar: the grammar of this form alone; None if there is no schema to compile.
    """

    tool: Tool
    param: str
    form: CallForm | None
    grammar: ConstraintGrammar | None = None
    error: RequestError | None = None


def _compose_tool(
    format: ToolFormat, backend: TokenBackend, tool: Tool, place: str, warnings: list[str]
) -> _Composed:
    param = f"{place}.function.parameters"
    if isinstance(tool, CustomTool):
        custom_param = f"{place}.custom"
        # A regex can be enforced inside a JSON string; a grammar cannot be escaped for
        # one.
        if tool.syntax == "lark":
            warnings.append(
                f"{custom_param}.format is not enforced: only a regex can be; the prompt shows "
                f"the grammar"
            )
        return _Composed(
            tool, param, CallForm(_build_pieces(format, tool, custom_param), custom_param, True)
        )
    if tool.parameters is None:
        return _Composed(
            tool, param, CallForm(_build_pieces(format, tool, param), param, bool(tool.strict))
        )
    try:
        parse_schema(tool.parameters, param)
        form = CallForm(_build_pieces(format, tool, param), param, bool(tool.strict))
        # Each tool is compiled alone first: an error of the joined grammar could not be
        # attributed to one of them.
        rules = ToolCallRules(
            (form,), is_required=True, section_delimiters=format.section_delimiters
        )
        return _Composed(
            tool, param, form, compose_grammar(backend.tokenizer.special_tokens, calls=rules)
        )
    except RequestError as error:
        return _Composed(tool, param, None, error=error)


async def _enforce(
    format: ToolFormat, backend: TokenBackend, compile_fairly: _Compile, composed: _Composed
) -> tuple[CallForm, _Relaxation | None]:
    """Return the tool's form, and the relaxation of its schema, if any.

    Raises RequestError if the tool is strict and its schema cannot be fully enforced.
    """
    tool = composed.tool
    tool_is_strict = isinstance(tool, FunctionTool) and bool(tool.strict)
    try:
        form, unenforced = await _compile_form(compile_fairly, composed)
        if unenforced and tool_is_strict:
            raise Unsupported(
                f"The schema cannot be enforced: {', '.join(unenforced)}.", param=composed.param
            )
        return form, _Relaxation.of(composed.param, unenforced)
    except RequestError as error:
        if tool_is_strict or not isinstance(tool, FunctionTool):
            raise
        return await _relax_form(format, backend, compile_fairly, tool, composed.param, error)


async def _compile_form(
    compile_fairly: _Compile, composed: _Composed
) -> tuple[CallForm, tuple[str, ...]]:
    """Compile a tool's form, and return it with what it does not enforce.

    Raises RequestError if it cannot be compiled.
    """
    unenforced: tuple[str, ...] = ()
    if composed.error is not None:
        raise composed.error
    if composed.grammar is not None:
        unenforced = (await compile_fairly(composed.grammar)).warnings
    assert composed.form is not None
    keywords = dict.fromkeys(_iterate_unenforced(composed.form.pieces))
    return composed.form, unenforced + tuple(
        f"`{keyword}` cannot be enforced in this model's tool call format" for keyword in keywords
    )


async def _relax_form(
    format: ToolFormat,
    backend: TokenBackend,
    compile_fairly: _Compile,
    tool: FunctionTool,
    param: str,
    error: RequestError,
) -> tuple[CallForm, _Relaxation | None]:
    """Return a form that enforces what can be of a schema that is not compiled as it is.

    error: why it is not.
    """
    place = param.removesuffix(".function.parameters")

    async def compile_schema(schema: str) -> tuple[CallForm, tuple[str, ...]]:
        relaxed_tool = msgspec.structs.replace(tool, parameters=schema)
        composed = await anyio.to_thread.run_sync(
            _compose_tool, format, backend, relaxed_tool, place, list[str]()
        )
        return await _compile_form(compile_fairly, composed)

    try:
        relaxed = await relax_patterns(tool.parameters or "", param, compile_schema)
        if relaxed is not None:
            form, unenforced = await compile_schema(relaxed.schema)
            return form, _Relaxation.of(param, (*relaxed.removed, *unenforced))
    except RequestError as relaxed_error:
        error = relaxed_error
    # The call's name and valid JSON are still enforced, so the client can parse it.
    relaxed_tool = FunctionTool(tool.name, tool.description, '{"type":"object"}', tool.strict)
    relaxed_form = CallForm(_build_pieces(format, relaxed_tool, param), param, False)
    text = f"{param} is not enforced: {error.message.rstrip('.')}"
    return relaxed_form, _Relaxation(param, text)


def _iterate_unenforced(pieces: Iterable[SyntaxPiece]) -> Iterator[str]:
    """Yield the keywords that the form of a call does not enforce."""
    for piece in pieces:
        match piece:
            case FreeText(unenforced=keywords) | LiteralText(unenforced=keywords):
                yield from keywords
            case Alternation(options):
                for option in options:
                    yield from _iterate_unenforced(option)
            case OptionalPieces(inner) | RepeatedPieces(inner):
                yield from _iterate_unenforced(inner)
            case _:
                pass


def _build_pieces(format: ToolFormat, tool: Tool, param: str) -> tuple[SyntaxPiece, ...]:
    """Build the pieces of the tool's calls. Raises Unsupported, with the field's name,
    if the format has none.
    """
    try:
        return format.build_call_syntax(tool)
    except Unsupported as error:
        raise Unsupported(error.message, param=param) from error


def _build_reasoning_section(
    model: ServedModel, backend: TokenBackend, request: GenerateRequest, prompt_tail: str
) -> ReasoningSection | None:
    """Build the reasoning section of the grammar.

    Return None if no reasoning can occur: for raw prompts, and for templates whose
    reasoning is off by default and was not enabled.
    """
    prompt = request.prompt
    if model.formats.reasoning is None or not isinstance(prompt, Conversation):
        return None
    syntax = model.formats.reasoning.syntax
    if ends_in_reasoning(syntax, prompt_tail):
        return ReasoningSection(syntax, is_open=True)
    enabled = prompt.reasoning.enabled
    is_optional = (
        backend.renderer is not None and not backend.renderer.template.features.supports_thinking
    )
    return ReasoningSection(syntax) if enabled or (enabled is None and is_optional) else None
