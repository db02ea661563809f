"""`dragoman profiles`: lists the simulator's built-in profiles of hardware and model."""

from __future__ import annotations

import click

from dragoman_cli import build_command


def profiles() -> None:
    """List the simulator's profiles: measured ones with their error on held-out
    requests, predicted ones as such.
    """
    from ..engine.profile import list_profiles, load  # noqa: PLC0415 - numpy is slow to load

    click.echo(
        f"{'profile':<28}{'hardware':<32}{'model':<28}{'TTFT':>8}{'latency':>9}{'TPOT':>8}   "
        f"error of the mean"
    )
    for name in list_profiles():
        profile = load(name)
        error = None if profile.calibration is None else profile.calibration.error
        means = () if error is None else (error.ttft.mean, error.latency.mean, error.tpot.mean)
        errors_text = (
            "{:>+8.1%}{:>+9.1%}{:>+8.1%}".format(*means)
            if means
            else "   predicted from datasheets"
        )
        click.echo(f"{name:<28}{profile.hardware.name:<32}{profile.model.name:<28}{errors_text}")


COMMAND = build_command("profiles", profiles, short_help="List the simulator's profiles.")
