"""A chat template: compiled once, rendered under a budget. Knows no tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import jinja2
import msgspec
from jinja2 import meta
from msgspec import Struct

from ..core.errors import RequestError
from . import capabilities
from .sandbox import Budget, Sandbox, SandboxedTemplate

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
    """The limits of a template.

    characters: characters created per rendering.
    per_character: additional ones per character of the input.
    steps: loop iterations and macro calls.
    seconds: wall-clock time.
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
    """A template, wherever it is rendered. reserved_names: variables that a client must not set."""

    @property
    def source(self) -> str: ...

    @property
    def special_tokens(self) -> Mapping[str, str]: ...

    @property
    def reserved_names(self) -> frozenset[str]: ...

    @property
    def features(self) -> capabilities.TemplateFeatures: ...


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
        self._limits, self._clock = limits or TemplateLimits(), clock
        self._sandbox = Sandbox()
        if len(source) > self._limits.source:
            raise RequestError("The chat template is too long.", param="chat_template")
        try:
            # Parsed twice: hooks change the tree in place, and features are detected from the template as it was
            # written.
            tree, hooked_tree = self._sandbox.parse(source), self._sandbox.parse_with_hooks(source)
            variables = meta.find_undeclared_variables(hooked_tree)
            marks_generation = capabilities.insert_generation_mark(hooked_tree)
            self._code = self._sandbox.compile(hooked_tree)
        except jinja2.TemplateError as error:
            raise RequestError(f"The chat template does not compile: {error}", param="chat_template") from error
        except (RecursionError, SyntaxError, MemoryError) as error:
            raise RequestError("The chat template is nested too deeply.", param="chat_template") from error
        self.reserved_names: frozenset[str] = _RESERVED | self.special_tokens.keys() | self._sandbox.globals.keys()
        # Every template is given documents; whether it reads them decides whether a request's are ignored.
        read = variables - (self.reserved_names - {"documents"})
        # Templates that do not render at the moment: building one costs as much as a short rendering.
        self._idle_templates: list[SandboxedTemplate] = []
        features = capabilities.detect_features(tree, read, self._render_probe)
        self.features = msgspec.structs.replace(features, marks_generation=marks_generation)

    def render(self, variables: Mapping[str, Any], *, now: datetime, characters: int = 0) -> str:
        """Render the template.

        variables: `messages`, `tools`, `add_generation_prompt`, ...
        characters: how much text they hold.

        Raises:
            RequestError: with param "messages", the template rejects the messages or fails.
        """
        return self._render(variables, now, characters, self._limits)

    def _render(self, variables: Mapping[str, Any], now: datetime, characters: int, limits: TemplateLimits) -> str:
        max_chars = limits.characters + limits.per_character * characters
        budget = Budget(max_chars, limits.steps, limits.seconds, self._clock)
        try:
            # A template has one budget, so it renders one prompt at a time; idle ones are reused by other threads.
            sandboxed = self._idle_templates.pop()
        except IndexError:
            sandboxed = self._sandbox.build_template(self._code)
        sandboxed.environment.budget = budget
        try:
            text = sandboxed.template.render({**self.special_tokens, "strftime_now": now.strftime, **variables})
            self._idle_templates.append(sandboxed)
            return text
        except jinja2.TemplateError as error:
            raise RequestError(_describe_error(error), param="messages") from error
        except _FAILURES as error:
            raise RequestError(f"The chat template fails on these messages: {error}", param="messages") from error

    def _render_probe(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        variables = {"messages": messages, "tools": tools, "add_generation_prompt": True}
        return self._render(variables, _EPOCH, 0, _PROBE)


def load_template(directory: Path, name: str = "default") -> ChatTemplate | None:
    """The template of a model's directory: `chat_template.jinja` (or `additional_chat_templates/<name>.jinja`), else
    that of `chat_template.json`, else `chat_template` of `tokenizer_config.json`. None if there is no such template.

    Raises RequestError for one that does not compile, ValueError for a broken configuration.
    """
    path = directory / "tokenizer_config.json"
    config = _decode_config(path.read_bytes()) if path.is_file() else _Config()
    template_path = directory / "chat_template.jinja"
    if name != "default":
        template_path = directory / "additional_chat_templates" / f"{name}.jinja"
    source = (
        template_path.read_text(encoding="utf-8")
        if template_path.is_file()
        else _read_processor_template(directory, name) or config.find_template(name)
    )
    return None if source is None else ChatTemplate(source, config.list_special_tokens())


def _read_processor_template(directory: Path, name: str) -> str | None:
    """`chat_template.json`, in which transformers stored templates of multimodal models until 2025."""
    path = directory / "chat_template.json"
    return _decode_config(path.read_bytes()).find_template(name) if path.is_file() else None


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
    """Load the fields. template: the served one. Raises ValueError for an invalid configuration."""
    path = directory / "tokenizer_config.json"
    config = _decode_config(path.read_bytes()) if path.is_file() else _Config()
    source = None if template is None else template.source
    return TokenizerInfo(config.tokenizer_class, **config.list_special_tokens(), chat_template=source)


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
            return next((entry.template for entry in self.chat_template if entry.name == name), None)
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
        return {name: t if isinstance(t, str) else t.content for name, t in tokens.items() if t is not None}


def _decode_config(raw: bytes) -> _Config:
    try:
        return msgspec.json.decode(raw, type=_Config)
    except msgspec.MsgspecError as error:
        raise ValueError(f"tokenizer_config.json: {error}") from error


def _describe_error(error: jinja2.TemplateError) -> str:
    """The message for the client: that of `raise_exception` unchanged."""
    if type(error) is jinja2.TemplateError:
        return error.message or "The chat template rejects these messages."
    return f"The chat template fails on these messages: {error.message}"


_EPOCH = datetime(2000, 1, 1)
_RESERVED = frozenset(
    [
        *("messages", "conversation", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt"),
        *("continue_final_message", "padding", "truncation", "max_length", "strftime_now", "bos_token", "eos_token"),
        *("unk_token", "pad_token", "sep_token", "cls_token", "mask_token", "additional_special_tokens", "self"),
        *("loop", "caller", "varargs", "kwargs", capabilities.GENERATION_MARK),
    ]
)
"""Variables that a client must not set."""
