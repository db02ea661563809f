"""vLLM's engine flags that the simulator does not have: the reason, and what to use
instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_TIMES = (
    "it changes the time that steps take, which the profile determines; measure a server with "
    "this flag and fit a profile to it with `dragoman calibrate`"
)
_MEMORY = (
    "it changes the number of KV cache blocks; set that with --num-gpu-blocks-override, or let "
    "`dragoman profile --gpu-memory-utilization` predict it"
)
_DEVICES = (
    "the devices of a replica are those of its profile; use a profile of such servers, from "
    "`dragoman profile --tensor-parallel-size N --data-parallel-size N --enable-expert-parallel` "
    "or `dragoman calibrate`"
)
_PIPELINE = (
    "layers or contexts divided among devices this way are not simulated; only tensor, data and "
    "expert parallelism are"
)
_OFFLOADING = (
    "a profile has times of steps, not of a second tier of the KV cache; `dragoman simulate` and "
    "`dragoman serve sim` have this flag"
)
_CACHES = (
    "this variant of the KV cache is not simulated: layers keep keys and values, of the whole "
    "context or a window, or one state, as the profile says. Leave it out"
)
_MODEL = (
    "no model is loaded: the profile names hardware and model, and `dragoman serve sim` takes "
    "texts from --tokenizer and replies from --sim-replies. Leave it out"
)
_PROCESSES = "it places processes and workers, and a simulated server is one process. Leave it out"
_MULTIMODAL = (
    "no multimodal encoder is simulated; `dragoman serve sim --sim-image-tokens N` accepts images "
    "as N tokens each"
)
_OBSERVABILITY = (
    "it concerns vLLM's own logs and traces; the metrics of `dragoman serve sim` are always on. "
    "Leave it out"
)
_ADAPTERS = (
    "the cost of adapters is in the profile (lora_base, per_lora_token, lora_load), whatever "
    "their form. Leave it out"
)
_SLEEP = (
    "`/sleep` and `/wake_up` of `dragoman serve sim` are always on, without memory to release. "
    "Leave it out"
)
_TEXTS = (
    "it concerns the content of answers, and simulated ones are random or come from "
    "--sim-replies. Leave it out"
)
_SPECULATION = "speculative decoding is set as a whole; use --speculative-config"
_STEP_TOKENS = "the tokens of a step are limited by one number; use --max-num-batched-tokens"
_QUEUE = (
    "the queue is limited by `dragoman serve sim --max-queued-requests` and --max-queued-tokens"
)
_EVENTS = "simulated replicas do not publish events; use it with `dragoman serve sim`"
_TRANSFERS = (
    "replicas for each are set with --prefill-replicas and --decode-replicas; `dragoman serve "
    "sim` has this flag"
)
_ADAPTIVE = "it is off unless the profile sets it. Leave it out"
_REMOVED = (
    "vLLM has no such flag any more; preempted requests are computed again, here as there. Leave "
    "it out"
)
_FORMER = "vLLM 0.33 has no such flag any more. Leave it out"
_SERVER = "it concerns vLLM's own HTTP server; `dragoman serve sim` has another one. Leave it out"
_ANSWERS = (
    "it changes the form of vLLM's answers; `dragoman serve sim` answers as vLLM does without it. "
    "Leave it out"
)
_LOG = (
    "it concerns vLLM's log; `dragoman serve sim` has --log-level, --no-access-log and "
    "--request-log. Leave it out"
)
_CERTIFICATES = (
    "clients' certificates are not checked here, so the server would be open; a proxy in front "
    "checks them"
)
_MIDDLEWARE = "its Python code cannot run here, and may be what protects the server"
_HEADLESS = (
    "such a node serves no HTTP; leave the node out, and set --data-parallel-size on the others"
)
_GRPC = "gRPC is not simulated, only HTTP"
_SERVED = "`dragoman serve sim` has this flag"

_REASONS: dict[str, str] = {
    _TIMES: (
        "dtype quantization quantization-config allow-deprecated-quantization enforce-eager "
        "attention-backend attention-config compilation-config cudagraph-capture-sizes "
        "max-cudagraph-capture-size optimization-level performance-mode kernel-config "
        "ir-op-priority enable-flashinfer-autotune monokernel moe-backend linear-backend "
        "sparse-indexer-topk-backend disable-cascade-attn use-fp64-gumbel "
        "disable-custom-all-reduce all2all-backend enable-dbo ubatch-size "
        "dbo-decode-token-threshold dbo-prefill-token-threshold enable-eplb eplb-config "
        "expert-placement-strategy enable-batch-sharded-sampling enable-hc-sp gdn-prefill-backend "
        "kda-prefill-backend kda-decode-backend disable-nccl-for-dp-synchronization "
        "cpu-offload-gb cpu-offload-params offload-backend offload-group-size "
        "offload-num-in-group offload-prefetch-step offload-params model-impl engram-config "
        "additional-config use-v2-block-manager num-scheduler-steps q cc ac"
    ),
    _MEMORY: (
        "gpu-memory-utilization device-memory-utilization kv-cache-memory-bytes "
        "kv-cache-dtype-skip-layers"
    ),
    _DEVICES: "tensor-parallel-size tp data-parallel-size dp enable-expert-parallel ep",
    _PIPELINE: (
        "pipeline-parallel-size pp decode-context-parallel-size dcp prefill-context-parallel-size "
        "pcp dcp-comm-backend dcp-q-replicate dcp-kv-cache-interleave-size "
        "cp-kv-cache-interleave-size enable-elastic-ep elastic-ep-max-dp-size dp-sync-interval "
        "prefill-schedule-interval diffusion-config dc"
    ),
    _OFFLOADING: "kv-offloading-size kv-offloading-backend",
    _CACHES: (
        "disable-sliding-window kv-sharing-fast-prefill "
        "swa-bounded-replay prefix-match-unit mamba-backend "
        "mamba-ssu-algorithm enable-mamba-cache-stochastic-rounding mamba-cache-philox-rounds "
        "mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size mamba-cache-mode "
        "enable-mamba-shared-prefix-checkpoint replayssm-buffer-len use-replayssm"
    ),
    _MODEL: (
        "model runner convert tokenizer tokenizer-mode trust-remote-code hf-config-path "
        "allowed-local-media-path allowed-media-domains revision code-revision tokenizer-revision "
        "skip-tokenizer-init served-model-name config-format hf-token hf-overrides "
        "model-class-overrides pooler-config load-format download-dir safetensors-load-strategy "
        "safetensors-prefetch-num-threads safetensors-prefetch-block-size "
        "model-loader-extra-config ignore-patterns use-tqdm-on-load pt-load-map-location "
        "weight-transfer-config enable-prompt-embeds renderer-num-workers io-processor-plugin "
        "aux-output-config enable-return-routed-experts enable-trace-replay chat-template "
        "prefix-caching-hash-algo"
    ),
    _PROCESSES: (
        "distributed-executor-backend master-addr master-port nnodes n node-rank r "
        "distributed-timeout-seconds cpu-distributed-timeout-seconds numa-bind numa-bind-nodes "
        "numa-bind-cpus device-ids data-parallel-rank dpn data-parallel-start-rank dpr "
        "data-parallel-size-local dpl data-parallel-address dpa data-parallel-rpc-port dpp "
        "data-parallel-backend dpb data-parallel-hybrid-lb dph data-parallel-external-lb dpe "
        "data-parallel-multi-port-external-lb dpm enable-ep-weight-filter enable-shm-tensor-arena "
        "max-parallel-loading-workers ray-workers-use-nsight worker-cls worker-extension-cls "
        "enable-fault-tolerance fault-tolerance-config shutdown-timeout "
        "fail-on-environ-validation watchdog-config enable-cumem-allocator "
        "enable-nccl-comm-suspend scheduler-cls stream-interval"
    ),
    _MULTIMODAL: (
        "language-model-only limit-mm-per-prompt enable-mm-embeds media-io-kwargs "
        "mm-processor-kwargs mm-processor-cache-gb mm-processor-cache-type mm-hasher-algorithm "
        "mm-shm-cache-max-object-size-mb mm-encoder-only mm-encoder-tp-mode "
        "mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path "
        "mm-encoder-fp8-scale-save-path mm-encoder-fp8-scale-save-margin interleave-mm-strings "
        "skip-mm-profiling video-pruning-rate video-pruning-method mm-tensor-ipc "
        "mm-processor-device mm-ipc-gpu-memory-gb mm-device-do-normalize disable-chunked-mm-input "
        "ec-transfer-config ec-manager-config"
    ),
    _OBSERVABILITY: (
        "disable-log-stats aggregate-engine-logging enable-log-requests logging-config log-level "
        "log-config-file show-hidden-metrics-for-version otlp-traces-endpoint "
        "collect-detailed-traces per-request-spec-decode-metrics kv-cache-metrics "
        "kv-cache-metrics-sample custom-histogram-buckets cudagraph-metrics "
        "enable-layerwise-nvtx-tracing enable-mfu-metrics enable-logging-iteration-details "
        "jit-monitor-mode jit-monitor-verbose profiler-config"
    ),
    _ADAPTERS: (
        "max-lora-rank lora-dtype enable-tower-connector-lora max-cpu-loras fully-sharded-loras "
        "lora-target-modules default-mm-loras specialize-active-lora enable-mixed-moe-lora-format "
        "enable-moe-shared-loras max-lora-cls-labels disable-lora lora-modules"
    ),
    _SLEEP: (
        "enable-sleep-mode sleep-mode-backend sleep-mode-offload-cudagraph "
        "sleep-preserve-parameter-names"
    ),
    _TEXTS: (
        "max-logprobs logprobs-mode return-sampling-mask generation-config "
        "override-generation-config logits-processors reasoning-parser reasoning-parser-plugin "
        "reasoning-config structured-outputs-config watermark-config"
    ),
    _SPECULATION: "spec-method spec-model spec-tokens sc",
    _STEP_TOKENS: "max-num-scheduled-tokens",
    _QUEUE: "max-num-queued-reqs max-num-queued-tokens",
    _EVENTS: "kv-events-config",
    _TRANSFERS: "kv-transfer-config",
    _ADAPTIVE: "no-long-prefill-token-threshold-adaptive",
    "random numbers come from the workload's options": "seed",
    _REMOVED: "swap-space preemption-mode",
    _SERVER: (
        "allow-credentials allowed-methods allowed-headers ssl-ciphers enable-ssl-refresh "
        "root-path disable-fastapi-docs enable-offline-docs h11-max-incomplete-event-size "
        "h11-max-header-count enable-request-id-headers enable-server-load-tracking "
        "enable-tokenizer-info-endpoint enable-scale-out enable-flash-late-interaction tokens-only "
        "sse-keep-alive-interval data-parallel-supervisor-port dp-supervisor-probe-interval-s "
        "dp-supervisor-probe-timeout-s dp-supervisor-probe-failure-threshold grpc-port "
        "disable-frontend-multiprocessing api-server-count asc"
    ),
    _ANSWERS: (
        "chat-template-content-format response-role return-tokens-as-token-ids "
        "enable-auto-tool-choice exclude-tools-when-tool-choice-none tool-parser-plugin "
        "tool-strict-level tool-server trust-request-mm-kwargs default-chat-template-kwargs "
        "reasoning-effort-map enable-prompt-tokens-details enable-per-request-metrics "
        "enable-force-include-usage cohere-is-reasoning-model cohere-format "
        "anthropic-disabled-thinking-effort fingerprint-mode fingerprint-value enable-reasoning "
        "guided-decoding-backend guided-decoding-disable-additional-properties "
        "guided-decoding-disable-any-whitespace guided-decoding-disable-fallback"
    ),
    _LOG: (
        "max-log-len enable-log-outputs enable-log-deltas log-error-stack "
        "disable-access-log-for-endpoints"
    ),
    _CERTIFICATES: "ssl-cert-reqs ssl-ca-certs",
    _MIDDLEWARE: "middleware",
    _HEADLESS: "headless",
    _GRPC: "grpc",
    _SERVED: (
        "api-key trust-request-chat-template tool-call-parser allowed-origins host port uds "
        "uvicorn-log-level disable-uvicorn-access-log ssl-keyfile ssl-certfile config"
    ),
    _FORMER: (
        "block-allocator calculate-kv-scales collect-model-forward-time cuda-graph-sizes device "
        "disable-async-output-proc disable-mm-preprocessor-cache "
        "enable-multimodal-encoder-data-parallel enable-prompt-adapter engine-use-ray "
        "long-lora-scaling-factors lora-extra-vocab-size max-long-partial-prefills "
        "max-num-partial-prefills max-prompt-adapter-token max-prompt-adapters "
        "max-seq-len-to-capture multi-step-stream-outputs num-lookahead-slots "
        "override-attention-dtype override-neuron-config override-pooler-config prompt-adapters "
        "qlora-adapter-name-or-path rope-scaling rope-theta scheduler-delay-factor scheduling-cls "
        "task tokenizer-pool-extra-config tokenizer-pool-size tokenizer-pool-type worker-use-ray"
    ),
}
REFUSED = frozenset({_CERTIFICATES, _MIDDLEWARE, _HEADLESS, _GRPC})
"""Reasons for which `serve sim` rejects a flag, since an answer without it would be wrong.
Other flags without an effect cause a warning.
"""
_REASON_BY_NAME = {name: reason for reason, names in _REASONS.items() for name in names.split()}


def explain_option(command: str, arguments: Sequence[str], own_flags: frozenset[str]) -> str | None:
    """Explain an unknown option of a command if it is a flag of vLLM; otherwise return
    None.

    command: the command's name.
    arguments: those of the command line.
    own_flags: flags of the command.
    """
    found = find_vllm_flag(arguments, own_flags)
    if found is None:
        return None
    flag, reason = found
    return f"{flag} of vLLM is not an option of `dragoman {command}`: {reason}."


def explain_vllm_flag(flag: str) -> str | None:
    """Return why the simulator lacks this flag, and what to use instead; None if no
    reason is listed for it.

    As in vLLM, `_` and `-` are equivalent, a flag can be negated (`--no-X`,
    `--disable-X`), and a field of a JSON value follows a dot
    (`--compilation-config.mode`).
    """
    name = flag.lstrip("-").partition("=")[0].partition(".")[0].replace("_", "-")
    positive = name.removeprefix("no-")
    candidates = [name, positive]
    for prefix, opposite in (("disable-", "enable-"), ("enable-", "disable-")):
        if positive.startswith(prefix):
            stem = positive.removeprefix(prefix)
            candidates += stem, opposite + stem
    return next(
        (_REASON_BY_NAME[candidate] for candidate in candidates if candidate in _REASON_BY_NAME),
        None,
    )


def find_vllm_flag(arguments: Iterable[str], own_flags: frozenset[str]) -> tuple[str, str] | None:
    """Find the first argument that is a vLLM flag which the command lacks. Return the
    flag and the reason, or None.

    own_flags: flags of the command.
    """
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        # A flag `--disable-X` of vLLM 0.33 was `--no-enable-X` before, which the
        # command may have.
        if (
            len(flag) < 2
            or not flag.startswith("-")
            or not own_flags.isdisjoint((flag, flag.replace("--disable-", "--no-enable-", 1)))
        ):
            continue
        if (reason := explain_vllm_flag(flag)) is not None:
            return flag.partition(".")[0], reason
    return None


def list_explained_flags() -> list[tuple[str, str]]:
    """List the unsupported flags of each reason, formatted for docs, with the reason."""
    return [
        (
            ", ".join(
                (f"`-{name}`" if len(name) <= 3 else f"`--{name}`") for name in names.split()
            ),
            reason,
        )
        for reason, names in _REASONS.items()
    ]
