"""`vllm serve` lines of public charts and recipes start on `dragoman serve sim` unchanged.

Variables of a chart are replaced by a value, and Helm's conditions are resolved.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.engine.serving import post_chat

from dragoman.launch import build_models, build_serving_options
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman_sim.instances import expand_instances

from .test_vllm_serve import read

LLM_D = "https://github.com/llm-d/llm-d/blob"
RECIPES = "https://github.com/vllm-project/recipes/blob"

LINES = {
    f"{LLM_D}/342afc7250e78b0f40c3b0c37f090643161fd6d9/guides/precise-prefix-cache-aware/"
    "ms-kv-events/values.yaml": r"""
        vllm serve Qwen/Qwen3-0.6B \
        --host 0.0.0.0 \
        --port 8200 \
        --block-size 64 \
        --prefix-caching-hash-algo sha256_cbor \
        --kv-events-config "{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://gaie-kv-events-epp.llm-d.svc.cluster.local:5557\",\"topic\":\"kv@10.0.0.7@Qwen/Qwen3-0.6B\"}"
    """,
    f"{LLM_D}/34272a6415a3535960d205ff22d7dbac7e8c3e36/guides/pd-disaggregation/modelserver/gpu/"
    "vllm/base/patch-decode.yaml": r"""
        vllm serve openai/gpt-oss-120b
        --disable-access-log-for-endpoints=/health,/metrics,/v1/models
        --tensor-parallel-size=4
        --block-size=128
        --kv-transfer-config '{"kv_connector":"NixlConnector", "kv_role":"kv_both"}'
        --no-disable-hybrid-kv-cache-manager
        --port=8200
        --shutdown-timeout=60
    """,
    f"{LLM_D}/03da3b0079e8d95f5ca9ec1aa066367decb9ff6e/guides/wide-ep-lws/manifests/modelserver/"
    "base/decode.yaml": r"""
        vllm serve \
          deepseek-ai/DeepSeek-R1-0528 \
          --port 8200 \
          --disable-uvicorn-access-log \
          --enable-expert-parallel \
          --data-parallel-hybrid-lb \
          --data-parallel-size 16 \
          --data-parallel-size-local 8 \
          --data-parallel-address 10.0.0.7 \
          --data-parallel-rpc-port 5555 \
          --data-parallel-start-rank 8 \
          --trust-remote-code \
          --kv_transfer_config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    """,
    f"{LLM_D}/04291b76eb00959cd3912f1b4f40108aec6bbc82/guides/wide-ep-lws/experimental-dp-aware/"
    "manifests/modelserver/base/decode.yaml": r"""
        vllm serve \
          deepseek-ai/DeepSeek-R1-0528 \
          --host=0.0.0.0 \
          --port=8200 \
          --disable-access-log-for-endpoints=/health,/metrics,/v1/models,/readyz \
          --data-parallel-multi-port-external-lb \
          --data-parallel-supervisor-port=8208 \
          --data-parallel-size 16 \
          --data-parallel-size-local 8 \
          --data-parallel-start-rank 8 \
          --data-parallel-address="10.0.0.7" \
          --data-parallel-rpc-port=5555 \
          --enable-expert-parallel \
          --kv_transfer_config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_load_failure_policy":"fail"}' \
          --all2all-backend deepep_low_latency \
          --max-model-len 65536 \
          --kv-cache-memory-bytes=
    """,  # noqa: E501
    "https://github.com/vllm-project/production-stack/blob/"
    "010004eea56fa9ee522a4cf66d363a213fdc67ab/helm/templates/deployment-vllm-multi.yaml": r"""
        vllm serve "mistralai/Mistral-7B-Instruct-v0.2" "--host" "0.0.0.0" "--port" "8000"
        "--enable-lora" "--enable-auto-tool-choice" "--tool-call-parser" "mistral"
        "--enable-chunked-prefill" "--no-enable-prefix-caching" "--max-model-len" "4096"
        "--dtype" "bfloat16" "--tensor-parallel-size" "2" "--max-num-seqs" "400"
        "--gpu_memory_utilization" "0.8" "--max_loras" "4"
        "--kv-transfer-config" '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
        "--chat-template" "/templates/tool_chat_template_mistral.jinja"
    """,
    f"{RECIPES}/00143a1a4aace5143b6825bcaa0fc30505015c61/OpenAI/GPT-OSS.md#mi300x": r"""
        vllm serve openai/gpt-oss-120b --tensor-parallel-size=8 --attention-backend ROCM_AITER_UNIFIED_ATTN -cc.pass_config.fuse_rope_kvcache=True -cc.use_inductor_graph_partition=True --gpu-memory-utilization 0.95 --block-size=64
    """,  # noqa: E501
    f"{RECIPES}/00143a1a4aace5143b6825bcaa0fc30505015c61/OpenAI/GPT-OSS.md#evaluation": r"""
        vllm serve openai/gpt-oss-120b \
          --tensor_parallel_size 8 \
          --max-model-len 131072 \
          --max-num-batched-tokens 10240 \
          --max-num-seqs 128 \
          --gpu-memory-utilization 0.85 \
          --no-enable-prefix-caching
    """,
    f"{RECIPES}/07a41636fa3138153f4003433189100bbc7f1404/Llama/Llama3.3-70B.md": r"""
        vllm serve nvidia/Llama-3.3-70B-Instruct-FP8 \
          --config Llama3.3_Blackwell.yaml \
          --tensor-parallel-size 1 \
          --max-num-seqs 512 \
          --max-model-len 10240
    """,
    f"{RECIPES}/2bd6bc4ef178f16e5a8daa6a87d8933edf519651/DeepSeek/DeepSeek-V3_1.md": r"""
        vllm serve deepseek-ai/DeepSeek-V3.1 \
          --enable-expert-parallel \
          --tensor-parallel-size 8 \
          --served-model-name ds31
    """,
    f"{RECIPES}/0119a6617d1dd6fbe46c62aab8729511dcdbfbe0/Qwen/Qwen3-VL.md": r"""
        vllm serve Qwen/Qwen3-VL-235B-A22B-Instruct \
          --tensor-parallel-size 8 \
          --limit-mm-per-prompt.video 0 \
          --mm-encoder-tp-mode data \
          --mm-processor-cache-type shm \
          --async-scheduling \
          --gpu-memory-utilization 0.95
    """,
    f"{RECIPES}/0bf258697cc336ed2b0ab6c509840267cfb53b34/GLM/GLM-4.5.md": r"""
        vllm serve zai-org/GLM-4.5-Air-FP8 \
             --tensor-parallel-size 8 \
             --tool-call-parser glm45 \
             --reasoning-parser glm45 \
             --enable-auto-tool-choice
    """,
    "https://github.com/adibaral/lmcache-experiments/blob/main/serve_cpu_offloading.sh": r"""
        vllm serve meta-llama/Llama-3.1-8B-Instruct \
            --quantization bitsandbytes \
            --max-model-len 8192 \
            --gpu-memory-utilization 0.9 \
            --kv-transfer-config \
            '{"kv_connector":"LMCacheConnectorV1",
              "kv_role":"kv_both"
            }'
    """,
}
FILES = {
    "Llama3.3_Blackwell.yaml": """\
