"""What a package declares about an engine: its name, its settings, the models that it
accepts and how to build one.

The package registers an `EngineSpec` in the entry point group `dragoman.engine_specs`,
under the engine's name, as this package does for its own engines. The module is light:
every command loads the specs of all installed engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ..settings.engine_settings import EngineDeclaration
from .model_format import ModelFormat

if TYPE_CHECKING:
    import ssl

    from ..core.capabilities import Capabilities
    from ..pipeline.served_model import ServedModel
    from ..serving.clock import Clock
    from ..settings import Settings
    from .front_end import FrontEnd
    from .ports import ServerPorts

FACTORIES = "dragoman.engines"
"""The entry point group in which packages register functions that create engines without
settings of their own; see `plugin`.
"""


class ModelConfig(Struct, frozen=True):
    """What a model's files say about it, before an engine is chosen.

    Attributes:
        architectures: The classes that config.json names, of the transformers library.
        is_quantized: Whether config.json has the `quantization` of mlx-lm.
        is_embedder: Whether its files declare that the model embeds texts.
        is_reranker: Whether its files declare that the model scores pairs of texts.
        weights: Bytes of its weights.
        has_reranker_name: Whether its name is that of a reranker, which declares nothing.
    """

    architectures: tuple[str, ...] = ()
    is_quantized: bool = False
    is_embedder: bool = False
    is_reranker: bool = False
    weights: int = 0
    has_reranker_name: bool = False

    @property
    def architecture(self) -> str:
        """The model's class, for messages."""
        return self.architectures[0] if self.architectures else "a model without an architecture"

    @property
    def is_whisper(self) -> bool:
        """Whether the model turns speech into text."""
        return "WhisperForConditionalGeneration" in self.architectures

    @property
    def is_encoder(self) -> bool:
        """Whether the model embeds texts or scores pairs of texts, whatever its class."""
        return self.is_embedder or self.is_reranker or not self.generates_text

    @property
    def generates_text(self) -> bool:
        """Whether the model has a head that generates text: the name of its class says
        what its head is for.
        """
        return any(
            "ForCausalLM" in name or "ForConditionalGeneration" in name
            for name in self.architectures
        )


class Acceptance(Struct, frozen=True):
    """An engine's offer to run a model that MODEL names without an engine.

    Attributes:
        rank: The installed engine with the lowest rank runs the model.
        reason: Why it is chosen.
        is_only: Whether no other engine runs the model, so that the engine is chosen
            even if it is not installed.
        problem: Why it cannot run the model on this machine; it is reported if the
            engine is chosen.
    """

    rank: int
    reason: str
    is_only: bool = False
    problem: str | None = None


class LocalModels(Struct, frozen=True, kw_only=True):
    """How an engine loads models from files.

    Attributes:
        format: The format of the files.
        accepts: Says whether the engine runs a model in the format; None if it runs
            all. Installed libraries do not matter.
        check_architecture: Raises EngineError if the engine does not support the
            architecture. Arguments: the directory, the model's name in messages,
            whether code of the model is trusted.
        reads_file: Whether the engine reads a file of a hub's model that is neither
            weights nor a tokenizer.
        find_bundled: Finds the model that the engine loads if MODEL is only its name.
        measure_kv_cache: Returns the bytes of main memory that the KV cache may take.
        describe_device: Describes the device that computes a model, for the log.
        find_dtype: Finds the data type that it computes a model in, whatever the
            settings say; None where they decide.
        step_tokens: Tokens of a step, over all sequences, if the settings do not set them.
        kv_block_size: Tokens of a block of its KV cache, for the log; None without
            blocks, or if they are not known.
        takes_kv_cache_at_start: Whether its KV cache, in float32, has all of its memory
            from the start on.
        build_front_end: Builds the model of a process that shares the engine with
            others. Arguments: the settings, the clock, the model's path and its name.
            None if the engine cannot have a process of its own.
    """

    format: ModelFormat
    accepts: Callable[[ModelConfig], Acceptance | None] | None = None
    check_architecture: Callable[[Path, str, bool], None] | None = None
    reads_file: Callable[[str], bool] | None = None
    find_bundled: Callable[[], Path] | None = None
    measure_kv_cache: Callable[[Settings, Path], int] | None = None
    describe_device: Callable[[Settings, Path], str] | None = None
    find_dtype: Callable[[Path], str | None] | None = None
    step_tokens: int | None = None
    kv_block_size: int | None = None
    takes_kv_cache_at_start: bool = False
    build_front_end: Callable[[Settings, Clock, Path, str, FrontEnd], ServedModel] | None = None


