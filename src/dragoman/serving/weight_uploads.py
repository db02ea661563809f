"""Weights that a trainer sends in several requests, until they are whole. Knows no HTTP."""

from __future__ import annotations

from ..core.control import Weights, WeightsInMemory, WeightsOnDisk
from ..core.errors import BodyTooLarge, Conflict, RequestError


class WeightUploads:
    """Weights that come in several pieces, by the model they are for: none is used before all are there."""

    def __init__(self) -> None:
        self._open: dict[str, list[Weights]] = {}

    def start(self, model: str) -> None:
        """What was begun before, by a trainer that may have died, is given up."""
        self._open[model] = []

    def is_open(self, model: str) -> bool:
        return model in self._open

    def discard(self, model: str) -> None:
        self._open.pop(model, None)

    def add(self, model: str, part: Weights, max_bytes: int) -> None:
        """most: bytes of all pieces. Raises BodyTooLarge."""
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
        """Raises RequestError where the pieces are no whole. It is over in any case."""
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
