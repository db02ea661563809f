"""Dragoman: one server process for the OpenAI, Anthropic and other LLM APIs, in front
    of any engine.

The names below are the public interface. Each is imported on first use, to keep `import
dragoman` fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .commands.serve import serve
    from .core.capabilities import CONSTRAINT_FEATURES, Capabilities, Feature
    from .core.engine import Engine, Health
    from .core.errors import (
        ContextTooLong,
        DragomanError,
        EngineError,
        Overloaded,
        RequestError,
        Unsupported,
    )
    from .core.events import (
        Alternative,
        ChoiceFinished,
        Event,
        Finished,
        FinishReason,
        PromptTokens,
        ReasoningDelta,
        RefusalDelta,
        Started,
        TextDelta,
        Token,
        ToolCallDelta,
        ToolCallStart,
        Usage,
    )
    from .core.matcher import Matcher
    from .core.message import (
        Audio,
        CustomTool,
        File,
        FunctionTool,
        Image,
        Message,
        Reasoning,
        Refusal,
        Role,
        Text,
        ToolCall,
        ToolChoice,
        ToolResult,
    )
    from .core.reply import Choice, Reply, ReplyBuilder
    from .core.request import (
        Conversation,
        Extras,
        GenerateRequest,
        GenerationLimits,
        JsonSchema,
        ReasoningOptions,
        Regex,
        Sampling,
        SamplingOptions,
    )
    from .core.syntax import ReasoningFormat, ToolFormat
    from .core.token_engine import (
        Ended,
        Failed,
        OutputCallback,
        PromptLogprobs,
        Rejected,
        Sampled,
        Scheduled,
        TokenEngine,
        TokenLogprob,
        TokenOutput,
        TokenRequest,
    )
    from .dialects.interfaces import GenerationCall, Writer
    from .dialects.registry import Dialect, create_writer, read_request
    from .engines.base_engine import (
        CONSTRAINED_TOKEN_CAPABILITIES,
        TOKEN_CAPABILITIES,
        BaseEngine,
        BaseTokenEngine,
    )
    from .engines.tiny import find_bundled_model
    from .launch.in_process import create_app
    from .serving.app import Application
    from .settings import Settings, SettingsError
    from .store import Bounds, Store

__version__ = "0.1.0"

_MODULES = {
    "serve": "commands.serve",
    "CONSTRAINT_FEATURES": "core.engine",
    "Capabilities": "core.engine",
    "Ended": "core.engine",
    "Engine": "core.engine",
    "Failed": "core.engine",
    "Feature": "core.engine",
    "Health": "core.engine",
    "Matcher": "core.engine",
    "OutputCallback": "core.engine",
    "Rejected": "core.engine",
    "Sampled": "core.engine",
    "Scheduled": "core.engine",
    "TokenEngine": "core.engine",
    "TokenLogprob": "core.engine",
    "TokenOutput": "core.engine",
    "TokenRequest": "core.engine",
    "PromptLogprobs": "core.engine",
    "ContextTooLong": "core.errors",
    "DragomanError": "core.errors",
    "EngineError": "core.errors",
    "Overloaded": "core.errors",
    "RequestError": "core.errors",
    "Unsupported": "core.errors",
    "Alternative": "core.events",
    "ChoiceFinished": "core.events",
    "Event": "core.events",
    "Finished": "core.events",
    "FinishReason": "core.events",
    "PromptTokens": "core.events",
    "ReasoningDelta": "core.events",
    "RefusalDelta": "core.events",
    "Started": "core.events",
    "TextDelta": "core.events",
    "Token": "core.events",
    "ToolCallDelta": "core.events",
    "ToolCallStart": "core.events",
    "Usage": "core.events",
    "Audio": "core.message",
    "CustomTool": "core.message",
    "File": "core.message",
    "FunctionTool": "core.message",
    "Image": "core.message",
    "Message": "core.message",
    "Reasoning": "core.message",
    "Refusal": "core.message",
    "Role": "core.message",
    "Text": "core.message",
    "ToolCall": "core.message",
    "ToolChoice": "core.message",
    "ToolResult": "core.message",
    "Choice": "core.reply",
    "Reply": "core.reply",
    "ReplyBuilder": "core.reply",
    "Conversation": "core.request",
    "GenerateRequest": "core.request",
    "GenerationLimits": "core.request",
    "Sampling": "core.request",
    "SamplingOptions": "core.request",
    "Extras": "core.request",
    "JsonSchema": "core.request",
    "ReasoningOptions": "core.request",
    "Regex": "core.request",
    "ReasoningFormat": "core.syntax",
    "ToolFormat": "core.syntax",
    "Dialect": "dialects.all_dialects",
    "create_writer": "dialects.all_dialects",
    "read_request": "dialects.all_dialects",
    "GenerationCall": "dialects.base",
    "Writer": "dialects.base",
    "CONSTRAINED_TOKEN_CAPABILITIES": "engines.base",
    "TOKEN_CAPABILITIES": "engines.base",
    "BaseEngine": "engines.base",
    "BaseTokenEngine": "engines.base",
    "find_bundled_model": "engines.tiny",
    "create_app": "launch.embedding",
    "Application": "serving.app",
    "Settings": "settings",
    "SettingsError": "settings",
    "Bounds": "store",
    "Store": "store",
}
"""Public name -> the module that defines it, relative to this package."""

__all__ = [
    "CONSTRAINED_TOKEN_CAPABILITIES",
    "CONSTRAINT_FEATURES",
    "TOKEN_CAPABILITIES",
    "Alternative",
    "Application",
    "Audio",
    "BaseEngine",
    "BaseTokenEngine",
    "Bounds",
    "Capabilities",
    "Choice",
    "ChoiceFinished",
    "ContextTooLong",
    "Conversation",
    "CustomTool",
    "Dialect",
    "DragomanError",
    "Ended",
    "Engine",
    "EngineError",
    "Event",
    "Extras",
    "Failed",
    "Feature",
    "File",
    "FinishReason",
    "Finished",
    "FunctionTool",
    "GenerateRequest",
    "GenerationCall",
    "GenerationLimits",
    "Health",
    "Image",
    "JsonSchema",
    "Matcher",
    "Message",
    "OutputCallback",
    "Overloaded",
    "PromptLogprobs",
    "PromptTokens",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningFormat",
    "ReasoningOptions",
    "Refusal",
    "RefusalDelta",
    "Regex",
    "Rejected",
    "Reply",
    "ReplyBuilder",
    "RequestError",
    "Role",
    "Sampled",
    "Sampling",
    "SamplingOptions",
    "Scheduled",
    "Settings",
    "SettingsError",
    "Started",
    "Store",
    "Text",
    "TextDelta",
    "Token",
    "TokenEngine",
    "TokenLogprob",
    "TokenOutput",
    "TokenRequest",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallStart",
    "ToolChoice",
    "ToolFormat",
    "ToolResult",
    "Unsupported",
    "Usage",
    "Writer",
    "__version__",
    "create_app",
    "create_writer",
    "find_bundled_model",
    "read_request",
    "serve",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
