"""Dragoman: one server process for the OpenAI, Anthropic and other LLM APIs, in front
of any engine.

The names in `_MODULES` are the public interface. Each is imported on first use, to keep
`import dragoman` fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ._version import VERSION as __version__

if TYPE_CHECKING:
    # The same names, for type checkers and editors. `X as X` marks a public name.
    # isort: off
    from .commands.serve import serve as serve
    from .core.capabilities import (
        CONSTRAINT_FEATURES as CONSTRAINT_FEATURES,
        Capabilities as Capabilities,
        Feature as Feature,
    )
    from .core.engine import (
        Engine as Engine,
        Health as Health,
    )
    from .core.errors import (
        ContextTooLong as ContextTooLong,
        DragomanError as DragomanError,
        EngineError as EngineError,
        Overloaded as Overloaded,
        RequestError as RequestError,
        Unsupported as Unsupported,
    )
    from .core.events import (
        Alternative as Alternative,
        ChoiceFinished as ChoiceFinished,
        Event as Event,
        FinishReason as FinishReason,
        Finished as Finished,
        PromptTokens as PromptTokens,
        ReasoningDelta as ReasoningDelta,
        RefusalDelta as RefusalDelta,
        Started as Started,
        TextDelta as TextDelta,
        Token as Token,
        ToolCallDelta as ToolCallDelta,
        ToolCallStart as ToolCallStart,
        Usage as Usage,
    )
    from .core.matcher import Matcher as Matcher
    from .core.message import (
        Audio as Audio,
        CustomTool as CustomTool,
        File as File,
        FunctionTool as FunctionTool,
        Image as Image,
        Message as Message,
        Reasoning as Reasoning,
        Refusal as Refusal,
        Role as Role,
        Text as Text,
        ToolCall as ToolCall,
        ToolChoice as ToolChoice,
        ToolResult as ToolResult,
    )
    from .core.reply import (
        Choice as Choice,
        Reply as Reply,
        ReplyBuilder as ReplyBuilder,
    )
    from .core.request import (
        Conversation as Conversation,
        Extras as Extras,
        GenerateRequest as GenerateRequest,
        GenerationLimits as GenerationLimits,
        JsonSchema as JsonSchema,
        ReasoningOptions as ReasoningOptions,
        Regex as Regex,
        Sampling as Sampling,
        SamplingOptions as SamplingOptions,
    )
    from .core.syntax import (
        ReasoningFormat as ReasoningFormat,
        ToolFormat as ToolFormat,
    )
    from .core.token_engine import (
        Ended as Ended,
        Failed as Failed,
        OutputCallback as OutputCallback,
        PromptLogprobs as PromptLogprobs,
        Rejected as Rejected,
        Sampled as Sampled,
        Scheduled as Scheduled,
        TokenEngine as TokenEngine,
        TokenLogprob as TokenLogprob,
        TokenOutput as TokenOutput,
        TokenRequest as TokenRequest,
    )
    from .dialects.interfaces import (
        GenerationCall as GenerationCall,
        Writer as Writer,
    )
    from .dialects.registry import (
        Dialect as Dialect,
        create_writer as create_writer,
        read_request as read_request,
    )
    from .engines.base_engine import (
        BaseEngine as BaseEngine,
        BaseTokenEngine as BaseTokenEngine,
        CONSTRAINED_TOKEN_CAPABILITIES as CONSTRAINED_TOKEN_CAPABILITIES,
        TOKEN_CAPABILITIES as TOKEN_CAPABILITIES,
    )
    from .engines.bundled_model import find_bundled_model as find_bundled_model
    from .launch.in_process import create_app as create_app
    from .serving.app import Application as Application
    from .settings import (
        Settings as Settings,
        SettingsError as SettingsError,
    )
    from .store import (
        Bounds as Bounds,
        Store as Store,
    )
    # isort: on

_MODULES = {
    name: module
    for module, names in {
        "commands.serve": ("serve",),
        "core.capabilities": ("CONSTRAINT_FEATURES", "Capabilities", "Feature"),
        "core.engine": ("Engine", "Health"),
        "core.errors": (
            "ContextTooLong",
            "DragomanError",
            "EngineError",
            "Overloaded",
            "RequestError",
            "Unsupported",
        ),
        "core.events": (
            "Alternative",
            "ChoiceFinished",
            "Event",
            "FinishReason",
            "Finished",
            "PromptTokens",
            "ReasoningDelta",
            "RefusalDelta",
            "Started",
            "TextDelta",
            "Token",
            "ToolCallDelta",
            "ToolCallStart",
            "Usage",
        ),
        "core.matcher": ("Matcher",),
        "core.message": (
            "Audio",
            "CustomTool",
            "File",
            "FunctionTool",
            "Image",
            "Message",
            "Reasoning",
            "Refusal",
            "Role",
            "Text",
            "ToolCall",
            "ToolChoice",
            "ToolResult",
        ),
        "core.reply": ("Choice", "Reply", "ReplyBuilder"),
        "core.request": (
            "Conversation",
            "Extras",
            "GenerateRequest",
            "GenerationLimits",
            "JsonSchema",
            "ReasoningOptions",
            "Regex",
            "Sampling",
            "SamplingOptions",
        ),
        "core.syntax": ("ReasoningFormat", "ToolFormat"),
        "core.token_engine": (
            "Ended",
            "Failed",
            "OutputCallback",
            "PromptLogprobs",
            "Rejected",
            "Sampled",
            "Scheduled",
            "TokenEngine",
            "TokenLogprob",
            "TokenOutput",
            "TokenRequest",
        ),
        "dialects.interfaces": ("GenerationCall", "Writer"),
        "dialects.registry": ("Dialect", "create_writer", "read_request"),
        "engines.base_engine": (
            "BaseEngine",
            "BaseTokenEngine",
            "CONSTRAINED_TOKEN_CAPABILITIES",
            "TOKEN_CAPABILITIES",
        ),
        "engines.bundled_model": ("find_bundled_model",),
        "launch.in_process": ("create_app",),
        "serving.app": ("Application",),
        "settings": ("Settings", "SettingsError"),
        "store": ("Bounds", "Store"),
    }.items()
    for name in names
}
"""Public name -> the module that defines it, relative to this package."""

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
