"""Whether tokens are sampled on a model's device: a trial compares it with numpy."""

from __future__ import annotations

import logging
from itertools import chain

import numpy as np

from ...core.errors import EngineError
from ...core.request import Sampling
from ...core.token_engine import TokenRequest
from ..batching import NumpySampledRows, SampledRows, SamplingState, build_rng
from ..batching.sampler import NO_TOKEN
from .backend import Device, torch
from .device_sampler import DeviceSampledRows

log = logging.getLogger(__name__)


_TRIAL_VOCAB = 77


_TRIAL_SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5, logit_bias=((5, 2.0),)),
    Sampling(temperature=0.8, seed=1),
    Sampling(temperature=0.8, seed=2, top_k=9, frequency_penalty=0.3),
    Sampling(
        temperature=1.2,
        seed=3,
        top_p=0.7,
        min_p=0.01,
        allowed_token_ids=tuple(range(9, _TRIAL_VOCAB)),
    ),
)


def can_sample_on_device(setting: str, device: Device) -> bool:
    """Whether tokens are sampled on a model's device; tries the device unless the
    setting rules it out.

    setting: see `TransformersOptions.sampling_device`.

    Raises: EngineError if the setting is `model` and the trial fails.
    """
    if setting == "host" or (setting == "auto" and device.type == "cpu"):
        return False
    try:
        check_device_sampler(device)
    except EngineError as error:
        if setting == "model":
            raise
        log.warning("Tokens are sampled on the host: %s", error.message)
        return False
    return True


def check_device_sampler(device: Device) -> None:
    """Compare the tokens and logprobs of a few steps with numpy's.

    Raises EngineError if the device's results differ, or if it lacks an operation.
    """

    def build_states() -> list[SamplingState]:
        requests = [
            TokenRequest(id="trial", prompt=(3, 4, 4), max_tokens=1, sampling=sampling, logprobs=4)
            for sampling in _TRIAL_SAMPLINGS
        ]
        return [SamplingState(request, _TRIAL_VOCAB, build_rng) for request in requests]

    def list_scores(rows: SampledRows) -> list[float]:
        scores = [score for score in rows.compute_logprobs(rows.tokens) if score]
        return [
            float(number) for score in scores for number in (score.rank or 0, *chain(*score.top))
        ]

    expected_states = build_states()
    states = build_states()
    masks: list[bytes | None] = [None, b"\xf7" * 10, None, None, None]
    rng = np.random.default_rng(0)
    for step in range(8):
        # Multiples of 1/4, so that many logits are equal.
        logits = (rng.integers(-16, 16, (len(states), _TRIAL_VOCAB)) / 4).astype(np.float32)
        if step == 7:
            logits[0, 3] = np.nan
            logits[2:, ::2] = -np.inf
        expected = NumpySampledRows(logits, expected_states, masks)
        try:
            rows = DeviceSampledRows(torch.from_numpy(logits).to(device), states, masks)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise EngineError(
                f"{device} cannot sample: {str(error).strip().partition(chr(10))[0]}"
            ) from error
        is_equal = rows.tokens == expected.tokens
        if not is_equal or not np.allclose(list_scores(rows), list_scores(expected), atol=1e-4):
            raise EngineError(f"{device} samples different tokens from the host")
        for state, expected_state, token in zip(
            states, expected_states, expected.tokens, strict=True
        ):
            if token != NO_TOKEN:
                state.observe(token)
                expected_state.observe(token)