kv-cache-dtype: fp8
compilation-config: '{"pass_config":{"enable_fi_allreduce_fusion":true,"enable_noop":true}}'
async-scheduling: true
no-enable-prefix-caching: true
max-num-batched-tokens: 8192
""",
}
"""Configuration files that the lines name, at the same addresses."""


def parse_line(line: str) -> Settings:
    return read(shlex.join(["sim", *shlex.split(line.replace("\\\n", " "))]))


@pytest.fixture(autouse=True)
def config_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_public_line_builds_unchanged(line: str) -> None:
    settings = parse_line(line)
    name = settings.served_model_name[0]
    assert name in line
    for instance in expand_instances(settings) if settings.instances.items else [settings]:
        (model,) = build_models(instance, SystemClock())
        assert model.name == name
    ignored = [notice for notice in settings.notices if "no effect" in notice]
    assert all(": " in notice for notice in ignored), "each says why"
    assert len(ignored) <= 8


STARTED = [line for line in LINES.values() if "kv-" not in line and "kv_transfer" not in line]
"""Lines that open no further sockets, which other tests may have."""


@pytest.mark.parametrize("line", STARTED[:3])
async def test_public_line_serves_requests(line: str) -> None:
    settings = parse_line(line).replace(time_scale=1000.0, store="memory")
    models = build_models(settings, SystemClock())
    app = build_asgi_app(models, options=build_serving_options(settings))
    await models.start()
    try:
        answer = await post_chat(app, model=settings.served_model_name[0], max_tokens=4)
    finally:
        await models.stop()
    assert 1 <= answer["usage"]["completion_tokens"] <= 4
