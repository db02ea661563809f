"""Builds a served model around an RL rollout executor."""

from __future__ import annotations

from pathlib import Path

from ..engines.rollout import Executor, Pausable, RolloutEngine, Updatable
from ..engines.rollout.control import RolloutControl, RolloutTraining
from ..pipeline.models import ServedModel
from ..prompts.tokenizer import load_tokenizer
from ..serving.clock import Clock
from ..settings import Settings
from .model_builder import build_token_model


def build_executor_model(
    settings: Settings, clock: Clock, executor: Executor, *, own_name: str, max_model_len: int
) -> ServedModel:
    """Raises OSError, ValueError, EngineError: the tokenizer cannot be loaded."""
    directory = Path(executor.tokenizer)
    engine = RolloutEngine(
        executor,
        vocab=load_tokenizer(directory).vocab_size,
        max_model_len=max_model_len,
        max_waiting=settings.max_queued_requests,
    )
    control = RolloutControl(engine, executor) if isinstance(executor, Pausable) else None
    training = RolloutTraining(engine, executor, control) if isinstance(executor, Updatable) else None
    return build_token_model(
        settings,
        clock,
        directory,
        engine,
        own_name=own_name,
        max_model_len=max_model_len,
        control=control,
        trainable=training,
    )
