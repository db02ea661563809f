"""Dragoman: one process that speaks every LLM API dialect, in front of any engine.

The names below are the public interface. Each is imported when it is first used: `import dragoman` brings nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .commands.serve import serve
    from .core.engine import (
        CONSTRAINT_FEATURES,
        Capabilities,
        Ended,
        Engine,
        Failed,
        Feature,
        Health,
        Matcher,
        OutputCallback,
        Rejected,
        Sampled,
        Scheduled,
        TokenEngine,
        TokenLogprob,
        TokenOutput,
        TokenRequest,
    )
    from .core.errors import ContextTooLong, DragomanError, EngineError, Overloaded, RequestError, Unsupported
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
    from .core.request import Conversation, GenerateRequest, GenerationLimits, Sampling, SamplingOptions
    from .dialects.all_dialects import Dialect, create_writer, read_request
    from .dialects.base import GenerationCall, Writer
    from .engines.base import CONSTRAINED_TOKEN_CAPABILITIES, TOKEN_CAPABILITIES, BaseEngine, BaseTokenEngine
    from .launch.embedding import create_app
    from .serving.app import Application
    from .settings import Settings, SettingsError

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
    "GenerationCall": "dialects.base",
    "Writer": "dialects.base",
    "Dialect": "dialects.all_dialects",
    "create_writer": "dialects.all_dialects",
    "read_request": "dialects.all_dialects",
    "CONSTRAINED_TOKEN_CAPABILITIES": "engines.base",
    "TOKEN_CAPABILITIES": "engines.base",
    "BaseEngine": "engines.base",
    "BaseTokenEngine": "engines.base",
    "create_app": "launch.embedding",
    "Application": "serving.app",
    "Settings": "settings",
    "SettingsError": "settings",
}
"""Where each public name is defined."""

__all__ = [
    "CONSTRAINED_TOKEN_CAPABILITIES",
    "CONSTRAINT_FEATURES",
    "TOKEN_CAPABILITIES",
    "Alternative",
    "Application",
    "Audio",
    "BaseEngine",
    "BaseTokenEngine",
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
    "Matcher",
    "Message",
    "OutputCallback",
    "Overloaded",
    "PromptTokens",
    "Reasoning",
    "ReasoningDelta",
    "Refusal",
    "RefusalDelta",
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
    "ToolResult",
    "Unsupported",
    "Usage",
    "Writer",
    "__version__",
    "create_app",
    "create_writer",
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
