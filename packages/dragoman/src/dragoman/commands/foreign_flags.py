"""Flags of vLLM, llama.cpp, SGLang, TGI and Ollama that `serve`, `run` and `chat` do not
have, and what to use instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman_cli import explain_foreign_flag, list_flags

_VLLM = "vLLM"
_LLAMA = "llama.cpp"
_SGLANG = "SGLang"
_TGI = "TGI"
_ENGINE = (
    "it is an argument of vLLM's engine; with an installed vLLM, `dragoman serve vllm:MODEL "
    """--vllm-args '{"NAME": VALUE}'`"""
)
_DEVICES = (
    "only vLLM's engine uses several devices; with an installed vLLM, `dragoman serve vllm:MODEL "
    """--vllm-args '{"tensor_parallel_size": N}'`"""
)
_LLAMA_SERVER = (
    "llama.cpp's default is used; for another value run `llama-server` with it, and `dragoman "
    "serve http://HOST:PORT/v1` in front"
)
_DETECTED = "the server detects it from the model's files. Leave it out"
_ALWAYS = "it is always on. Leave it out"
_SAMPLING = (
    "a request sets it; the default is set by --override-generation-config "
    """'{"temperature": 0.2}'"""
)
_LOGS = (
    "logs go to standard error, `2>> FILE` collects them; --log-level debug, --log-format json "
    "and --no-access-log change them"
)

