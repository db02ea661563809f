"""The types of body fields with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

INT32 = 2**31 - 1


# The limit of OpenAI's `top_logprobs`, and the default of vLLM's `max_logprobs`.
MAX_LOGPROBS = 20


MAX_CHOICES = 4_096
"""Maximum choices of one call, over all of its prompts."""


Count = Annotated[int, Meta(ge=0, le=INT32)]


AtLeastOne = Annotated[int, Meta(ge=1, le=INT32)]


CountOrUnlimited = Annotated[int, Meta(ge=-1, le=INT32)]
"""A count in which -1 means no limit or off, as in vLLM."""


TokenId = Count


MAX_LOGPROB_IDS = 1_024
"""Maximum ids of `logprob_token_ids`: each adds an entry to every token."""


Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


Penalty = Annotated[float, Meta(ge=-2, le=2)]


Probability = Annotated[float, Meta(ge=0, le=1)]


MAX_MESSAGES = 100_000
"""Maximum messages of a conversation: Anthropic's limit."""


RequestId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}\Z")]


Logprobs = Annotated[int, Meta(ge=-1, le=MAX_LOGPROBS)]
