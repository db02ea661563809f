"""Translates a `vllm serve` command line into the options of `dragoman serve sim`.

A flag that has an effect here becomes an option. Any other causes a line at the start
that names it and says why, or an error if answers without it would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import cast

import msgspec

from dragoman.launch.engine_spec import TranslatedArguments

from .vllm_command_line import GivenFlag, ServeCommandLine, parse_serve_arguments, read_size
from .vllm_flags import REFUSED, explain_vllm_flag

_MAX_LOGPROBS = 1000
_RENAMED = {
    "max-num-queued-reqs": "--max-queued-requests",
    "max-num-queued-tokens": "--max-queued-tokens",
    "max-num-scheduled-tokens": "--max-num-batched-tokens",
}
_SIZES = ("max-model-len", "max-num-batched-tokens")
_LOG_LEVELS = {"trace": "debug", "notset": "debug"}
_ACCESS_VARIABLES = frozenset({"DRAGOMAN_REQUIRE_AUTH", "DRAGOMAN_NO_AUTH", "DRAGOMAN_CONFIG"})
"""Variables that decide about keys, beside those that set them."""
_RANK_ADVICE = (
    "each process of vLLM is one rank or one node here; only its own ranks are served, from "
    "number 0 on, and they do not wait for those of other processes"
)
_RANK_FLAGS = (
    "data-parallel-rank",
    "data-parallel-start-rank",
    "data-parallel-size-local",
    "data-parallel-hybrid-lb",
    "data-parallel-external-lb",
    "data-parallel-multi-port-external-lb",
)
"""Flags that say which of a server's ranks a process has."""
_PASSED_NAMES = """
    host port uds ssl-keyfile ssl-certfile trust-request-chat-template tokenizer seed
    max-num-seqs max-num-active-seqs long-prefill-token-threshold
    long-prefill-token-threshold-adaptive scheduling-policy enable-chunked-prefill
    scheduler-reserve-full-isl watermark async-scheduling kv-offloading-size
    kv-offloading-backend block-size num-gpu-blocks-override enable-prefix-caching enable-lora
    max-loras shutdown-timeout prefix-caching-hash-algo max-num-queued-reqs
    max-num-queued-tokens served-model-name api-key lora-modules prefix-cache-retention-interval
    return-tokens-as-token-ids enable-per-request-metrics
"""
_PASSED = frozenset(_PASSED_NAMES.split())
"""Flags that are options of the same meaning."""


def translate_arguments(
    arguments: Sequence[str], own_flags: Mapping[str, bool], environment: Mapping[str, str]
) -> TranslatedArguments:
    """Translate the arguments of `dragoman serve`: MODEL, then Dragoman's, vLLM's or both.

    own_flags: flags of `dragoman serve`, with whether each takes a value.
    environment: environment variables.

    Raises:
        ValueError: a flag is malformed, or cannot be ignored.
    """
    engine, *rest = arguments
    line = parse_serve_arguments(rest, own_flags)
    translation = _Translation(engine, line, environment)
    for given in line.flags:
        translation.add(given)
    return translation.finish()


