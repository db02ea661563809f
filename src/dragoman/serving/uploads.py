"""Weights that a trainer sends in several requests, until they are whole. Knows no HTTP."""

from __future__ import annotations

from ..core.control import Sent, Stored, Weights
from ..core.errors import BodyTooLarge, Conflict, RequestError


class Uploads:
    """Weights that come in several pieces, by the model they are for: none is used before all are there."""

    def __init__(self) -> None:
        self._open: dict[str, list[Weights]] = {}

    def start(self, model: str) -> None:
        """What was begun before, by a trainer that may have died, is given up."""
        self._open[model] = []

    def is_open(self, model: str) -> bool:
        return model in self._open

    def give_up(self, model: str) -> None:
        self._open.pop(model, None)

    def add(self, model: str, piece: Weights, most: int) -> None:
        """most: bytes of all pieces. Raises BodyTooLarge."""
        size = sum(len(file) for each in (*self._open[model], piece) if isinstance(each, Sent) for file in each.files)
        if size > most:
            raise BodyTooLarge(f"The pieces together exceed the limit of {most} bytes.")
        self._open[model].append(piece)

    def finish(self, model: str) -> Weights:
        """Raises RequestError where the pieces are no whole. It is over in any case."""
        if model not in self._open:
            raise Conflict("No weight update is in progress.")
        match self._open.pop(model):
            case []:
                raise RequestError("No weights were sent since the update started.", param="weights")
            case [Stored() as stored]:
                return stored
            case pieces:
                files = [file for piece in pieces if isinstance(piece, Sent) for file in piece.files]
                if len(files) < len(pieces):
                    raise RequestError("Send weights in pieces or give a path, not both.", param="weights")
                return Sent(tuple(files))
