from __future__ import annotations

import pytest
from msgspec.structs import replace

from dragoman_sim.engine.profile import Hardware, ModelProfile
from dragoman_sim.lab.gpus import find_gpu
from dragoman_sim.lab.model_shape import load_model_shape
from dragoman_sim.lab.prior import Prior, predict_prior, read_prior
from dragoman_sim.lab.roofline import Parallelism, predict_profile


def predict(hardware: Hardware, model: ModelProfile) -> tuple[float, float]:
    """Return the expected base and cost of a context token."""
    prior = predict_prior(hardware, model)
    assert prior.base is not None
    assert prior.per_context_token is not None
    return prior.base, prior.per_context_token


@pytest.mark.parametrize(
    ("gpu", "model", "tensor"),
    [
        ("h100-sxm", "meta-llama/Llama-3.3-70B-Instruct", 4),
        ("a100-sxm", "meta-llama/Llama-3.1-8B", 1),
        ("rtx4090", "Qwen/Qwen3-8B", 1),
    ],
)
def test_predict_prior_equals_predicted_profile(gpu: str, model: str, tensor: int) -> None:
    profile = predict_profile(
        find_gpu(gpu), load_model_shape(model), Parallelism(tensor), name="predicted"
    )
    base, context = predict(profile.hardware, profile.model)
    latency = profile.latency
    assert context == pytest.approx(latency.per_context_token, rel=1e-3)
    # A profile's weights include the input embedding, of which a step reads little.
    assert latency.base <= base == pytest.approx(latency.base, rel=0.08)
    assert read_prior(profile) == Prior(latency.base, latency.per_context_token)


def test_predict_prior_uses_memory_bandwidth_of_hardware() -> None:
    model = ModelProfile("m", weight_bytes=16e9, kv_bytes_per_token=131072, layers=32)
    base, context = predict(Hardware("H100"), model)
    slower, slower_context = predict(Hardware("H100", memory_bandwidth=3.35e12 / 2), model)
    assert slower_context == pytest.approx(2 * context, rel=1e-3)
    assert base < slower < 2 * base


def test_predict_prior_of_unknown_device_has_default_constants() -> None:
    hardware = Hardware("prototype", memory_bandwidth=1e12, tensor_parallel=2)
    model = ModelProfile("m", weight_bytes=16e9, kv_bytes_per_token=131072)
    base, _ = predict(hardware, model)
    assert base == pytest.approx(16e9 / 2 / 0.85e12 + 0.7e-3, rel=0.01)
    linked = replace(hardware, link_latency=1e-5)
    assert predict(linked, replace(model, layers=32))[0] == pytest.approx(
        base + 32 * (35e-6 + 2 * 1e-5), rel=0.001
    )


def test_predict_prior_without_sizes_expects_nothing() -> None:
    assert predict_prior(Hardware("prototype"), ModelProfile("m", 16e9)) == Prior()
    assert predict_prior(Hardware("H100"), ModelProfile("m")) == Prior()


def test_read_prior_of_experts_has_their_curve() -> None:
    profile = predict_profile(
        find_gpu("rtxpro6000"),
        load_model_shape("Qwen/Qwen3-30B-A3B"),
        Parallelism(1, 2, expert=True),
        name="predicted",
    )
    prior = read_prior(profile)
    assert prior.per_expert_token == profile.latency.per_expert_token
    assert prior.mixed_base == profile.latency.mixed_base > 0
