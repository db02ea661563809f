"""OpenAPI operations of the routes that run a model."""

from __future__ import annotations

from ....dialects.anthropic.errors import AnthropicErrorBody
from ....dialects.anthropic.response_schemas import MESSAGE_EVENTS, MessageResponse, TokenCount
from ....dialects.anthropic.threads import ThreadReference
from ....dialects.anthropic.wire import COUNT_TOKENS, MESSAGES, MessagesBody, MessagesPromptFields
from ....dialects.chat.response_schemas import ChatCompletion, ChatCompletionChunk
from ....dialects.chat.wire import CHAT, ChatBody, ChatPromptFields
from ....dialects.cohere_embed import COHERE_EMBED, CohereEmbedBody, CohereEmbedResponse
from ....dialects.completions.response_schemas import TextCompletion, TextCompletionChunk
from ....dialects.completions.wire import COMPLETIONS, CompletionsBody
from ....dialects.openai_embeddings import EMBEDDINGS, EmbeddingsBody, EmbeddingsResponse
from ....dialects.openai_errors import OpenAIErrorBody
from ....dialects.prompt_explanation import ExplanationBody
from ....dialects.responses.event_schemas import RESPONSE_EVENTS
from ....dialects.responses.response_schemas import Compaction, InputTokenCount, ResponseObject
from ....dialects.responses.wire import RESPONSES, ResponsesBody
from ....dialects.scoring import (
    RERANK,
    SCORE,
    RerankBody,
    RerankResponse,
    ScoreBody,
    ScoreResponse,
    TeiRerankResult,
)
from ....dialects.sglang.wire import SGLANG, SGLANG_PARAMS, SglangBody, SglangSamplingParams
from ....dialects.sglang.writer import SglangResponse
from ....dialects.tgi.errors import TgiError
from ....dialects.tgi.wire import TGI, TGI_PARAMS, TgiBody, TgiInfo, TgiParameters
from ....dialects.tgi.writer import LightllmResponse, TgiResponse, TgiStreamEvent
from ....dialects.tokenize import (
    DETOKENIZE,
    TOKENIZE,
    DetokenizeBody,
    DetokenizeResponse,
    TokenizeFields,
    TokenizeResponse,
    TokenizeTextBody,
)
from ....dialects.vllm_generate.body_renderer import RenderedGenerateBody
from ....dialects.vllm_generate.response_schemas import GeneratedTokens, GeneratedTokensChunk
from ....dialects.vllm_generate.wire import (
    GENERATE,
    SAMPLING_PARAMS,
    GenerateBody,
    VllmSamplingParams,
)
from ....prompts.tokenizer_info import TokenizerInfo
from ...error_envelope import OPENAI
from ...error_envelope import TGI as TGI_ENVELOPE
from .operation import EVENTS, MODEL, TEXT, ApiResponse, Body, Operation, Operations, response

HELLO = [{"role": "user", "content": "Hello"}]

