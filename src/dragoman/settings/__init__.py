"""What a server is told: every setting, defined once and read from everywhere."""

from .definition import Settings
from .fields import FIELDS, FORMER_NAMES, PREFIX, Field, flag_of
from .generation import GenerationConfig
from .heeded import told, unheeded
from .option import Option, Secret, SettingsError
from .parts import Instance, Instances, ModelEntries, ModelEntry
from .sources import hint, is_loopback, load
from .state import kept_key, state_directory

__all__ = [
    "FIELDS",
    "FORMER_NAMES",
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
    "flag_of",
    "hint",
    "is_loopback",
    "kept_key",
    "load",
    "state_directory",
    "told",
    "unheeded",
]
