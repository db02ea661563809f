"""An RL executor as an engine: any Python object that generates candidates for prompts of token ids."""

from .engine import RolloutEngine
from .executor import Candidate, DeclaresCapabilities, Executor, Pausable, RolloutSampling, Updatable, Versioned

__all__ = [
    "Candidate",
    "DeclaresCapabilities",
    "Executor",
    "Pausable",
    "RolloutEngine",
    "RolloutSampling",
    "Updatable",
    "Versioned",
]
