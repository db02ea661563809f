"""A figure of up to six panels, as PNG, SVG, PDF or one HTML page."""

# matplotlib's annotations of `plot` and its like are incomplete.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SUFFIXES = (".png", ".svg", ".pdf", ".html")
Panel = Callable[["Axes"], None]
"""Draws one panel of a figure."""
MEASURED = "tab:gray"
SIMULATED = "tab:blue"
LIMIT = "tab:red"


class PlotError(ValueError):
    """The plot cannot be drawn; the message gives the reason."""


def check_plot_path(path: str) -> None:
    """Raise PlotError before a long computation if its plot could not be drawn."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise PlotError(f"--plots {path}: the file must end in one of {', '.join(SUFFIXES)}")
    try:
        import matplotlib as _  # noqa: F401, PLC0415
    except ImportError:
        raise PlotError("--plots needs matplotlib: pip install 'dragoman-check[plots]'") from None


def draw_figure(path: str, panels: Sequence[Panel], title: str) -> None:
    """Draw up to six panels to a file. HTML is a page with one inline SVG: no scripts,
    no external resources.
    """
    check_plot_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    num_rows = max(2, -(-len(panels) // 3))
    figure = Figure(figsize=(15, 4.25 * num_rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for index, panel in enumerate(panels):
        panel(figure.add_subplot(num_rows, 3, index + 1))
    if Path(path).suffix.lower() != ".html":
        figure.savefig(path, dpi=110)
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    image = base64.b64encode(buffer.getvalue()).decode()
    page = (
        f"<!doctype html>\n<meta charset=utf-8>\n<title>{escape(title)}</title>\n"
        f'<img alt="{escape(title)}" style="max-width:100%" '
        f'src="data:image/svg+xml;base64,{image}">\n'
    )
    Path(path).write_text(page, encoding="utf-8")