class _Translation:
    def __init__(self, engine: str, line: ServeCommandLine, environment: Mapping[str, str]) -> None:
        self._engine = engine
        self._arguments: list[str] = []
        self._others = line.others
        self._own_names = {word.partition("=")[0].replace("_", "-") for word in line.others}
        self._model = line.model
        self._is_vllm_line = line.is_model_first
        self._environment = environment
        self._given: dict[str, GivenFlag] = {}
        self._ignored: dict[str, list[str]] = {}
        """Flags without an effect by the reason."""
        self._notices: list[str] = []
        self._information: list[str] = []
        """What is no fault of the line, but is to be known."""
        self._speculative: dict[str, object] = {}
        self._offloading: tuple[GivenFlag, float] | None = None
        """The flag that sets an offloading connector, and its bytes of host memory."""
        self._translators: dict[str, Callable[[GivenFlag], None]] = {
            "model": self._name_model,
            "allowed-origins": self._translate_origins,
            "log-level": self._translate_log_level,
            "uvicorn-log-level": self._translate_log_level,
            "disable-uvicorn-access-log": self._translate_access_log,
            "chat-template": self._translate_chat_template,
            "tool-call-parser": self._translate_parser,
            "reasoning-parser": self._translate_parser,
            "kv-transfer-config": self._translate_kv_transfer,
            "speculative-config": self._translate_speculation,
            "spec-method": self._translate_speculation,
            "spec-model": self._translate_speculation,
            "spec-tokens": self._translate_speculation,
            "override-generation-config": self._pass,
            "kv-cache-dtype": self._translate_kv_cache_dtype,
            "disable-hybrid-kv-cache-manager": self._translate_hybrid_kv_cache,
            "tensor-parallel-size": self._translate_devices,
            "data-parallel-size": self._leave_to_finish,
            "kv-events-config": self._leave_to_finish,
            **dict.fromkeys(_RANK_FLAGS, self._leave_to_finish),
            "ssl-cert-reqs": self._check_certificates,
            "max-num-scheduled-tokens": self._leave_to_finish,
            "max-logprobs": self._translate_max_logprobs,
            **dict.fromkeys(_SIZES, self._translate_size),
        }

    def add(self, given: GivenFlag) -> None:
        name = given.flag.name
        self._given[name] = given
        if name in self._translators:
            self._translators[name](given)
        elif name in _PASSED:
            self._pass(given)
        else:
            self._ignore(given)

    def finish(self) -> TranslatedArguments:
        self._set_ranks()
        if (events := self._given.get("kv-events-config")) is not None:
            self._set_kv_events(events)
        if (limit := self._given.get("max-num-scheduled-tokens")) is not None:
            # After --max-num-batched-tokens, which it limits further.
            self._translate_size(limit)
        if (size := self._offloading) is not None:
            self._set_offloading(*size)
        if self._speculative:
            self._arguments += "--speculative-config", _encode(self._speculative)
        if self._model is not None:
            self._set_model(self._model)
        for reason, flags in self._ignored.items():
            verb = "has" if len(flags) == 1 else "have"
            self._notices.append(f"{', '.join(flags)} of vLLM {verb} no effect on `sim`: {reason}")
        return TranslatedArguments(
            (self._engine, *self._arguments, *self._others),
            tuple(self._notices),
            tuple(self._information),
        )

    def _ignore(self, given: GivenFlag, reason: str | None = None) -> None:
        """Report a flag without an effect. Raises ValueError for one that cannot be ignored."""
        found = (
            reason
            or explain_vllm_flag(given.flag.names[0])
            or "the simulator has nothing that corresponds to it"
        )
        if found in REFUSED and given.is_on:
            raise ValueError(f"{given.written} of vLLM is not supported by `sim`: {found}.")
        flags = self._ignored.setdefault(found.removesuffix(". Leave it out"), [])
        if given.written not in flags:
            flags.append(given.written)

    def _leave_to_finish(self, given: GivenFlag) -> None:
        """Do nothing: `finish` reads the flag together with others."""

    def _pass(self, given: GivenFlag) -> None:
        flag = _RENAMED.get(given.flag.name, given.flag.names[0])
        if given.flag.arity == "0":
            self._arguments.append(flag if given.is_on else flag.replace("--", "--no-", 1))
        for value in given.values:
            self._arguments += flag, value

    # Flags with values of vLLM's own.

    def _name_model(self, given: GivenFlag) -> None:
        self._model = given.values[0]
        self._is_vllm_line = True

    def _translate_size(self, given: GivenFlag) -> None:
        (text,) = given.values
        # vLLM finds the longest context that fits; the profile's has been measured.
        if given.flag.name == "max-model-len" and text.strip().lower() in ("auto", "-1"):
            return
        size = read_size(text)
        self._pass(given if size is None else msgspec.structs.replace(given, values=(str(size),)))

    def _translate_max_logprobs(self, given: GivenFlag) -> None:
        (text,) = given.values
        # -1 is the whole vocabulary.
        if text == "-1" or (text.isdigit() and int(text) > _MAX_LOGPROBS):
            self._notices.append(f"{given.written} {text} of vLLM: at most {_MAX_LOGPROBS} here")
            text = str(_MAX_LOGPROBS)
        self._pass(msgspec.structs.replace(given, values=(text,)))

    def _translate_origins(self, given: GivenFlag) -> None:
        (text,) = given.values
        try:
            origins = msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError:
            origins = [text]
        self._pass(msgspec.structs.replace(given, values=tuple(origins)))

    def _translate_log_level(self, given: GivenFlag) -> None:
        level = given.values[0].lower()
        self._arguments += "--log-level", _LOG_LEVELS.get(level, level)

    def _translate_access_log(self, given: GivenFlag) -> None:
        self._arguments.append("--no-access-log" if given.is_on else "--access-log")

    def _translate_chat_template(self, given: GivenFlag) -> None:
        (text,) = given.values
        if "{" in text or Path(text).is_file():
            self._pass(given)
        else:
            self._ignore(given, f"there is no file {text}; the tokenizer's own template is used")

    def _translate_parser(self, given: GivenFlag) -> None:
        # Not at the top, as also below: most command lines need only the table of flags.
        from dragoman.parsers.registry import (  # noqa: PLC0415
            find_reasoning_format,
            find_tool_format,
        )

        (name,) = given.values
        find = find_tool_format if given.flag.name == "tool-call-parser" else find_reasoning_format
        try:
            find(name)
        except ValueError:
            self._ignore(
                given, f"there is no parser {name} here; answers have the form of the tokenizer's"
            )
        else:
            self._pass(given)

    def _translate_devices(self, given: GivenFlag) -> None:
        if self._is_profile_set:
            self._pass(given)
        else:
            self._ignore(
                given,
                "the times of steps are those of the default profile's hardware; choose one of "
                "such servers with --profile, or predict it with `dragoman profile`",
            )

    @property
    def _is_profile_set(self) -> bool:
        return ":" in self._engine or self._is_set("profile")

    def _is_set(self, name: str) -> bool:
        """Whether a setting of Dragoman's is set that is no flag of vLLM."""
        return (
            f"--{name}" in self._own_names
            or f"DRAGOMAN_{name.upper()}" in self._environment
            or name in self._names_in_file
        )

    @cached_property
    def _names_in_file(self) -> frozenset[str]:
        """The settings in Dragoman's configuration file."""
        from dragoman.settings import SettingsError  # noqa: PLC0415
        from dragoman.settings.sources import list_names_in_file  # noqa: PLC0415

        path = self._environment.get("DRAGOMAN_CONFIG")
        for word, following in pairwise((*self._others, "")):
            name, separator, attached = word.partition("=")
            if name == "--config":
                path = attached if separator else following
        try:
            return frozenset() if path is None else list_names_in_file(path)
        except SettingsError:
            # Reported when the settings are loaded.
            return frozenset()

    def _translate_kv_cache_dtype(self, given: GivenFlag) -> None:
        from .engine.kv_cache_dtype import check_kv_cache_dtype  # noqa: PLC0415

        try:
            check_kv_cache_dtype(given.values[0])
        except ValueError:
            self._ignore(given, "the size of this format is not known; the profile's is used")
        else:
            self._pass(given)

    def _translate_hybrid_kv_cache(self, given: GivenFlag) -> None:
        name = "disable" if given.is_on else "enable"
        self._arguments.append(f"--{name}-hybrid-kv-cache-manager")

    def _check_certificates(self, given: GivenFlag) -> None:
        if given.values[0] != "0":
            self._ignore(given)

    def _translate_speculation(self, given: GivenFlag) -> None:
        (text,) = given.values
        short = {
            "spec-method": "method",
            "spec-model": "model",
            "spec-tokens": "num_speculative_tokens",
        }.get(given.flag.name)
        if short is not None:
            self._speculative[short] = int(text) if text.isdigit() else text
            return
        from .engine.speculative_decoding import IGNORED_FIELDS  # noqa: PLC0415

        fields = _decode_object(given, text)
        ignored = [name for name in fields if name in IGNORED_FIELDS]
        for name in ignored:
            del fields[name]
            self._ignore(
                msgspec.structs.replace(given, written=f"{given.written}.{name}"),
                "it does not change which drafts are scheduled",
            )
        self._speculative |= fields

    def _translate_kv_transfer(self, given: GivenFlag) -> None:
        from .engine.kv_transfer_config import KvExtraConfig, KvTransferConfig  # noqa: PLC0415

        fields = self._choose_connector(given, _decode_object(given, given.values[0]))
        if not fields:
            return
        extra = fields.get("kv_connector_extra_config")
        if isinstance(extra, dict):
            settings = cast("dict[str, object]", extra)
            fields["kv_connector_extra_config"] = self._keep_known(
                given, settings, KvExtraConfig.__struct_fields__, ".kv_connector_extra_config"
            )
        known = self._keep_known(given, fields, KvTransferConfig.__struct_fields__, "")
        self._arguments += "--kv-transfer-config", _encode(known)

    def _keep_known(
        self, given: GivenFlag, fields: Mapping[str, object], known: Sequence[str], path: str
    ) -> dict[str, object]:
        """Return the fields that have an effect here, and report the others."""
        for name in fields.keys() - set(known):
            self._ignore(
                msgspec.structs.replace(given, written=f"{given.written}{path}.{name}"),
                "it concerns how vLLM's connector moves keys and values; here a transfer takes "
                "base_seconds and bytes / bandwidth, see docs/simulator.md",
            )
        return {name: value for name, value in fields.items() if name in known}

    def _choose_connector(
        self, given: GivenFlag, fields: dict[str, object]
    ) -> dict[str, object] | None:
        """Return the settings of the connector that is simulated, which may be one of
        several; None if there is none.
        """
        connector = fields.get("kv_connector")
        given_extra = fields.get("kv_connector_extra_config")
        extra = cast("dict[str, object]", given_extra) if isinstance(given_extra, dict) else {}
        nested = extra.get("connectors")
        if connector in (None, "NixlConnector"):
            return fields
        if isinstance(nested, list):
            inner = [
                self._choose_connector(given, cast("dict[str, object]", each))
                for each in cast("list[object]", nested)
                if isinstance(each, dict)
            ]
            chosen = next((each for each in inner if each is not None), None)
            role = {"kv_role": fields.get("kv_role", "kv_both")}
            return None if chosen is None else role | chosen
        size = extra.get("cpu_bytes_to_use")
        if connector == "OffloadingConnector" and isinstance(size, int | float):
            self._offloading = given, size
            return None
        if fields.get("kv_role", "kv_both") != "kv_both":
            raise ValueError(
                f"{given.written} of vLLM: the transfers of kv_connector {connector!r} between "
                f"prefill and decode are not simulated; NixlConnector's are."
            )
        self._ignore(
            given,
            f"{connector} is not simulated, so keys and values leave the cache of the GPU for "
            "good; --kv-offloading-size simulates host memory",
        )
        return None

    # What depends on several flags.

    def _set_offloading(self, given: GivenFlag, size: float) -> None:
        if "--kv-transfer-config" in self._arguments:
            self._ignore(
                msgspec.structs.replace(given, written=f"OffloadingConnector in {given.written}"),
                "host memory is not simulated together with transfers between instances",
            )
        else:
            self._arguments += "--kv-offloading-size", str(size / 2**30)

    def _set_ranks(self) -> None:
        """Set the ranks that this process serves, on one port or on one for each."""
        size = self._read_count("data-parallel-size")
        local = self._read_count("data-parallel-size-local")
        flags = [
            self._given[name]
            for name in _RANK_FLAGS
            if name in self._given and self._given[name].is_on
        ]
        names = {given.flag.name for given in flags}
        if "data-parallel-multi-port-external-lb" in names:
            self._arguments += "--instances", str(local or size or 1)
        elif local is not None or names & {"data-parallel-rank", "data-parallel-external-lb"}:
            self._arguments += "--data-parallel-size", str(local or 1)
        elif size is not None:
            self._arguments += "--data-parallel-size", str(size)
        if flags and (local or 1) != size:
            written = ", ".join(given.written for given in flags)
            self._information.append(f"{written} of vLLM: {_RANK_ADVICE}")

    def _set_kv_events(self, given: GivenFlag) -> None:
        """Publish at the ports of vLLM, which adds a rank's number among all nodes' ranks;
        here ranks are numbered from this process's first one on.
        """
        (text,) = given.values
        first = self._find_first_rank()
        if first:
            # Rare, and its modules would slow every start.
            from .engine.kv_publisher import (  # noqa: PLC0415
                offset_endpoint_port,
                parse_kv_events_config,
            )

            config = parse_kv_events_config(text)
            replay = config.replay_endpoint
            moved = msgspec.structs.replace(
                config,
                endpoint=offset_endpoint_port(config.endpoint, first),
                replay_endpoint=None if replay is None else offset_endpoint_port(replay, first),
            )
            text = msgspec.json.encode(moved).decode()
        self._pass(msgspec.structs.replace(given, values=(text,)))

    def _find_first_rank(self) -> int:
        """Find the number of this process's first rank, as vLLM does."""
        for name in ("data-parallel-start-rank", "data-parallel-rank"):
            if (rank := self._read_number(name, 0)) is not None:
                return rank
        if not (self._read_count("data-parallel-size") or 1) > 1:
            return 0
        node = self._read_number("node-rank", 0) or 0
        return node * (self._read_count("data-parallel-size-local") or 0)

    def _read_count(self, name: str) -> int | None:
        return self._read_number(name, 1)

    def _read_number(self, name: str, minimum: int) -> int | None:
        given = self._given.get(name)
        if given is None:
            return None
        (text,) = given.values
        if not text.isdigit() or int(text) < minimum:
            raise ValueError(
                f"{given.written} of vLLM must be a number from {minimum} on, not {text!r}"
            )
        return int(text)

    def _set_model(self, model: str) -> None:
        """Serve a model of this name as `vllm serve` would: to everyone who reaches the
        address that the line names, unless it or the environment has a key.
        """
        if "served-model-name" not in self._given:
            self._arguments += "--served-model-name", model
        if "tokenizer" not in self._given and not self._is_set("tokenizer"):
            self._information.append(
                f"{model} is the model's name only: no model is loaded, and tokens are counted "
                f"with a small tokenizer; --tokenizer {model} downloads its own"
            )
        key = self._environment.get("VLLM_API_KEY")
        if key and not self._has_key:
            self._arguments += "--api-key", key
        elif self._is_open:
            self._arguments.append("--no-auth")
            if "--store" not in self._own_names and "DRAGOMAN_STORE" not in self._environment:
                # What other servers have stored on disk is not for everyone.
                self._arguments += "--store", "memory"
            self._information.append(
                f"As in vLLM, everyone who reaches {self._given['host'].values[0]} may use the "
                "server, also the routes of administrators; --api-key sets a key"
            )

    @property
    def _has_key(self) -> bool:
        """Whether there is a key, or none on purpose."""
        return "api-key" in self._given or bool(
            {"DRAGOMAN_API_KEY", "DRAGOMAN_KEYS_FILE"} & self._environment.keys()
            or {"--keys-file", "--no-auth"} & self._own_names
        )

    @property
    def _is_open(self) -> bool:
        """Whether the server needs no key since vLLM's would not, and nothing of
        Dragoman's says anything about keys.
        """
        from dragoman.settings.combinations import is_loopback  # noqa: PLC0415

        return (
            self._is_vllm_line
            and "host" in self._given
            and not is_loopback(self._given["host"].values[0])
            and not self._has_key
            and not {"--require-auth", "--config"} & self._own_names
            and not _ACCESS_VARIABLES & self._environment.keys()
        )


def _decode_object(given: GivenFlag, text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{given.written} of vLLM must be a JSON object: {error}") from None


def _encode(fields: Mapping[str, object]) -> str:
    return msgspec.json.encode(fields).decode()
