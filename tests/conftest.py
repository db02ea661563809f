"""How hard hypothesis looks: `quick` by default, `ci`, or `long`, by `--hypothesis-profile` or DRAGOMAN_HYPOTHESIS."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_PATIENT = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "quick", max_examples=50, deadline=None, derandomize=True, database=None, suppress_health_check=_PATIENT
)
settings.register_profile("ci", max_examples=500, deadline=None, database=None, suppress_health_check=_PATIENT)
settings.register_profile("long", max_examples=10_000, deadline=None, suppress_health_check=_PATIENT)
settings.load_profile(os.environ.get("DRAGOMAN_HYPOTHESIS", "quick"))
