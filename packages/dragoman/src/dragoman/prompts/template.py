"""Chat templates: loading, compiling, feature detection and rendering under a budget;
fill-in-the-middle prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import jinja2
import msgspec
from jinja2 import meta, nodes
from msgspec import Struct

from ..core.errors import RequestError
from .sandbox import Budget, Sandbox, SandboxedTemplate
from .tokenizer import HfTokenizer

# Feature detection, from the template's syntax tree and by rendering probes.

# No template writes this text by itself.
_NEEDLE = "Qqneedleqq"
_USER: dict[str, Any] = {"role": "user", "content": "Hello"}

GENERATION_MARK = "dragoman_generation_mark"
"""The variable whose value is written where the generation prompt begins; if it is not
set, nothing is written.
"""
_GENERATION_PROMPT = "add_generation_prompt"

RenderProbe = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""A function that renders messages and tools; raises RequestError."""


class TemplateFeatures(Struct, frozen=True):
    """The features of a chat template.

    accepts_strings: the content of a message may be a string.
    accepts_parts: the content of a message may be a list of `{"type": "text", "text":
        ...}`.
    needs_string_arguments: a call's arguments must be JSON text, not an object:
        Functionary v3.2 concatenates them.
    accepts_null_content: the content of a message with tool calls may be None.
    supports_developer: the template handles the role `developer`.
    supports_tools: the template renders tools.
    variables: names of the variables that the template reads, except those that every
        template has.
    fields: names of attributes and keys that the template reads anywhere.
    literals: texts that the template writes or compares with.
    split_separators: separators that the template passes to `split`.
    replaces_text: the template calls `replace` on strings.
    marks_generation: the template writes `GENERATION_MARK` where the generation prompt
        begins; see `insert_generation_mark`.
    """

    accepts_strings: bool
    accepts_parts: bool
    needs_string_arguments: bool
    accepts_null_content: bool
    supports_developer: bool
    supports_tools: bool
    variables: frozenset[str]
    fields: frozenset[str]
    literals: frozenset[str]
    split_separators: frozenset[str]
    replaces_text: bool
    marks_generation: bool = False

    @property
    def supports_thinking(self) -> bool:
        return bool(self.variables & {"enable_thinking", "thinking"})

    @property
    def supports_reasoning_effort(self) -> bool:
        return "reasoning_effort" in self.variables

    @property
    def supports_reasoning(self) -> bool:
        """Whether messages may carry reasoning in a field of their own."""
        return bool(self.fields & {"reasoning_content", "reasoning", "thinking"})


def detect_features(
    tree: nodes.Template, variables: Set[str], render: RenderProbe
) -> TemplateFeatures:
    """Detect the features of a template.

    variables: names that the template reads, without those that every template has.
    """
    fields = {node.attr for node in tree.find_all(nodes.Getattr)}
    fields |= {
        str(node.arg.value)
        for node in tree.find_all(nodes.Getitem)
        if isinstance(node.arg, nodes.Const)
    }
    constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    literals = {node.data for node in tree.find_all(nodes.TemplateData)}
    splits = [
        call
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Getattr) and call.node.attr == "split"
    ]
    split_arguments = [call.args[0] for call in splits if call.args]
    # Probed: templates concatenate or iterate arguments in too many ways for a search
    #     of the syntax tree.
    needs_text = not _renders_call(render, {"a": 1}) and _renders_call(render, '{"a": 1}')
    fields |= constants  # `message.get("reasoning_content")`, `"reasoning" in message`
    return TemplateFeatures(
        accepts_strings=_shows_needle(render, [{"role": "user", "content": _NEEDLE}]),
        accepts_parts=_shows_needle(
            render, [{"role": "user", "content": [{"type": "text", "text": _NEEDLE}]}]
        ),
        needs_string_arguments=needs_text,
        accepts_null_content=_renders_call(
            render, '{"a": 1}' if needs_text else {"a": 1}, content=None
        ),
        supports_developer="developer" in constants
        and _shows_needle(render, [{"role": "developer", "content": _NEEDLE}, _USER]),
        supports_tools=_shows_needle(render, [_USER], [_build_tool()]),
        variables=frozenset(variables),
        fields=frozenset(fields),
        literals=frozenset(constants | literals),
        split_separators=frozenset(
            str(node.value) for node in split_arguments if isinstance(node, nodes.Const)
        ),
        replaces_text=any(node.name == "replace" for node in tree.find_all(nodes.Filter))
        or "replace" in fields,
    )


