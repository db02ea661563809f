"""Two benchmark reports side by side, with the relative change."""

from __future__ import annotations

from .bench_report import METRICS, STATISTICS, BenchReport, list_milliseconds


def render_comparison(first: tuple[str, BenchReport], second: tuple[str, BenchReport]) -> str:
    """Render two reports side by side, with the relative change, which is blank if the
    first value is 0.

    first, second: name and report of a run.
    """
    (first_name, before) = first
    (second_name, after) = second
    rows = [
        (f"{name} {statistic}, ms", old, new)
        for name, read in METRICS
        for statistic, old, new in zip(
            STATISTICS,
            list_milliseconds(read(before)),
            list_milliseconds(read(after)),
            strict=True,
        )
    ]
    rows.append(("requests/s", before.request_rate, after.request_rate))
    rows.append(("output tokens/s", before.output_token_rate, after.output_token_rate))
    if before.goodput is not None and after.goodput is not None:
        rows.append(("goodput, requests/s", before.goodput, after.goodput))
    width = max(12, len(first_name) + 2, len(second_name) + 2)
    lines = [f"{'':<20}{first_name:>{width}}{second_name:>{width}}{'change':>10}"]
    for name, old, new in rows:
        if not old and not new:
            continue
        change = f"{new / old - 1:>+10.1%}" if old else f"{'':>10}"
        lines.append(f"{name:<20}{old:>{width}.2f}{new:>{width}.2f}{change}")
    return "\n".join(lines) + "\n"
