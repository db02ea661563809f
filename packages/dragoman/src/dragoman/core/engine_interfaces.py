"""The optional interfaces of an engine: what the server can do with it beyond running
requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .encoder import TextEncoder
from .engine import DirectEngine, HasKvCapacity, PrefixCache, PromptCounter
from .engine_control import EngineControl
from .engine_stats import StatsSource
from .scriptable_engine import Scriptable
from .simulated_engine import Simulated
from .tokenizer import RemoteTokenizer
from .transcription import Transcriber
from .weight_updates import Trainable


@dataclass(frozen=True, slots=True)
class EngineInterfaces:
    """The objects that implement an engine's optional interfaces; None for one that it
    does not have.

    The builder of a model passes those of the first group, which may be objects beside
    the engine. Those of the second are methods of the engine itself, which `complete`
    finds, so that no builder can forget one. Everything else asks this value.

    control: pauses the engine.
    trainable: replaces its weights.
    scriptable: sets its replies.
    simulation: controls a simulated engine.
    stats_source: metrics of an engine that counts its own work; without it, the pipeline
        counts.
    cache: its prefix cache.

    direct: delivers events without resuming a coroutine for each.
    prompt_counter: counts the tokens of a prompt.
    remote_tokenizer: tokenizes for an engine without a tokenizer.
    text_encoder: embeds or scores texts, in addition to generating some.
    transcriber: turns speech into text.
    kv_capacity: says how many tokens its KV cache has.
    """

    control: EngineControl | None = None
    trainable: Trainable | None = None
    scriptable: Scriptable | None = None
    simulation: Simulated | None = None
    stats_source: StatsSource | None = None
    cache: PrefixCache | None = None

    direct: DirectEngine | None = None
    prompt_counter: PromptCounter | None = None
    remote_tokenizer: RemoteTokenizer | None = None
    text_encoder: TextEncoder | None = None
    transcriber: Transcriber | None = None
    kv_capacity: HasKvCapacity | None = None

    def complete(self, engine: object) -> EngineInterfaces:
        """Return these interfaces with those that the engine itself implements. No
        other code asks for the type of an engine.
        """
        return replace(
            self,
            direct=engine if isinstance(engine, DirectEngine) else None,
            prompt_counter=engine if isinstance(engine, PromptCounter) else None,
            remote_tokenizer=engine if isinstance(engine, RemoteTokenizer) else None,
            text_encoder=engine if isinstance(engine, TextEncoder) else None,
            transcriber=engine if isinstance(engine, Transcriber) else None,
            kv_capacity=engine if isinstance(engine, HasKvCapacity) else None,
        )
