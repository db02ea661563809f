"""Chat templates, compiled and rendered under a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from types import CodeType, MappingProxyType
from typing import Any

import jinja2
import msgspec
from jinja2 import nodes
from msgspec import Struct

from ..core.errors import RequestError
from .sandbox import Budget, Sandbox, SandboxedTemplate
from .shared_json import NOTHING_SHARED, SharedJson
from .specializing_sandbox import SpecializingSandbox
from .template import GENERATION_MARK
from .template_features import detect_features
from .template_specialization import NotSpecializable, Specialization, Specializer

_GENERATION_PROMPT = "add_generation_prompt"


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


class CompiledSource(Struct, frozen=True):
    """What depends on a template's text alone.

    tree: the template as it was written.
    variables: the names that the template reads and does not define.
    marks_generation: whether the mark of the generation prompt was inserted.
    """

    sandbox: Sandbox
    code: CodeType
    tree: nodes.Template
    variables: frozenset[str]
    marks_generation: bool


@lru_cache(maxsize=8)
def compile_source(source: str) -> CompiledSource:
    """Compile a template. The latest are kept, since models of a server and replicas of
    a fleet have few templates, and to compile one takes longer than to load `tiny`.

    Raises:
        RequestError: with param "chat_template", the template does not compile.
    """
    sandbox = Sandbox()
    try:
        # Parsed twice: hooks change the tree in place, and features are detected
        # from the template as it was written.
        tree = sandbox.parse(source)
        hooked_tree = sandbox.parse_with_hooks(source)
        marks_generation = insert_generation_mark(hooked_tree)
        code, names = sandbox.compile_tree(hooked_tree)
    except jinja2.TemplateError as error:
        raise RequestError(
            f"The chat template does not compile: {error}", param="chat_template"
        ) from error
    except (RecursionError, SyntaxError, MemoryError) as error:
        raise RequestError(
            "The chat template is nested too deeply.", param="chat_template"
        ) from error
    variables = names - {GENERATION_MARK} if marks_generation else names
    return CompiledSource(sandbox, code, tree, variables, marks_generation)


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
        if len(source) > self._limits.source:
            raise RequestError("The chat template is too long.", param="chat_template")
        self._compiled = compiled = compile_source(source)
        self.reserved_names: frozenset[str] = (
            _RESERVED | self.special_tokens.keys() | compiled.sandbox.globals.keys()
        )
        # `documents` is reserved, but stays in the features: they show whether the
        # documents of a request are used.
        variables_read = compiled.variables - (self.reserved_names - {"documents"})
        # A pool, since building a template costs as much as a short rendering.
        self._idle_templates: list[SandboxedTemplate] = []
        self._idle_specializing: list[tuple[SpecializingSandbox, jinja2.Template]] = []
        features = detect_features(compiled.tree, variables_read, self._render_probe)
        self.features = msgspec.structs.replace(
            features,
            marks_generation=compiled.marks_generation,
            reads_generation=_GENERATION_PROMPT in compiled.variables,
        )

    def render(
        self,
        variables: Mapping[str, Any],
        *,
        now: datetime,
        characters: int = 0,
        shared_json: SharedJson = NOTHING_SHARED,
    ) -> str:
        """Render the template.

        variables: `messages`, `tools`, `add_generation_prompt`, ...
        characters: length of the text in the variables; the budget grows with it.
        shared_json: JSON of the tools.

        Raises:
            RequestError: with param "messages", the template rejects the messages or
                fails.
        """
        return self._render(variables, now, characters, self._limits, shared_json)

    def specialize(
        self,
        specializer: Specializer,
        variables: Mapping[str, Any],
        *,
        now: datetime,
        characters: int,
    ) -> Specialization | None:
        """Render the template with opaque texts, and return what it does with any texts;
        None if it depends on them, or fails.

        variables, now, characters: as in `render`.
        """
        limits = self._limits
        budget = self._build_budget(limits, characters)
        max_chars = budget.characters
        try:
            environment, template = self._idle_specializing.pop()
        except IndexError:
            environment = SpecializingSandbox()
            template = environment.build(self._compiled.code)
        environment.budget = budget
        environment.specializer = specializer

        def format_now(format: str) -> str:
            return specializer.dates.setdefault(format, now.strftime(format))

        try:
            output = template.render(self._add_constants(variables, format_now))
        except (NotSpecializable, Exception):
            # Functions fail in their own ways on opaque texts. Whatever it is, the
            # template itself shows it when it renders the conversation.
            return None
        self._idle_specializing.append((environment, template))
        # Broken texts are at most twice as long, so that the budget, which grows with
        # the texts, suffices for all of them.
        uses = max(specializer.uses, default=0)
        fixed = max_chars - budget.characters + uses * len(specializer.uses)
        if 2 * uses > limits.per_character or fixed > limits.characters:
            return None
        return specializer.build(output)

    def _build_budget(self, limits: TemplateLimits, characters: int) -> Budget:
        max_chars = limits.characters + limits.per_character * characters
        return Budget(max_chars, limits.steps, limits.seconds, self._clock)

    def _add_constants(
        self, variables: Mapping[str, Any], strftime_now: Callable[[str], str]
    ) -> dict[str, Any]:
        return {**self.special_tokens, "strftime_now": strftime_now, **variables}

    def _render(
        self,
        variables: Mapping[str, Any],
        now: datetime,
        characters: int,
        limits: TemplateLimits,
        shared_json: SharedJson = NOTHING_SHARED,
    ) -> str:
        budget = self._build_budget(limits, characters)
        try:
            # A template has one budget, so it renders one prompt at a time; other
            # threads reuse it when it is idle.
            sandboxed = self._idle_templates.pop()
        except IndexError:
            sandboxed = self._compiled.sandbox.build_template(self._compiled.code)
        sandboxed.environment.budget = budget
        sandboxed.environment.shared_json = shared_json
        try:
            text = sandboxed.template.render(self._add_constants(variables, now.strftime))
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