class CapabilityRange(Struct, frozen=True):
    """What models of an engine can do.

    Attributes:
        least: What all can do.
        most: What one can do that has all that the engine supports.
    """

    least: Capabilities
    most: Capabilities


class TranslatedArguments(Struct, frozen=True):
    """Arguments of `dragoman serve` for those of another server.

    Attributes:
        arguments: The arguments.
        notices: What has no effect, and why; logged at the start, an error with
            `--strict`.
        information: What else the user must know; printed with the greeting.
    """

    arguments: tuple[str, ...]
    notices: tuple[str, ...] = ()
    information: tuple[str, ...] = ()


class EngineSpec(EngineDeclaration, frozen=True, kw_only=True):
    """An engine. See also `EngineDeclaration`.

    Attributes:
        build: Builds the model from the settings, the clock and MODEL's argument, the
            text after the engine's name. It may raise ValueError, OSError and
            DragomanError.
        capabilities: What models of the engine can do, at least and at most, for the
            docs; by name, since an engine may have several kinds of models. It needs no
            library. None for an engine that MODEL's name alone serves, whose models say
            it, and for one that generates no text.
        aliases: Further names of the engine in MODEL.
        needs_argument: Whether MODEL must have more than the engine's name.
        claims: Returns the argument of a MODEL that is for this engine though it does
            not name it; None for any other.
        check: Checks MODEL's argument without loading anything. It may raise
            ValueError. Paths of `local` models are checked in any case.
        local: How it loads models from files; None if its models are not in files.
        requires: Modules of the libraries that it needs.
        install: What installs them with pip.
        is_replicable: Whether each worker process can run one: it uses no accelerator
            and little memory.
        workers_advice: What to do instead of serving it with several processes; None
            for the usual advice.
        simulates: What it simulates, such as `vLLM 0.33.0`, for the greeting.
        api_profile: The response format if the settings do not set it.
        translate_arguments: Translates the arguments of `dragoman serve` for this engine,
            which may be those of the server that it simulates. Arguments: MODEL and
            the other arguments of the command line; the flags of the command, with whether each
            takes a value; environment variables. It may raise ValueError.
        expand_instances: Makes the settings of each server from those with `instances`,
            for an engine of which a process can run several. It may raise ValueError.
        build_ports: Builds the ports of the servers, for an engine that controls them.
    """

    build: Callable[[Settings, Clock, str], ServedModel]
    capabilities: Callable[[], Mapping[str, CapabilityRange]] | None = None
    aliases: tuple[str, ...] = ()
    needs_argument: bool = False
    claims: Callable[[str], str | None] | None = None
    check: Callable[[str], None] | None = None
    local: LocalModels | None = None
    requires: tuple[str, ...] = ()
    install: str = ""
    is_replicable: bool = False
    workers_advice: Callable[[str], str] | None = None
    simulates: str | None = None
    api_profile: Literal["openai", "vllm"] = "openai"
    translate_arguments: (
        Callable[[Sequence[str], Mapping[str, bool], Mapping[str, str]], TranslatedArguments] | None
    ) = None
    expand_instances: Callable[[Settings], list[Settings]] | None = None
    build_ports: Callable[[Sequence[Settings], ssl.SSLContext | None], ServerPorts] | None = None

    @property
    def is_shareable(self) -> bool:
        """Whether the engine can have a process that several front ends share."""
        return self.local is not None and self.local.build_front_end is not None