CHAT_REQUEST = Body("ChatRequest", (ChatPromptFields, ChatBody), CHAT, example={"messages": HELLO})
COMPLETION_REQUEST = Body(
    "CompletionRequest",
    (CompletionsBody,),
    COMPLETIONS,
    example={"prompt": "Once upon a time", "max_tokens": 8},
)
RESPONSE_REQUEST = Body("ResponseRequest", (ResponsesBody,), RESPONSES, example={"input": "Hello"})
THREAD = Body("Thread", (ThreadReference,))
MESSAGES_REQUEST = Body(
    "MessagesRequest",
    (MessagesPromptFields, MessagesBody),
    MESSAGES,
    nested={"thread": THREAD},
    example={"max_tokens": 64, "messages": HELLO},
)
COUNT_REQUEST = Body(
    "CountTokensRequest",
    (MessagesPromptFields,),
    COUNT_TOKENS,
    nested={"thread": THREAD},
    example={"messages": HELLO},
)
EMBEDDING_REQUEST = Body(
    "EmbeddingRequest", (EmbeddingsBody,), EMBEDDINGS, example={"input": "Hello"}
)
COHERE_REQUEST = Body(
    "CohereEmbedRequest", (CohereEmbedBody,), COHERE_EMBED, example={"texts": ["Hello"]}
)
RERANK_REQUEST = Body(
    "RerankRequest",
    (RerankBody,),
    RERANK,
    example={"query": "capital of Japan", "documents": ["Tokyo", "Rome"]},
)
SCORE_REQUEST = Body(
    "ScoreRequest", (ScoreBody,), SCORE, example={"queries": "Japan", "documents": ["Tokyo"]}
)
GENERATE_REQUEST = Body(
    "TokenGenerationRequest",
    (GenerateBody,),
    GENERATE,
    nested={
        "sampling_params": Body("VllmSamplingParameters", (VllmSamplingParams,), SAMPLING_PARAMS)
    },
    example={"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 8}},
)
SGLANG_REQUEST = Body(
    "SglangRequest",
    (SglangBody,),
    SGLANG,
    nested={
        "sampling_params": Body("SglangSamplingParameters", (SglangSamplingParams,), SGLANG_PARAMS)
    },
    example={"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}},
)
TGI_REQUEST = Body(
    "TgiRequest",
    (TgiBody,),
    TGI,
    nested={"parameters": Body("TgiRequestParameters", (TgiParameters,), TGI_PARAMS)},
    example={"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8}},
)
TOKENIZE_TEXT = Body(
    "TokenizeTextRequest", (TokenizeTextBody,), TOKENIZE, example={"prompt": "Hello"}
)
TOKENIZE_CHAT = Body(
    "TokenizeChatRequest", (ChatPromptFields, TokenizeFields), TOKENIZE, example={"messages": HELLO}
)
DETOKENIZE_REQUEST = Body(
    "DetokenizeRequest", (DetokenizeBody,), DETOKENIZE, example={"tokens": [5, 6, 7]}
)

_COMPLETION_RESPONSES = (
    response(TextCompletion),
    response(TextCompletionChunk, OpenAIErrorBody, media=EVENTS),
)
_TGI_EVENTS = response(TgiStreamEvent, TgiError, media=EVENTS)
_SHARED_ENVELOPES = (OPENAI, TGI_ENVELOPE)
_EXPLANATION = (response(ExplanationBody),)

_GENERATE = Operation(
    "SGLang and TGI",
    "Generate text in the format of SGLang, TGI or LightLLM; the body decides",
    (
        response(SglangResponse, list[SglangResponse], TgiResponse, LightllmResponse),
        response(SglangResponse, TgiStreamEvent, OpenAIErrorBody, TgiError, media=EVENTS),
    ),
    (SGLANG_REQUEST, TGI_REQUEST),
    generates=True,
    envelopes=_SHARED_ENVELOPES,
)
_RERANK = Operation(
    "Embeddings",
    "Order documents by their relevance to a query",
    (response(RerankResponse, list[TeiRerankResult]),),
    (RERANK_REQUEST,),
)
_SCORE = Operation(
    "Embeddings", "Score pairs of texts", (response(ScoreResponse),), (SCORE_REQUEST,)
)


def _explain(tag: str, *bodies: Body) -> Operation:
    return Operation(
        tag, "Show how the prompt is rendered and cached (--explain)", _EXPLANATION, bodies
    )


GENERATION_OPERATIONS: Operations = {
    ("POST", "/v1/chat/completions"): Operation(
        "Chat Completions",
        "Answer a conversation",
        (response(ChatCompletion), response(ChatCompletionChunk, OpenAIErrorBody, media=EVENTS)),
        (CHAT_REQUEST,),
        generates=True,
        description="A stream ends with `data: [DONE]`, or with an error and nothing after it.",
    ),
    ("POST", "/v1/completions"): Operation(
        "Completions",
        "Continue a text",
        _COMPLETION_RESPONSES,
        (COMPLETION_REQUEST,),
        generates=True,
    ),
    ("POST", "/v1/responses"): Operation(
        "Responses",
        "Create a response",
        (response(ResponseObject), response(*RESPONSE_EVENTS, media=EVENTS)),
        (RESPONSE_REQUEST,),
        generates=True,
        description="Streaming, non-streaming or background. The same path accepts WebSocket "
        "connections.",
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "Responses",
        "Count the tokens of a response's prompt",
        (response(InputTokenCount),),
        (RESPONSE_REQUEST,),
    ),
    ("POST", "/v1/responses/compact"): Operation(
        "Responses",
        "Compact a conversation",
        (response(Compaction),),
        (RESPONSE_REQUEST,),
        generates=True,
    ),
    ("POST", "/v1/messages"): Operation(
        "Messages",
        "Answer a conversation",
        (response(MessageResponse), response(*MESSAGE_EVENTS, AnthropicErrorBody, media=EVENTS)),
        (MESSAGES_REQUEST,),
        generates=True,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Messages", "Count the tokens of a prompt", (response(TokenCount),), (COUNT_REQUEST,)
    ),
    ("POST", "/v1/embeddings"): Operation(
        "Embeddings", "Embed texts", (response(EmbeddingsResponse),), (EMBEDDING_REQUEST,)
    ),
    **{
        ("POST", path): Operation(
            "Embeddings",
            "Embed texts, as in Cohere's API",
            (response(CohereEmbedResponse),),
            (COHERE_REQUEST,),
        )
        for path in ("/v2/embed", "/cohere/v2/embed")
    },
    ("POST", "/pooling"): Operation("Embeddings", "Not supported: token embeddings", ()),
    **{("POST", path): _RERANK for path in ("/rerank", "/v1/rerank", "/v2/rerank")},
    **{("POST", path): _SCORE for path in ("/score", "/v1/score")},
    ("POST", "/v1/moderations"): Operation("Other", "Not supported: moderation", ()),
    ("POST", "/classify"): Operation("Other", "Not supported: classification", ()),
    ("POST", "/inference/v1/generate"): Operation(
        "Tokens",
        "Generate tokens from tokens, as in vLLM",
        (response(GeneratedTokens), response(GeneratedTokensChunk, OpenAIErrorBody, media=EVENTS)),
        (GENERATE_REQUEST,),
        generates=True,
    ),
    ("POST", "/tokenize"): Operation(
        "Tokens",
        "Tokenize a text or a conversation",
        (response(TokenizeResponse),),
        (TOKENIZE_TEXT, TOKENIZE_CHAT),
    ),
    ("POST", "/detokenize"): Operation(
        "Tokens", "Decode token ids", (response(DetokenizeResponse),), (DETOKENIZE_REQUEST,)
    ),
    ("GET", "/tokenizer_info"): Operation(
        "Tokens", "Show the tokenizer's settings", (response(TokenizerInfo),), query=(MODEL,)
    ),
    ("POST", "/v1/chat/completions/explain"): _explain("Chat Completions", CHAT_REQUEST),
    ("POST", "/v1/completions/explain"): _explain("Completions", COMPLETION_REQUEST),
    ("POST", "/v1/responses/explain"): _explain("Responses", RESPONSE_REQUEST),
    ("POST", "/v1/messages/explain"): _explain("Messages", MESSAGES_REQUEST),
    ("POST", "/inference/v1/generate/explain"): _explain("Tokens", GENERATE_REQUEST),
    ("POST", "/generate/explain"): _explain("SGLang and TGI", SGLANG_REQUEST, TGI_REQUEST),
    ("POST", "/v1/chat/completions/render"): Operation(
        "Chat Completions",
        "Render a conversation to a body for /inference/v1/generate (--explain)",
        (response(RenderedGenerateBody),),
        (CHAT_REQUEST,),
    ),
    ("POST", "/v1/completions/render"): Operation(
        "Completions",
        "Render prompts to bodies for /inference/v1/generate (--explain)",
        (response(list[RenderedGenerateBody]),),
        (COMPLETION_REQUEST,),
    ),
    ("POST", "/generate"): _GENERATE,
    ("PUT", "/generate"): _GENERATE,
    ("POST", "/generate_stream"): Operation(
        "SGLang and TGI",
        "Stream text in the format of TGI or LightLLM",
        (_TGI_EVENTS,),
        (TGI_REQUEST,),
        generates=True,
    ),
    ("GET", "/"): Operation(
        "SGLang and TGI",
        "Identify the server",
        (
            ApiResponse(media=TEXT),
            ApiResponse(
                media=None,
                status=307,
                description="Browsers are redirected to the web UI at `/ui`.",
            ),
        ),
    ),
    ("POST", "/"): Operation(
        "SGLang and TGI",
        "Generate text in the format of TGI or LightLLM",
        (response(list[TgiResponse], LightllmResponse), _TGI_EVENTS),
        (TGI_REQUEST,),
        generates=True,
    ),
    ("GET", "/info"): Operation(
        "SGLang and TGI", "Show the model, as in TGI", (response(TgiInfo),), query=(MODEL,)
    ),
}
