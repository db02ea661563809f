"""Weight updates that arrive in several requests. Independent of HTTP."""

from __future__ import annotations

from ..core.control import Weights, WeightsInMemory, WeightsOnDisk
from ..core.errors import BodyTooLarge, Conflict, RequestError


class WeightUploads:
    """Pending weight updates by model; used only when complete."""

    def __init__(self) -> None:
        self._open: dict[str, list[Weights]] = {}

    def start(self, model: str) -> None:
        """Start an update, discarding one that a trainer did not finish."""
        self._open[model] = []

    def is_open(self, model: str) -> bool:
        return model in self._open

    def discard(self, model: str) -> None:
        self._open.pop(model, None)

    def add(self, model: str, part: Weights, max_bytes: int) -> None:
        """Add a part. max_bytes: limit of all parts.

        Raises:
            BodyTooLarge: the limit is exceeded.
        """
        size = sum(
            len(file)
            for upload in (*self._open[model], part)
            if isinstance(upload, WeightsInMemory)
            for file in upload.files
        )
        if size > max_bytes:
            raise BodyTooLarge(f"The pieces together exceed the limit of {max_bytes} bytes.")
        self._open[model].append(part)

    def finish(self, model: str) -> Weights:
        """Return the complete weights and end the update.

        Raises:
            Conflict: no update is in progress.
            RequestError: the parts do not form complete weights.
        """
        if model not in self._open:
            raise Conflict("No weight update is in progress.")
        match self._open.pop(model):
            case []:
                raise RequestError("No weights were sent since the update started.", param="weights")
            case [WeightsOnDisk() as stored]:
                return stored
            case parts:
                files = [file for part in parts if isinstance(part, WeightsInMemory) for file in part.files]
                if len(files) < len(parts):
                    raise RequestError("Send weights in pieces or give a path, not both.", param="weights")
                return WeightsInMemory(tuple(files))