def insert_generation_mark(tree: nodes.Template) -> bool:
    """Insert the mark before the block that writes the generation prompt; return
    whether that block was found.

    It is found if the template ends with an `if` block on `add_generation_prompt` and
    reads this variable nowhere else. The text before the mark is then the text that the
    template writes without a generation prompt.
    """
    reads = [
        node
        for node in tree.find_all(nodes.Name)
        if node.name in (_GENERATION_PROMPT, GENERATION_MARK)
    ]
    last = tree.body[-1] if tree.body else None
    # With any other structure the mark could end up in the middle of the conversation.
    if not isinstance(last, nodes.If) or last.elif_ or last.else_ or len(reads) != 1:
        return False
    test = last.test
    while isinstance(test, nodes.And):
        # `{% if add_generation_prompt and ... %}`: the first operand decides whether
        # the block is the generation prompt.
        test = test.left
    if test is not reads[0]:
        return False
    mark = nodes.Output([nodes.Name(GENERATION_MARK, "load")]).set_lineno(last.lineno)
    assert tree.environment is not None
    tree.body.insert(-1, mark.set_environment(tree.environment))
    return True


def _shows_needle(
    render: RenderProbe, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> bool:
    """Whether the needle is rendered, and not as part of the Python repr of its
    container.
    """
    try:
        text = render(messages, tools)
    except RequestError:
        return False
    return _NEEDLE in text and not any(quote + "text" + quote + ":" in text for quote in "'\"")


def _renders_call(
    render: RenderProbe, arguments: dict[str, Any] | str, content: str | None = ""
) -> bool:
    """Whether the template renders a tool call with its result, without writing "None"
    anywhere.
    """
    call = {
        "id": "call00000",
        "type": "function",
        "function": {"name": _NEEDLE, "arguments": arguments},
    }
    assistant: dict[str, Any] = {"role": "assistant", "content": content, "tool_calls": [call]}
    result = {"role": "tool", "content": "1", "tool_call_id": "call00000", "name": _NEEDLE}
    try:
        text = render([_USER, assistant, result], [_build_tool()])
    except RequestError:
        return False
    # A template that prints the null content of a call was not written for it.
    return "None" not in text


def _build_tool() -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "A number."}},
    }
    function = {"name": _NEEDLE, "description": "A tool.", "parameters": parameters}
    return {"type": "function", "function": function}


# Compiling and rendering.