SERVE_FLAGS = (
    list_flags(
        "vLLM, llama.cpp, SGLang and TGI",
        "-m --model --model-path --model-id",
        "the model is the argument, as in `dragoman serve MODEL`: a GGUF file, a directory or "
        "`org/name`",
    ),
    list_flags(
        _LLAMA,
        "-hf -hfr --hf-repo -hff --hf-file -mu --model-url",
        "the model is the argument, as in `dragoman serve org/name:Q4_K_M`",
    ),
    list_flags(
        "llama.cpp and SGLang",
        "-c --ctx-size --context-length --max-input-tokens --max-input-length --max-total-tokens",
        "use --max-model-len N",
    ),
    list_flags(
        "llama.cpp and SGLang",
        "-np --parallel --max-running-requests --max-concurrent-requests",
        "use --max-num-seqs N",
    ),
    list_flags(
        "llama.cpp, SGLang and TGI",
        "-b --batch-size -ub --ubatch-size --chunked-prefill-size --max-prefill-tokens "
        "--max-batch-prefill-tokens",
        "use --max-num-batched-tokens N",
    ),
    list_flags(_TGI, "--max-batch-total-tokens", "use --kv-cache-tokens N"),
    list_flags(_LLAMA, "-ngl --n-gpu-layers", "use --gpu-layers N"),
    list_flags(_LLAMA, "-t -tb --threads-batch", "use --threads N"),
    list_flags(_LLAMA, "--threads-http", "use --workers N"),
    list_flags(_LLAMA, "-a --alias", "use --served-model-name"),
    list_flags(_LLAMA, "-mm -mmu --mmproj-url", "use --mmproj FILE"),
    list_flags(
        "llama.cpp and SGLang",
        "--lora --lora-scaled --lora-paths",
        "use --lora-modules ADAPTER=DIRECTORY",
    ),
    list_flags(_LLAMA, "--chat-template-file", "use --chat-template FILE"),
    list_flags(
        _LLAMA,
        "--jinja --no-jinja",
        "templates are always rendered by Jinja. Leave it out",
    ),
    list_flags(
        _LLAMA,
        "--reasoning-format --reasoning-budget -rea --reasoning",
        "reasoning is always separated from the answer (--reasoning-parser chooses how), and a "
        "request limits it",
    ),
    list_flags(
        "llama.cpp, vLLM and SGLang",
        "--embedding --embeddings --reranking --rerank --pooling --task --runner --convert "
        "--is-embedding",
        _DETECTED,
    ),
    list_flags(
        "llama.cpp and SGLang",
        "--metrics --slots --no-slots --props --enable-metrics",
        "`/metrics` is always on, and there are no routes for slots. Leave it out",
    ),
    list_flags(
        _LLAMA,
        "-ctk --cache-type-k -ctv --cache-type-v",
        "use --dtype, which is the type of llama.cpp's KV cache",
    ),
    list_flags(
        _LLAMA,
        "-fa --flash-attn",
        "it is on where llama.cpp can; --deterministic turns it off. Leave it out",
    ),
    list_flags(
        _LLAMA,
        "--mlock --no-mmap --mmap -dev -ts --tensor-split -sm --split-mode -mg --main-gpu -ot "
        "--override-tensor --numa -cmoe --cpu-moe -ncmoe --n-cpu-moe -kvu --kv-unified --swa-full "
        "-nkvo --no-kv-offload -nr --rope-scaling --rope-scale --rope-freq-base "
        "--rope-freq-scale --override-kv -md --model-draft --draft-max --draft-min -ngld "
        "--rpc --prio --poll --cpu-mask -C",
        _LLAMA_SERVER,
    ),
    list_flags(
        _LLAMA,
        "-n --predict --n-predict --temp --temperature --top-k --top-p --min-p --typical "
        "--repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --mirostat "
        "--dry-multiplier --xtc-probability --grammar --json-schema -j",
        _SAMPLING,
    ),
    list_flags(
        "llama.cpp and SGLang",
        "--cache-reuse --cache-prompt --slot-save-path -sps --slot-prompt-similarity -cram "
        "--cache-ram",
        "prefixes are always reused; --kv-offloading-dir keeps them on disk",
    ),
    list_flags(
        "vLLM and SGLang",
        "--enable-prefix-caching --disable-radix-cache",
        "prefixes are always reused, unless --no-enable-prefix-caching is given",
    ),
    list_flags("llama.cpp and vLLM", "-to --timeout", "use --request-timeout SECONDS"),
    list_flags(_LLAMA, "--api-key-file", "use --keys-file FILE, which `dragoman keys add` writes"),
    list_flags(_LLAMA, "--ssl-key-file", "use --ssl-keyfile FILE"),
    list_flags(_LLAMA, "--ssl-cert-file", "use --ssl-certfile FILE"),
    list_flags(
        _VLLM,
        "--ssl-ca-certs --ssl-cert-reqs",
        "clients' certificates are checked by a proxy in front; see docs/production.md",
    ),
    list_flags(
        "vLLM, llama.cpp and SGLang",
        "--root-path --api-prefix",
        "a proxy in front removes the prefix, or a program mounts the application; see "
        "docs/embedding.md",
    ),
    list_flags(_VLLM, "--middleware", "a program adds it; see docs/embedding.md"),
    list_flags(
        _VLLM,
        "--allow-credentials --allowed-methods --allowed-headers",
        "use --allowed-origins, which sets them too",
    ),
    list_flags(_LLAMA, "--no-webui --webui", "use --no-ui or --ui"),
    list_flags(
        _LLAMA, "--path", "the server has no files but its page; a proxy in front serves others"
    ),
    list_flags(
        "llama.cpp, vLLM and SGLang",
        "--log-file -lv --log-verbosity -v --verbose --log-disable --log-timestamps "
        "--uvicorn-log-level --log-config-file --enable-log-requests --no-enable-log-requests "
        "--disable-log-requests --disable-log-stats --disable-uvicorn-access-log "
        "--log-requests --log-level-http --max-log-len",
        _LOGS,
    ),
    list_flags(
        "llama.cpp and vLLM",
        "-hft --hf-token",
        "set the variable HF_TOKEN, which `ps` cannot show",
    ),
    list_flags(_LLAMA, "--offline", "set the variable HF_HUB_OFFLINE=1"),
    list_flags("vLLM and SGLang", "--download-dir", "set the variable HF_HOME"),
    list_flags(_TGI, "--huggingface-hub-cache", "set the variable HF_HUB_CACHE"),
    list_flags(_TGI, "--hostname", "use --host"),
    list_flags(
        _VLLM,
        "--enable-auto-tool-choice --enable-reasoning --no-enable-auto-tool-choice",
        "tool calls and reasoning are always parsed; --tool-call-parser and --reasoning-parser "
        "choose how. Leave it out",
    ),
    list_flags(
        _VLLM,
        "--tool-parser-plugin --reasoning-parser-plugin",
        "docs/plugins.md says how a package adds a parser",
    ),
    list_flags(
        _VLLM,
        "--tool-server --chat-template-content-format --response-role",
        "it has no counterpart here. Leave it out",
    ),
    list_flags(
        _VLLM,
        "--enable-prompt-tokens-details --enable-server-load-tracking "
        "--enable-request-id-headers --disable-frontend-multiprocessing "
        "--exclude-tools-when-tool-choice-none --enable-tokenizer-info-endpoint "
        "--enable-log-outputs --enable-log-deltas",
        _ALWAYS,
    ),
    list_flags(
        _VLLM,
        "--enable-force-include-usage",
        "a request asks for it with `stream_options`. Leave it out",
    ),
    list_flags(
        _VLLM,
        "--h11-max-incomplete-event-size --h11-max-header-count",
        "headers are limited by the server itself; --max-body-bytes limits bodies",
    ),
    list_flags(
        _VLLM,
        "-q",
        "use --quantization",
    ),
    list_flags("vLLM and SGLang", "-dp --dp --dp-size", "use --data-parallel-size N"),
    list_flags(_VLLM, "-sc", "use --speculative-config JSON"),
    list_flags(
        "vLLM, SGLang and TGI",
        "--tensor-parallel-size -tp --tp --tp-size --num-shard --sharded",
        _DEVICES,
    ),
    list_flags(
        _SGLANG,
        "--mem-fraction-static --schedule-policy --enable-torch-compile --disable-cuda-graph "
        "--grammar-backend --sampling-backend --random-seed --dist-init-addr "
        "--enable-hierarchical-cache --speculative-algorithm",
        "run SGLang's server with it, and `dragoman serve http://HOST:PORT/v1` in front",
    ),
    list_flags(
        _TGI,
        "--max-best-of --max-stop-sequences --waiting-served-ratio --cuda-memory-fraction "
        "--speculate --json-output --otlp-service-name --disable-custom-kernels",
        "it has no counterpart here. Leave it out",
    ),
    list_flags(
        _VLLM,
        "--gpu-memory-utilization --pipeline-parallel-size -pp --enforce-eager "
        "--swap-space --kv-cache-dtype --kv-cache-memory-bytes --load-format --tokenizer-mode "
        "--config-format --limit-mm-per-prompt --enable-expert-parallel "
        "--compilation-config -O -cc --distributed-executor-backend --hf-overrides "
        "--hf-config-path --generation-config --guided-decoding-backend "
        "--structured-outputs-config --enable-sleep-mode --cpu-offload-gb --max-lora-rank "
        "--max-cpu-loras --fully-sharded-loras --mm-processor-kwargs --mm-processor-cache-gb "
        "--media-io-kwargs --code-revision --tokenizer-revision "
        "--disable-custom-all-reduce --disable-cascade-attn --disable-sliding-window "
        "--calculate-kv-scales --model-impl --enable-prompt-embeds --async-scheduling "
        "--scheduler-cls --logits-processors --logprobs-mode --max-parallel-loading-workers "
        "--data-parallel-address --data-parallel-size-local --data-parallel-rpc-port "
        "--data-parallel-backend --enable-eplb --eplb-config --optimization-level "
        "--skip-tokenizer-init --allowed-local-media-path --allowed-media-domains "
        "--cudagraph-capture-sizes --worker-cls --nnodes --node-rank --master-addr "
        "--max-num-partial-prefills --kv-cache-metrics --show-hidden-metrics-for-version "
        "--otlp-traces-endpoint --collect-detailed-traces --preemption-mode "
        "--num-scheduler-steps --max-seq-len-to-capture --additional-config",
        _ENGINE,
    ),
)
"""Flags that `dragoman serve` does not have."""

