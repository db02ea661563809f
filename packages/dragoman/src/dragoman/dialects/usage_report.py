"""OpenAI's usage routes for administrators: parses the query, and renders pages of time
buckets.

https://platform.openai.com/docs/api-reference/usage/completions
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ..core.errors import RequestError
from .field_errors import abbreviate, parse_digits

_WIDTHS = {"1h": (3600, 24, 168), "1d": (86400, 7, 31)}
"""Seconds of a bucket; default and maximum number of buckets on a page."""
_GROUPS = ("api_key_id", "model", "batch")
_NUMBERS = ("start_time", "end_time", "limit")
_LISTS = ("api_key_ids", "models", "group_by")
_MAX_TIME = 10**11


class UsageQuery(Struct, frozen=True):
    """A query for usage.

    start, end: Unix seconds, aligned to buckets; `end` is exclusive.
    width: seconds of a bucket.
    limit: buckets on the page, which begins at `start`.
    """

    start: int
    end: int
    width: int
    limit: int
    api_key_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    group_by: tuple[str, ...] = ()
    batch: bool | None = None

    @property
    def page_end(self) -> int:
        return min(self.end, self.start + self.limit * self.width)


class UsageRow(Struct, frozen=True):
    """Usage of one key with one model in a bucket.

    start: Unix seconds.
    name: the key's name, which a query may use instead of its id.
    requests: number of requests.
    input, cached, output: numbers of tokens; `cached` are part of `input`.
    """

    start: int
    api_key_id: str
    name: str
    model: str
    is_batch: bool
    requests: int
    input: int
    cached: int
    output: int


class UsageResult(Struct):
    """The sums of one group. Fields that only completions have are absent for
    embeddings.
    """

    object: str
    input_tokens: int = 0
    num_model_requests: int = 0
    output_tokens: int | UnsetType = UNSET
    input_cached_tokens: int | UnsetType = UNSET
    input_audio_tokens: int | UnsetType = UNSET
    output_audio_tokens: int | UnsetType = UNSET
    project_id: None = None
    user_id: None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: bool | UnsetType | None = UNSET
    service_tier: UnsetType | None = UNSET


class UsageBucket(Struct):
    start_time: int
    end_time: int
    results: list[UsageResult]
    object: str = "bucket"


class UsagePage(Struct):
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None
    object: str = "page"


def read_usage_query(items: Sequence[tuple[str, str]], now: float) -> UsageQuery:
    """Parse the query string's items. now: Unix seconds. Raises RequestError, with the
    parameter's name.
    """
    lists: dict[str, list[str]] = {name: [] for name in _LISTS}
    values: dict[str, str] = {}
    for raw_name, value in items:
        # The SDKs repeat a name with or without brackets.
        name = raw_name.removesuffix("[]")
        if name in lists:
            lists[name].append(value)
        elif name in (*_NUMBERS, "bucket_width", "page", "batch"):
            values[name] = value
        else:
            raise RequestError(
                f"`{abbreviate(name)}` is not supported.",
                param=abbreviate(name),
                code="unsupported_parameter",
            )
    width_name = values.get("bucket_width", "1d")
    if width_name not in _WIDTHS:
        raise RequestError("bucket_width must be `1h` or `1d`.", param="bucket_width")
    width, default_limit, max_limit = _WIDTHS[width_name]
    for group in lists["group_by"]:
        if group not in _GROUPS:
            raise RequestError(f"group_by must be one of {', '.join(_GROUPS)}.", param="group_by")
    if values.get("batch", "true") not in ("true", "false"):
        raise RequestError("batch must be `true` or `false`.", param="batch")
    numbers = {name: _read_number(name, values[name]) for name in _NUMBERS if name in values}
    if "start_time" not in numbers:
        raise RequestError("Missing required parameter: 'start_time'.", param="start_time")
    start = numbers["start_time"]
    end = numbers.get("end_time", int(now) + 1)
    if end <= start:
        raise RequestError("end_time must be after start_time.", param="end_time")
    limit = numbers.get("limit", default_limit)
    if not 1 <= limit <= max_limit:
        raise RequestError(
            f"limit must be from 1 to {max_limit} with buckets of {width_name}.", param="limit"
        )
    if "page" in values:
        start = _read_number("page", values["page"].removeprefix("page_"))
    return UsageQuery(
        start // width * width,
        -(-end // width) * width,
        width,
        limit,
        tuple(lists["api_key_ids"]),
        tuple(lists["models"]),
        tuple(lists["group_by"]),
        None if "batch" not in values else values["batch"] == "true",
    )


def _read_number(name: str, value: str) -> int:
    number = parse_digits(value, 11)
    if number is None or number >= _MAX_TIME:
        raise RequestError(f"{name} must be a number.", param=name)
    return number


def render_usage(query: UsageQuery, rows: Sequence[UsageRow], kind: str) -> bytes:
    """Render a page.

    rows: usage within the page's time.
    kind: `completions` or `embeddings`.
    """
    rows = [
        row
        for row in rows
        if (
            not query.api_key_ids
            or row.api_key_id in query.api_key_ids
            or row.name in query.api_key_ids
        )
        and (not query.models or row.model in query.models)
        and query.batch in (None, row.is_batch)
    ]
    buckets: list[UsageBucket] = []
    for start in range(query.start, query.page_end, query.width):
        end = start + query.width
        results = _sum_groups(query, [row for row in rows if start <= row.start < end], kind)
        buckets.append(UsageBucket(start, end, results))
    has_more = query.page_end < query.end
    return msgspec.json.encode(
        UsagePage(buckets, has_more, f"page_{query.page_end}" if has_more else None)
    )


def _sum_groups(query: UsageQuery, rows: Sequence[UsageRow], kind: str) -> list[UsageResult]:
    groups: dict[tuple[object, ...], UsageResult] = {}
    for row in rows:
        values: dict[str, object] = {
            "api_key_id": row.api_key_id,
            "model": row.model,
            "batch": row.is_batch,
        }
        group = tuple(values[name] for name in query.group_by)
        result = groups.get(group)
        if result is None:
            result = groups[group] = UsageResult(f"organization.usage.{kind}.result")
            if kind == "completions":
                result.output_tokens = result.input_cached_tokens = 0
                # OpenAI's SDK expects these fields of completions; this server
                # generates no audio.
                result.input_audio_tokens = result.output_audio_tokens = 0
                result.batch = result.service_tier = None
            result.api_key_id = row.api_key_id if "api_key_id" in query.group_by else None
            result.model = row.model if "model" in query.group_by else None
            if "batch" in query.group_by and kind == "completions":
                result.batch = row.is_batch
        result.input_tokens += row.input
        result.num_model_requests += row.requests
        if isinstance(result.output_tokens, int) and isinstance(result.input_cached_tokens, int):
            result.output_tokens += row.output
            result.input_cached_tokens += row.cached
    return list(groups.values())
