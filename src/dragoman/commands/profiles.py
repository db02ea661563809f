"""`dragoman profiles`: lists the simulator's hardware and model profiles with the error of each fit."""

from __future__ import annotations

import typer


def profiles() -> None:
    """List the simulator's profiles, each with its error on held-out requests."""
    from ..engines.simulator.profile import list_profiles, load  # noqa: PLC0415 - numpy is slow to load

    typer.echo(f"{'profile':<28}{'hardware':<26}{'model':<24}{'TTFT':>8}{'latency':>9}{'TPOT':>8}   error of the mean")
    for name in list_profiles():
        profile = load(name)
        error = None if profile.calibration is None else profile.calibration.error
        means = () if error is None else (error.ttft.mean, error.latency.mean, error.tpot.mean)
        errors_text = "{:>+8.1%}{:>+9.1%}{:>+8.1%}".format(*means) if means else ""
        typer.echo(f"{name:<28}{profile.hardware.name:<26}{profile.model.name:<24}{errors_text}")
