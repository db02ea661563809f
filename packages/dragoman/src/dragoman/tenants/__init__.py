"""Tenants: named API keys with a role, limits and budgets, and the counters that
enforce these.
"""

from .counters import Counters, CounterState, Demand, LocalCounters
from .key_file import (
    KeyFileError,
    KeyHash,
    Tenant,
    describe_key_file_error,
    edit_key_file,
    generate_key,
    hash_key,
    load_key_file,
    parse_key_file,
)

__all__ = [
    "CounterState",
    "Counters",
    "Demand",
    "KeyFileError",
    "KeyHash",
    "LocalCounters",
    "Tenant",
    "describe_key_file_error",
    "edit_key_file",
    "generate_key",
    "hash_key",
    "load_key_file",
    "parse_key_file",
]
