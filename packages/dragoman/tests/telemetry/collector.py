"""An OTLP/HTTP collector on loopback, with its own parser of protobuf's wire format."""

from __future__ import annotations

import struct
import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[int, list[Any]]


def read_message(data: bytes) -> Message:
    """Parse the values of each field: numbers, or bytes, which may be messages
    themselves.
    """
    fields: Message = defaultdict(list)
    position = 0

    def read_varint() -> int:
        nonlocal position
        number = shift = 0
        while True:
            byte = data[position]
            position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while position < len(data):
        tag = read_varint()
        match tag & 7:
            case 0:
                fields[tag >> 3].append(read_varint())
            case 1:
                fields[tag >> 3].append(data[position : position + 8])
                position += 8
            case 2:
                length = read_varint()
                assert position + length <= len(data)
                fields[tag >> 3].append(data[position : position + length])
                position += length
            case 5:
                fields[tag >> 3].append(data[position : position + 4])
                position += 4
            case other:
                raise AssertionError(f"wire type {other}")
    return fields


def read_value(data: bytes) -> Any:
    """Parse an AnyValue."""
    ((number, (value,)),) = read_message(data).items()
    match number:
        case 1:
            return value.decode()
        case 2:
            return bool(value)
        case 3:
            return value - 2**64 if value >= 2**63 else value
        case 4:
            return struct.unpack("<d", value)[0]
        case _:
            return [read_value(item) for item in read_message(value)[1]]


def read_attributes(items: list[bytes]) -> dict[str, Any]:
    pairs = [read_message(item) for item in items]
    return {pair[1][0].decode(): read_value(pair[2][0]) for pair in pairs}


@dataclass
class SpanSeen:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    state: str
    attributes: dict[str, Any]
    error: str | None


@dataclass
class PointSeen:
    service: str
    name: str
    unit: str
    count: int
    sum: float
    buckets: list[int]
    bounds: list[float]
    attributes: dict[str, Any]


@dataclass
class Collector:
    """Records what it receives.

    statuses: the statuses of the first responses, in order.
    """

    url: str = ""
    spans: list[SpanSeen] = field(default_factory=list[SpanSeen])
    points: list[PointSeen] = field(default_factory=list[PointSeen])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    bodies: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    statuses: list[int] = field(default_factory=list[int])

    def receive(self, path: str, body: bytes) -> None:
        self.bodies.append((path, body))
        for resource_item in read_message(body)[1]:
            resource = read_message(resource_item)
            service = read_attributes(read_message(resource[1][0])[1])["service.name"]
            for scope in map(read_message, resource[2]):
                for item in scope[2]:
                    if path == "/v1/traces":
                        self.spans.append(read_span(service, item))
                    else:
                        self.points += read_points(service, item)


def read_span(service: str, data: bytes) -> SpanSeen:
    fields = read_message(data)
    status = read_message(fields[15][0]) if fields[15] else None
    return SpanSeen(
        service,
        fields[5][0].decode(),
        fields[1][0].hex(),
        fields[2][0].hex(),
        fields[4][0].hex() if fields[4] else "",
        fields[6][0],
        int.from_bytes(fields[7][0], "little"),
        int.from_bytes(fields[8][0], "little"),
        fields[3][0].decode() if fields[3] else "",
        read_attributes(fields[9]),
        status[2][0].decode() if status is not None and status[2] else None,
    )


def read_points(service: str, data: bytes) -> list[PointSeen]:
    metric = read_message(data)
    histogram = read_message(metric[9][0])
    assert histogram[2] == [2]
    points: list[PointSeen] = []
    for point in map(read_message, histogram[1]):
        buckets = point[6][0]
        bounds = point[7][0]
        points.append(
            PointSeen(
                service,
                metric[1][0].decode(),
                metric[3][0].decode(),
                int.from_bytes(point[4][0], "little"),
                struct.unpack("<d", point[5][0])[0],
                list(struct.unpack(f"<{len(buckets) // 8}Q", buckets)),
                list(struct.unpack(f"<{len(bounds) // 8}d", bounds)),
                read_attributes(point[9]),
            )
        )
    return points


@contextmanager
def collecting() -> Generator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            status = collector.statuses.pop(0) if collector.statuses else 200
            if status == 200:
                collector.receive(self.path, body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
