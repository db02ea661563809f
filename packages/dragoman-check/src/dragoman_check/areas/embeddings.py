"""Checks of Embeddings: formats, sizes, order, usage."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..error_bodies import check_error_basics
from ..rules.json_values import JsonObject, require
from ..session import Session
from .generation import ONE_MODEL, check_model_name, find_context

AREA = Area(
    "embeddings",
    claims=("embeddings",),
    source="https://platform.openai.com/docs/api-reference/embeddings",
)
PATH = "/v1/embeddings"
TEXTS = ["A dog runs in the park.", "The price of oil rose again.", "Dogs like parks."]


async def request_embeddings(s: Session, input: Any, **fields: Any) -> JsonObject:
    body = {"model": s.model, "input": input, "encoding_format": "float", **fields}
    # A server whose model generates text may have no embeddings.
    return (await s.request(PATH, body, feature="embeddings of this model")).json()


def get_vectors(reply: JsonObject) -> list[list[float]]:
    return [entry["embedding"] for entry in reply["data"]]


def compare(a: list[float], b: list[float]) -> float:
    """Return the cosine similarity of two vectors; 0 if one of them is zero."""
    norm = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / norm if norm else 0.0


async def share_list(s: Session) -> JsonObject:
    return await s.share("embeddings.list", lambda: request_embeddings(s, TEXTS))


@AREA.check("A response is a `list` of `embedding` objects, with `model`.")
async def form(s: Session) -> None:
    reply = await share_list(s)
    require(
        reply["object"] == "list" and reply["model"],
        f"object is {reply['object']!r}, model is {reply['model']!r}",
    )
    for entry in reply["data"]:
        require(entry["object"] == "embedding", f"the object of an entry is {entry['object']!r}")
        require(
            all(isinstance(value, int | float) for value in entry["embedding"]),
            "an embedding is not a list of numbers",
        )


@AREA.check("There is one embedding per input, in order; `index` counts from 0.")
async def order(s: Session) -> None:
    reply = await share_list(s)
    require(
        [entry["index"] for entry in reply["data"]] == [0, 1, 2],
        f"the indices are {[e['index'] for e in reply['data']]}",
    )
    for text, vector in zip(TEXTS, get_vectors(reply), strict=True):
        alone = get_vectors(await request_embeddings(s, text))[0]
        # Not equality: batched arithmetic in half precision differs in the last digits.
        require(
            compare(alone, vector) > 0.999,
            f"the embedding of {text!r} alone differs from the one in the list",
        )


@AREA.check("All embeddings have the same number of dimensions.")
async def size(s: Session) -> None:
    sizes = {len(vector) for vector in get_vectors(await share_list(s))}
    require(len(sizes) == 1 and 0 not in sizes, f"the sizes are {sizes}")


@AREA.check("Different inputs have different embeddings.")
async def differ(s: Session) -> None:
    first, second, _ = get_vectors(await share_list(s))
    require(compare(first, second) < 0.9999, "two inputs have the same embedding")


@AREA.check("The same input always has the same embedding.")
async def same(s: Session) -> None:
    first, second = [get_vectors(await request_embeddings(s, TEXTS[0]))[0] for _ in range(2)]
    require(
        compare(first, second) > 0.9999, "the same input has a different embedding the second time"
    )


@AREA.check("No value is NaN or infinite.")
async def finite(s: Session) -> None:
    require(
        all(
            math.isfinite(value) for vector in get_vectors(await share_list(s)) for value in vector
        ),
        "an embedding has a value that is NaN or infinite",
    )


@AREA.check(
    "`encoding_format: base64` returns the same vector as little-endian float32: the "
    "official SDKs request it by default."
)
async def base64_format(s: Session) -> None:
    expected = get_vectors(await request_embeddings(s, TEXTS[0]))[0]
    text: object = (await request_embeddings(s, TEXTS[0], encoding_format="base64"))["data"][0][
        "embedding"
    ]
    require(isinstance(text, str), f"the embedding is a {type(text).__name__}")
    data = base64.b64decode(str(text))
    require(len(data) == 4 * len(expected), f"{len(data)} bytes for {len(expected)} values")
    vector = list(struct.unpack(f"<{len(expected)}f", data))
    # The cosine ignores lengths, but a server may normalize the vectors of one format
    # only.
    is_scaled = abs(math.hypot(*vector) - math.hypot(*expected)) > 0.01 * math.hypot(*expected)
    require(
        compare(vector, expected) > 0.9999 and not is_scaled,
        "the vector differs from that of encoding_format float",
    )


@AREA.check(
    "Embeddings have length 1: clients compare them by dot product.",
    level="should",
)
async def normalized(s: Session) -> None:
    norms = [math.hypot(*vector) for vector in get_vectors(await share_list(s))]
    require(all(abs(norm - 1) < 0.01 for norm in norms), f"the lengths are {norms}")


@AREA.check("`model` is the requested model.", level="should", except_for=ONE_MODEL)
async def model_name(s: Session) -> None:
    check_model_name(s, (await share_list(s))["model"])


@AREA.check(
    "An input that exceeds the context length is rejected, or counted completely in "
    "usage; it is not truncated silently.",
    except_for=("ollama",),
)
async def too_long(s: Session) -> None:
    context = await find_context(s)
    if context is None or context > 300_000:
        raise Skipped("the context length is unknown, or too large to exceed")
    await share_list(s)
    body = {"model": s.model, "input": "apple river " * context, "encoding_format": "float"}
    exchange = await s.post(PATH, body)
    if exchange.status == 200:
        tokens = exchange.json()["usage"]["prompt_tokens"]
        require(tokens >= 2 * context, f"usage reports {tokens} tokens for {2 * context} words")
    else:
        require(
            exchange.status in (400, 413, 422), f"status {exchange.status}: {exchange.message()}"
        )
        check_error_basics(exchange.json())


@AREA.check("`dimensions` is honoured, or rejected with an error that names it.")
async def dimensions(s: Session) -> None:
    await share_list(s)
    exchange = await s.post(
        PATH, {"model": s.model, "input": TEXTS[0], "encoding_format": "float", "dimensions": 8}
    )
    # A rejection is correct: truncated vectors are useless unless the model was trained
    # for it (Matryoshka).
    if exchange.status in (400, 422):
        require(
            b"dimension" in exchange.body or b"embed" in exchange.body,
            f"the error is {exchange.message()!r}",
        )
        return
    size = len(get_vectors(exchange.json())[0])
    require(size == 8, f"8 dimensions were requested, {size} returned")
    norms = [
        math.hypot(*vectors)
        for vectors in (get_vectors(await share_list(s))[0], get_vectors(exchange.json())[0])
    ]
    require(
        norms[0] < 0.99 or norms[1] > 0.99,
        f"the length is {norms[1]} with 8 dimensions, {norms[0]} with all",
    )


@AREA.check("`input` may be a list of token ids.")
async def token_ids(s: Session) -> None:
    reply = await request_embeddings(s, [300, 301, 302])
    require(len(reply["data"]) == 1, f"{len(reply['data'])} embeddings for one list of ids")


@AREA.check("`input` may be a list of lists of token ids.")
async def token_id_lists(s: Session) -> None:
    reply = await request_embeddings(s, [[300, 301], [302, 303, 304]])
    require(len(reply["data"]) == 2, f"{len(reply['data'])} embeddings for two lists of ids")


@AREA.check("Usage counts the tokens of all inputs.")
async def usage(s: Session) -> None:
    counts = [(await request_embeddings(s, text))["usage"]["prompt_tokens"] for text in TEXTS]
    total = (await share_list(s))["usage"]
    require(
        all(counts) and total["prompt_tokens"] == sum(counts),
        f"usage of single inputs: {counts}, of the list: {total}",
    )
    require(
        total["total_tokens"] == total["prompt_tokens"], f"total_tokens is {total['total_tokens']}"
    )


@AREA.check("A batch of 64 inputs returns 64 embeddings.")
async def batch(s: Session) -> None:
    vectors = get_vectors(await request_embeddings(s, [f"text {i}" for i in range(64)]))
    require(
        len(vectors) == 64 and all(map(any, vectors)),
        f"{len(vectors)} embeddings, {[*map(any, vectors)].count(False)} of them zero",
    )


@AREA.check("An unknown request field is ignored, or rejected with an error that names it.")
async def unknown_field(s: Session) -> None:
    await share_list(s)
    exchange = await s.post(PATH, {"model": s.model, "input": "a", "conformance_check": 1})
    require(
        exchange.status == 200 or b"conformance_check" in exchange.body, f"status {exchange.status}"
    )


def add_rejected() -> None:
    values: tuple[tuple[str, str, JsonObject], ...] = (
        ("no-input", "A request without `input` is rejected.", {}),
        ("empty-list", "An empty list as `input` is rejected.", {"input": []}),
        ("empty-text", "An empty string as `input` is rejected.", {"input": ""}),
        ("wrong-type", "An `input` that is an object is rejected.", {"input": {"a": 1}}),
        (
            "format",
            "An unknown `encoding_format` is rejected.",
            {"input": "a", "encoding_format": "wizard"},
        ),
        ("zero-dimensions", "`dimensions: 0` is rejected.", {"input": "a", "dimensions": 0}),
        (
            "unknown-model",
            "An unknown model is rejected.",
            {"input": "a", "model": "no-such-model"},
        ),
        ("unknown-ids", "Token ids outside the vocabulary are rejected.", {"input": [999_999_999]}),
    )

    def build(fields: JsonObject) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            await share_list(s)
            exchange = await s.post(PATH, {"model": s.model, **fields})
            require(
                exchange.status in (400, 404, 422),
                f"status {exchange.status}: {exchange.body[:200]!r}",
            )
            check_error_basics(exchange.json())

        return run

    for name, rule, fields in values:
        AREA.add(
            f"rejects-{name}",
            rule,
            build(fields),
            level="should" if name == "empty-text" else "must",
        )


add_rejected()
