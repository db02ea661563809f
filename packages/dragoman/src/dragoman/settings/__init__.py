"""Settings of the server: each is defined once, and read from the command line, the
environment and a file.
"""

from .definition import Settings
from .fields import (
    ENV_PREFIX,
    FIELDS,
    FORMER_NAMES,
    NEGATED_NAMES,
    SettingField,
    describe_unsupported,
    find_changed_settings,
    format_flag,
)
from .sections import (
    GenerationConfig,
    Instance,
    Instances,
    ModelEntries,
    ModelEntry,
    Option,
    RaySettings,
    Secret,
    SettingsError,
    read_ray_settings,
)
from .serving import ServingSettings
from .sources import (
    check_exposure,
    is_loopback,
    load_keywords,
    load_or_create_key,
    load_settings,
    state_directory,
    suggest_name,
)

__all__ = [
    "ENV_PREFIX",
    "FIELDS",
    "FORMER_NAMES",
    "NEGATED_NAMES",
    "GenerationConfig",
    "Instance",
    "Instances",
    "ModelEntries",
    "ModelEntry",
    "Option",
    "RaySettings",
    "Secret",
    "ServingSettings",
    "SettingField",
    "Settings",
    "SettingsError",
    "check_exposure",
    "describe_unsupported",
    "find_changed_settings",
    "format_flag",
    "is_loopback",
    "load_keywords",
    "load_or_create_key",
    "load_settings",
    "read_ray_settings",
    "state_directory",
    "suggest_name",
]
