"""Any server that speaks OpenAI's API, as an engine of events: its dialects become all of ours."""

from .discovery import Found, discover
from .encode import Defaults
from .engine import UpstreamConfig, UpstreamEngine
from .kinds import KINDS, Kind
from .pool import Upstream

__all__ = ["KINDS", "Defaults", "Found", "Kind", "Upstream", "UpstreamConfig", "UpstreamEngine", "discover"]
