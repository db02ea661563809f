"""Histograms by name and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ..core.histogram import Histogram
from .spans import Attributes, AttributeValue

if TYPE_CHECKING:
    pass


Series = tuple[tuple[str, AttributeValue], ...]


MAX_SERIES = 256
"""Maximum series of one metric; further ones are not recorded."""


class HistogramPoint(Struct, frozen=True):
    """One series of a histogram.

    start: start of the series, in Unix nanoseconds.
    """

    attributes: Mapping[str, AttributeValue]
    histogram: Histogram
    start: int


class HistogramMetric(Struct, frozen=True):
    name: str
    description: str
    unit: str
    points: tuple[HistogramPoint, ...]


class MetricSet:
    """Histograms by name and attributes.

    start: start of all series, in Unix nanoseconds.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._definitions: dict[str, tuple[str, str, Sequence[float]]] = {}
        self._series: dict[str, dict[Series, Histogram]] = {}

    def define(self, name: str, description: str, unit: str, bounds: Sequence[float]) -> None:
        self._definitions[name] = description, unit, bounds
        self._series[name] = {}

    def observe(self, name: str, value: float, attributes: Attributes) -> None:
        key = tuple(attributes.items())
        series = self._series[name]
        histogram = series.get(key)
        if histogram is None:
            if len(series) >= MAX_SERIES:
                return
            histogram = series[key] = Histogram(self._definitions[name][2])
        histogram.observe(value)

    def collect(self) -> list[HistogramMetric]:
        """Return all metrics that have a value. Thread-safe."""
        # The series are copied: the event loop may add one during the iteration.
        return [
            HistogramMetric(
                name,
                description,
                unit,
                tuple(
                    HistogramPoint(dict(key), histogram, self._start)
                    for key, histogram in list(self._series[name].items())
                ),
            )
            for name, (description, unit, _) in self._definitions.items()
            if self._series[name]
        ]