ASK_FLAGS = (
    list_flags(
        _LLAMA,
        "-m --model -hf -hfr --hf-repo",
        "the model is the first argument: a GGUF file, a directory or `org/name:Q4_K_M`",
    ),
    list_flags(
        _LLAMA,
        "-p --prompt -f --file",
        "the prompt is what follows the model, or the standard input",
    ),
    list_flags(_LLAMA, "-n --predict --n-predict", "use --max-tokens N"),
    list_flags(_LLAMA, "--temp", "use --temperature"),
    list_flags(_LLAMA, "-sys --system-prompt -sysf --system-prompt-file", "use --system TEXT"),
    list_flags(
        _LLAMA, "-j --json-schema -jf --json-schema-file --grammar", "use `run --schema FILE`"
    ),
    list_flags(
        _LLAMA,
        "-cnv --conversation -i --interactive -st --single-turn",
        "`dragoman chat MODEL` is a conversation, `dragoman run MODEL` one answer",
    ),
    list_flags(
        _LLAMA,
        "-c --ctx-size -ngl --n-gpu-layers --gpu-layers -t --threads -fa --flash-attn --jinja "
        "-b --batch-size --mlock --lora --mmproj",
        "it is a setting of the server: start `dragoman serve` with it, or set its variable, such "
        "as DRAGOMAN_MAX_MODEL_LEN=8K",
    ),
    list_flags(
        _LLAMA, "--top-k --min-p --repeat-penalty --presence-penalty --frequency-penalty",
        "set the server's default: DRAGOMAN_OVERRIDE_GENERATION_CONFIG='{\"top_k\": 40}'",
    ),
    list_flags("Ollama", "--format", "use `run --schema FILE`"),
    list_flags("Ollama", "--think", "use --reasoning-effort LEVEL"),
    list_flags("Ollama", "--hidethinking", "use `chat --hide-reasoning`"),
    list_flags(
        "Ollama",
        "--keepalive --nowordwrap --insecure --verbose",
        "it has no counterpart here. Leave it out",
    ),
)  # fmt: skip
"""Flags that `dragoman run` and `dragoman chat` do not have."""


def explain_serve_flag(
    command: str, arguments: Sequence[str], own_flags: frozenset[str]
) -> str | None:
    """Explain an unknown option of `serve`; an `ExplainOption`."""
    return explain_foreign_flag(SERVE_FLAGS, command, arguments, own_flags)


def explain_ask_flag(
    command: str, arguments: Sequence[str], own_flags: frozenset[str]
) -> str | None:
    """Explain an unknown option of `run` and `chat`; an `ExplainOption`."""
    return explain_foreign_flag(ASK_FLAGS, command, arguments, own_flags)
