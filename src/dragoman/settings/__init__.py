"""What a server is told: every setting, defined once and read from everywhere."""

from .definition import Settings
from .fields import FIELDS, PREFIX, Field
from .generation import GenerationConfig
from .heeded import told, unheeded
from .option import Option, Secret, SettingsError
from .parts import Instance, Instances, ModelEntries, ModelEntry
from .sources import hint, is_loopback, load
from .state import kept_key, state_directory

__all__ = [
    "FIELDS",
    "PREFIX",
    "Field",
    "GenerationConfig",
    "Instance",
    "Instances",
    "ModelEntries",
    "ModelEntry",
    "Option",
    "Secret",
    "Settings",
    "SettingsError",
    "hint",
    "is_loopback",
    "kept_key",
    "load",
    "state_directory",
    "told",
    "unheeded",
]
