"""The state that all handlers share; `create_app` builds it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from msgspec import Struct

from ..dialects.base import Profile, ReaderOptions
from ..dialects.sealing import VerificationMode
from ..pipeline.metrics import ModelMetrics
from ..pipeline.models import Models
from ..pipeline.recent_prompts import RecentPrompts
from ..store import Store
from .auth import Keyring
from .body import BodyMemoryBudget
from .clock import Clock, IdGenerator
from .cors import CorsPolicy
from .crypto import Sealer
from .http_metrics import HttpMetrics
from .keepalive import StreamMonitor, StreamTimeouts
from .media import MediaResolver
from .pacing import StartLimiter
from .port_faults.spec import PortController
from .request_log import RequestLog
from .responses.background import BackgroundRuns
from .responses.conversation_locks import ConversationLocks
from .weight_uploads import WeightUploads


class ServingOptions(Struct, frozen=True):
    """Options of the HTTP API.

    strict: unknown or unsupported parameters are errors instead of warnings.
    bind: the address listened on; None for a Unix socket.
    max_background: concurrent background responses.
    max_sockets: concurrent WebSockets.
    socket_lifetime: seconds after which a WebSocket is closed.
    batch_concurrency: concurrent requests of batches.
    weights_dir: the directory that weight updates can read from; None disables them.
    request_timeout: seconds after which a generation fails; None is unlimited.
    progress_timeout: seconds without an event, while requests run, after which `/health` returns 503.
    """

    profile: Profile = Profile.OPENAI
    strict: bool = False
    max_body_bytes: int = 32 * 1024 * 1024
    max_inflight_body_bytes: int = 512 * 1024 * 1024
    bind: str | None = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()
    cors: CorsPolicy = CorsPolicy()
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    timeouts: StreamTimeouts = StreamTimeouts()
    access_log: bool = False
    max_logprobs: int = 20
    max_file_bytes: int = 200 * 1024 * 1024
    batch_concurrency: int = 16
    explain: bool = False
    drop_nonces: bool = True
    reasoning_verification: VerificationMode = VerificationMode.LENIENT
    max_background: int = 64
    max_sockets: int = 1024
    socket_lifetime: float = 3600.0
    weights_dir: str | None = None
    max_weights_bytes: int = 1024 * 1024 * 1024
    request_timeout: float | None = None
    progress_timeout: float = 600.0


@dataclass(frozen=True, slots=True)
class Service:
    """The services and options of an application.

    store: None if storage is disabled.
    jobs_available: set when a job has been stored.
    recent_prompts: None unless prompts can be explained.
    port_controller: None unless the server is simulated.
    """

    models: Models
    clock: Clock
    ids: IdGenerator
    options: ServingOptions
    keyring: Keyring
    allowed_hosts: tuple[str, ...]
    reader_options: ReaderOptions
    sealer: Sealer
    fingerprint: str
    meters: ModelMetrics
    http_metrics: HttpMetrics
    stream_monitor: StreamMonitor
    media: MediaResolver
    body_budget: BodyMemoryBudget
    store: Store | None = None
    background: BackgroundRuns | None = None
    jobs_available: asyncio.Event = field(default_factory=asyncio.Event)
    recent_prompts: RecentPrompts | None = None
    request_log: RequestLog | None = None
    port_controller: PortController | None = None
    start_limiter: StartLimiter = field(default_factory=StartLimiter)
    weight_uploads: WeightUploads = field(default_factory=WeightUploads)
    conversation_locks: ConversationLocks = field(default_factory=ConversationLocks)