_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions that a template can raise for messages it was not written for."""


class TemplateLimits(Struct, frozen=True):
    """The limits of a template and of each rendering.

    characters: characters that a rendering may create.
    per_character: additional characters per character of the input.
    steps: loop iterations and macro calls per rendering.
    seconds: wall-clock time per rendering.
    source: characters of the template itself.
    """

    characters: int = 4_000_000
    per_character: int = 16
    steps: int = 20_000_000
    seconds: float = 10.0
    source: int = 1_000_000


_PROBE = TemplateLimits(characters=200_000, steps=20_000, seconds=1.0)
"""Limits of feature probes, whose messages are short."""


class Template(Protocol):
    """A template, whether it is rendered in this process or in a worker process.

    source: Jinja text.
    special_tokens: constants such as `bos_token` and `eos_token`.
    reserved_names: variables that a client must not set.
    """

    @property
    def source(self) -> str: ...

    @property
    def special_tokens(self) -> Mapping[str, str]: ...

    @property
    def reserved_names(self) -> frozenset[str]: ...

    @property
    def features(self) -> TemplateFeatures: ...


class ChatTemplate:
    """A compiled template. Thread-safe.

    special_tokens: constants such as `bos_token` and `eos_token`.

    Raises:
        RequestError: with param "chat_template", the template does not compile.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
        limits: TemplateLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.special_tokens: Mapping[str, str] = MappingProxyType(dict(special_tokens))
        self._limits = limits or TemplateLimits()
        self._clock = clock
        self._sandbox = Sandbox()
        if len(source) > self._limits.source:
            raise RequestError("The chat template is too long.", param="chat_template")
        try:
            # Parsed twice: hooks change the tree in place, and features are detected
            # from the template as it was written.
            tree = self._sandbox.parse(source)
            hooked_tree = self._sandbox.parse_with_hooks(source)
            variables = meta.find_undeclared_variables(hooked_tree)
            marks_generation = insert_generation_mark(hooked_tree)
            self._code = self._sandbox.compile(hooked_tree)
        except jinja2.TemplateError as error:
            raise RequestError(
                f"The chat template does not compile: {error}", param="chat_template"
            ) from error
        except (RecursionError, SyntaxError, MemoryError) as error:
            raise RequestError(
                "The chat template is nested too deeply.", param="chat_template"
            ) from error
        self.reserved_names: frozenset[str] = (
            _RESERVED | self.special_tokens.keys() | self._sandbox.globals.keys()
        )
        # `documents` is reserved, but stays in the features: they show whether the
        # documents of a request are used.
        variables_read = variables - (self.reserved_names - {"documents"})
        # A pool, since building a template costs as much as a short rendering.
        self._idle_templates: list[SandboxedTemplate] = []
        features = detect_features(tree, variables_read, self._render_probe)
        self.features = msgspec.structs.replace(features, marks_generation=marks_generation)

    def render(self, variables: Mapping[str, Any], *, now: datetime, characters: int = 0) -> str:
        """Render the template.

        variables: `messages`, `tools`, `add_generation_prompt`, ...
        characters: length of the text in the variables; the budget grows with it.

        Raises:
            RequestError: with param "messages", the template rejects the messages or
                fails.
        """
        return self._render(variables, now, characters, self._limits)

    def _render(
        self, variables: Mapping[str, Any], now: datetime, characters: int, limits: TemplateLimits
    ) -> str:
        max_chars = limits.characters + limits.per_character * characters
        budget = Budget(max_chars, limits.steps, limits.seconds, self._clock)
        try:
            # A template has one budget, so it renders one prompt at a time; other
            # threads reuse it when it is idle.
            sandboxed = self._idle_templates.pop()
        except IndexError:
            sandboxed = self._sandbox.build_template(self._code)
        sandboxed.environment.budget = budget
        try:
            text = sandboxed.template.render(
                {**self.special_tokens, "strftime_now": now.strftime, **variables}
            )
            self._idle_templates.append(sandboxed)
            return text
        except jinja2.TemplateError as error:
            message = f"The chat template fails on these messages: {error.message}"
            # `raise_exception` in the template: the message is the template author's.
            if type(error) is jinja2.TemplateError:
                message = error.message or "The chat template rejects these messages."
            raise RequestError(message, param="messages") from error
        except _FAILURES as error:
            raise RequestError(
                f"The chat template fails on these messages: {error}", param="messages"
            ) from error

    def _render_probe(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> str:
        variables = {"messages": messages, "tools": tools, "add_generation_prompt": True}
        return self._render(variables, _EPOCH, 0, _PROBE)


def load_template(directory: Path, name: str = "default") -> ChatTemplate | None:
    """Load the chat template of a model's directory; return None if it has none of this
    name.

    The first of these counts: `chat_template.jinja` (or
    `additional_chat_templates/<name>.jinja`), the field `chat_template` of
    `chat_template.json`, the same field of `tokenizer_config.json`.

    Raises:
        RequestError: the template does not compile.
        ValueError: a configuration file is invalid.
    """
    path = directory / "tokenizer_config.json"
    config = _decode_config(path.read_bytes()) if path.is_file() else _Config()
    template_path = directory / "chat_template.jinja"
    if name != "default":
        template_path = directory / "additional_chat_templates" / f"{name}.jinja"
    # Transformers stored templates of multimodal models here until 2025.
    processor_path = directory / "chat_template.json"
    source: str | None = None
    if template_path.is_file():
        source = template_path.read_text(encoding="utf-8")
    elif processor_path.is_file():
        source = _decode_config(processor_path.read_bytes()).find_template(name)
    source = source or config.find_template(name)
    return None if source is None else ChatTemplate(source, config.list_special_tokens())


class TokenizerInfo(Struct, frozen=True, omit_defaults=True):
    """The fields of tokenizer_config.json that clients request, under their own names."""

    tokenizer_class: str
    bos_token: str | None = None
    eos_token: str | None = None
    unk_token: str | None = None
    pad_token: str | None = None
    sep_token: str | None = None
    cls_token: str | None = None
    mask_token: str | None = None
    chat_template: str | None = None


def load_tokenizer_info(directory: Path, template: ChatTemplate | None = None) -> TokenizerInfo:
    """Load the fields. template: the served template. Raises ValueError for an invalid
    configuration.
    """
    path = directory / "tokenizer_config.json"
    config = _decode_config(path.read_bytes()) if path.is_file() else _Config()
    source = None if template is None else template.source
    return TokenizerInfo(
        config.tokenizer_class, **config.list_special_tokens(), chat_template=source
    )


class _NamedTemplate(Struct):
    name: str
    template: str


class _Token(Struct):
    content: str


class _Config(Struct):
    """The fields of tokenizer_config.json that templates need."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    chat_template: str | list[_NamedTemplate] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: str | _Token | None = None
    pad_token: str | _Token | None = None
    sep_token: str | _Token | None = None
    cls_token: str | _Token | None = None
    mask_token: str | _Token | None = None

    def find_template(self, name: str) -> str | None:
        if isinstance(self.chat_template, list):
            return next(
                (entry.template for entry in self.chat_template if entry.name == name), None
            )
        return self.chat_template if name == "default" else None

    def list_special_tokens(self) -> dict[str, str]:
        tokens = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "unk_token": self.unk_token,
            "pad_token": self.pad_token,
            "sep_token": self.sep_token,
            "cls_token": self.cls_token,
            "mask_token": self.mask_token,
        }
        return {
            name: t if isinstance(t, str) else t.content
            for name, t in tokens.items()
            if t is not None
        }


def _decode_config(raw: bytes) -> _Config:
    try:
        return msgspec.json.decode(raw, type=_Config)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"tokenizer_config.json: {error}") from error


_EPOCH = datetime(2000, 1, 1)
_RESERVED = frozenset(
    [
        *(
            "messages",
            "conversation",
            "tools",
            "documents",
            "chat_template",
            "tokenize",
            "add_generation_prompt",
        ),
        *(
            "continue_final_message",
            "padding",
            "truncation",
            "max_length",
            "strftime_now",
            "bos_token",
            "eos_token",
        ),
        *(
            "unk_token",
            "pad_token",
            "sep_token",
            "cls_token",
            "mask_token",
            "additional_special_tokens",
            "self",
        ),
        *("loop", "caller", "varargs", "kwargs", GENERATION_MARK),
    ]
)
"""Variables that a client must not set."""


# Fill-in-the-middle: prompts for models that were trained to write the text between a
# prefix and a suffix.


class InfillTokens(Struct, frozen=True):
    """The control tokens of a model family for fill-in-the-middle.

    prefix, suffix, middle: tokens before these parts of the prompt.
    ends: other tokens that end an answer.
    """

    prefix: str
    suffix: str
    middle: str
    ends: tuple[str, ...] = ()


INFILL_FAMILIES = (
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma; file separators end an answer.
    InfillTokens(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    # StarCoder2, SantaCoder, Granite Code
    InfillTokens(
        "<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<file_sep>", "<repo_name>")
    ),
    InfillTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>",)),
    # DeepSeek-Coder: the "hole" token is where the suffix begins.
    InfillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # Seed-Coder
    InfillTokens("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
    # Code Llama
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
)


class InfillPrompt(Struct, frozen=True):
    """A prompt for the text between two others.

    ids: the prompt.
    stop_ids: tokens besides end-of-sequence that end the answer.
    """

    ids: tuple[int, ...]
    stop_ids: tuple[int, ...]


def find_infill_tokens(special_tokens: Mapping[str, int]) -> InfillTokens | None:
    """Return the first family whose three tokens are in the vocabulary; None if there
    is none.
    """
    return next(
        (
            family
            for family in INFILL_FAMILIES
            if all(name in special_tokens for name in (family.prefix, family.suffix, family.middle))
        ),
        None,
    )


def build_infill_prompt(
    tokenizer: HfTokenizer, tokens: InfillTokens, prefix: str, suffix: str
) -> InfillPrompt:
    """Build the prompt. Names of control tokens in the texts are plain text."""
    special = tokenizer.special_tokens
    ids = (
        *tokenizer.wrapping.prefix,
        special[tokens.prefix],
        *tokenizer.encode(prefix, special=False),
        special[tokens.suffix],
        *tokenizer.encode(suffix, special=False),
        special[tokens.middle],
    )
    ends = (tokens.prefix, tokens.suffix, tokens.middle, *tokens.ends)
    return InfillPrompt(ids, tuple(special[name] for name in ends if name in special))
