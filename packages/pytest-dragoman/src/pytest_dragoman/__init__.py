"""A pytest plug-in with a scripted server of the LLM APIs in the test's process, and a
verdict on the client that uses it.
"""

from typing import TYPE_CHECKING

from ._version import VERSION as __version__

if TYPE_CHECKING:
    from .scripted_server import Dragoman as Dragoman
    from .sent_request import SentRequest as SentRequest
    from .sim_server import SimulatedServer as SimulatedServer

_MODULES = {
    "Dragoman": "scripted_server",
    "SentRequest": "sent_request",
    "SimulatedServer": "sim_server",
}

__all__ = ["Dragoman", "SentRequest", "SimulatedServer", "__version__"]


def __getattr__(name: str) -> object:
    """Import a public name on first use: pytest loads the plug-in in every run."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - as above

    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
