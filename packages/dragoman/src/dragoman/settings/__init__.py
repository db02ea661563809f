"""Settings of the server: each is defined once, and read from the command line, the
environment and a file.

The names below are imported on first use: engines' settings, which `fields` loads,
import the module `option` of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .combinations import check_exposure as check_exposure
    from .combinations import is_loopback as is_loopback
    from .definition import Settings as Settings
    from .fields import ENV_PREFIX as ENV_PREFIX
    from .fields import FIELDS as FIELDS
    from .fields import NEGATED_NAMES as NEGATED_NAMES
    from .fields import SettingField as SettingField
    from .fields import describe_unsupported as describe_unsupported
    from .fields import find_changed_settings as find_changed_settings
    from .fields import format_flag as format_flag
    from .option import Option as Option
    from .option import Secret as Secret
    from .option import SettingsError as SettingsError
    from .sections import GenerationConfig as GenerationConfig
    from .sections import Instance as Instance
    from .sections import Instances as Instances
    from .sections import ModelEntries as ModelEntries
    from .sections import ModelEntry as ModelEntry
    from .sections import RaySettings as RaySettings
    from .sections import read_ray_settings as read_ray_settings
    from .serving import ServingSettings as ServingSettings
    from .sources import load_keywords as load_keywords
    from .sources import load_settings as load_settings
    from .sources import suggest_name as suggest_name
    from .state_folder import state_directory as state_directory
    from .vllm import VllmSettings as VllmSettings

_MODULES = {
    "ENV_PREFIX": "fields",
    "FIELDS": "fields",
    "NEGATED_NAMES": "fields",
    "GenerationConfig": "sections",
    "Instance": "sections",
    "Instances": "sections",
    "ModelEntries": "sections",
    "ModelEntry": "sections",
    "Option": "option",
    "RaySettings": "sections",
    "Secret": "option",
    "ServingSettings": "serving",
    "SettingField": "fields",
    "Settings": "definition",
    "SettingsError": "option",
    "VllmSettings": "vllm",
    "check_exposure": "combinations",
    "describe_unsupported": "fields",
    "find_changed_settings": "fields",
    "format_flag": "fields",
    "is_loopback": "combinations",
    "load_keywords": "sources",
    "load_settings": "sources",
    "read_ray_settings": "sections",
    "state_directory": "state_folder",
    "suggest_name": "sources",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
