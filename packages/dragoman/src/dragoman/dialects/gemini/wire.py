"""The structs of Gemini's request bodies, with the support of every parameter.

Attributes have the names of the wire. Shapes and bounds only; the readers interpret
them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..bounds import INT32, MAX_LOGPROBS, MAX_MESSAGES, AtLeastOne, Count, Penalty, Probability
from ..generation_fields import SamplingFields
from ..json_body import JsonBody
from ..parameter_table import Note, ParameterTable, accept, reject, warn
from ..unknown_fields import NestedRules

Text = str | None


class GeminiBlob(Struct, frozen=True):
    """Media in Base64, in either alphabet."""

    data: str
    mimeType: str = ""
    displayName: Text = None


class GeminiFileData(Struct, frozen=True):
    fileUri: str
    mimeType: Text = None
    displayName: Text = None


class GeminiFunctionCall(Struct, frozen=True):
    """A call of a function.

    args: an object.
    """

    name: str
    args: Raw = Raw()
    id: Text = None


class GeminiFunctionResponse(Struct, frozen=True):
    """The result of a call.

    response: an object.
    """

    name: str
    response: Raw = Raw()
    id: Text = None


class GeminiPart(Struct, frozen=True):
    """A part of a content: one of its fields, and how it belongs to reasoning.

    thought: `text` is reasoning.
    thoughtSignature: the sealed reasoning before this part.
    """

    text: Text = None
    thought: bool | None = None
    thoughtSignature: Text = None
    inlineData: GeminiBlob | None = None
    fileData: GeminiFileData | None = None
    functionCall: GeminiFunctionCall | None = None
    functionResponse: GeminiFunctionResponse | None = None
    executableCode: Raw = Raw()
    codeExecutionResult: Raw = Raw()


class GeminiContent(Struct, frozen=True):
    """The parts of one turn.

    role: user, model, or function; None is the user's.
    """

    parts: list[GeminiPart] | None = None
    role: Text = None


class GeminiFunctionDeclaration(Struct, frozen=True):
    """A function that the model may call.

    parameters: OpenAPI's schema.
    parametersJsonSchema: a JSON Schema.
    response, responseJsonSchema: the same of what the function returns.
    behavior: how the Live API calls it.
    """

    name: str
    description: Text = None
    parameters: Raw = Raw()
    parametersJsonSchema: Raw = Raw()
    response: Raw = Raw()
    responseJsonSchema: Raw = Raw()
    behavior: Text = None


DESCRIBED_RESULTS = ("response", "responseJsonSchema")


class GeminiTool(Struct, frozen=True):
    """The functions of one entry of `tools`, and the tools that Google runs."""

    functionDeclarations: list[GeminiFunctionDeclaration] | None = None
    googleSearch: Raw = Raw()
    googleSearchRetrieval: Raw = Raw()
    googleMaps: Raw = Raw()
    codeExecution: Raw = Raw()
    urlContext: Raw = Raw()
    fileSearch: Raw = Raw()
    computerUse: Raw = Raw()
    enterpriseWebSearch: Raw = Raw()
    retrieval: Raw = Raw()
    mcpServers: Raw = Raw()


HOSTED_TOOLS = tuple(GeminiTool.__struct_fields__[1:])


class GeminiFunctionCallingConfig(Struct, frozen=True):
    """How functions may be called.

    mode: the name of a mode, or its number.
    """

    mode: str | int | None = None
    allowedFunctionNames: list[str] | None = None


class GeminiToolConfig(Struct, frozen=True):
    functionCallingConfig: GeminiFunctionCallingConfig | None = None


class GeminiThinkingConfig(Struct, frozen=True):
    includeThoughts: bool | None = None
    thinkingBudget: Annotated[int, Meta(ge=-1, le=INT32)] | None = None
    thinkingLevel: Text = None


class GeminiConfig(Struct, frozen=True, kw_only=True):
    """The honoured fields of `generationConfig`. Others are rows of `GEMINI_CONFIG`."""

    temperature: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, Note("0 is greedy")] = None
    topP: Probability | None = None
    topK: Annotated[Count | None, Note("0 is off")] = None
    candidateCount: AtLeastOne | None = None
    maxOutputTokens: Annotated[Count | None, Note("0 is the rest of the context")] = None
    stopSequences: Annotated[list[str] | None, Note("maximum count set by the server")] = None
    presencePenalty: Penalty | None = None
    frequencyPenalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-INT32 - 1, le=INT32)] | None = None
    responseMimeType: Annotated[
        Text, Note("`text/plain`, `application/json` or `text/x.enum`, all enforced")
    ] = None
    responseSchema: Annotated[Raw, Note("OpenAPI's schema, with types in any case")] = Raw()
    responseJsonSchema: Annotated[Raw, Note("a JSON Schema")] = Raw()
    responseLogprobs: bool | None = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None, Note("with responseLogprobs; 0 to 20")
    ] = None
    thinkingConfig: Annotated[
        GeminiThinkingConfig | None,
        Note("includeThoughts, thinkingBudget (0 is off, -1 the model's choice), thinkingLevel"),
    ] = None


GEMINI_SAMPLING = SamplingFields(
    GeminiConfig,
    {
        "topP": "top_p",
        "topK": "top_k",
        "presencePenalty": "presence_penalty",
        "frequencyPenalty": "frequency_penalty",
    },
)


class GeminiPromptFields(Struct, frozen=True, kw_only=True):
    """The fields of a prompt, of generateContent and countTokens."""

    contents: Annotated[
        Annotated[list[GeminiContent], Meta(max_length=MAX_MESSAGES)] | None,
        Note("text, inlineData, fileData with an http(s) URL, calls, responses, thoughts"),
    ] = None
    systemInstruction: Annotated[GeminiContent | None, Note("text only")] = None
    tools: Annotated[
        list[GeminiTool] | None, Note("functions; tools that Google runs are left out, warned")
    ] = None
    toolConfig: Annotated[
        GeminiToolConfig | None,
        Note("functionCallingConfig: AUTO, ANY, NONE, VALIDATED, with allowedFunctionNames"),
    ] = None
    generationConfig: Annotated[Raw, Note("see below")] = Raw()


class GeminiBody(GeminiPromptFields, frozen=True, kw_only=True):
    """A body of generateContent."""


class GeminiCountBody(GeminiPromptFields, frozen=True, kw_only=True):
    generateContentRequest: Annotated[
        GeminiBody | None, Note("a whole request, instead of contents")
    ] = None


class GeminiEmbedBody(Struct, frozen=True, kw_only=True):
    content: GeminiContent
    outputDimensionality: Annotated[
        AtLeastOne | None, Note("shortens and renormalizes the vector, if the model supports it")
    ] = None


class GeminiEmbedRequest(GeminiEmbedBody, frozen=True, kw_only=True):
    """One request of batchEmbedContents."""

    model: Text = None
    taskType: Text = None
    title: Text = None


class GeminiBatchEmbedBody(Struct, frozen=True, kw_only=True):
    requests: Annotated[
        Annotated[list[GeminiEmbedRequest], Meta(min_length=1, max_length=2048)],
        Note("1 to 2048, all with the same outputDimensionality"),
    ]


GEMINI_NESTED = NestedRules(
    accepted={
        GeminiBody: frozenset(
            {"model", "generationConfig", "safetySettings", "cachedContent", "labels"}
        )
    }
)

_PROMPT_ROWS = (
    *accept("model", note="the path names the model"),
    *warn("safetySettings", "nothing is filtered here", []),
    *reject("cachedContent", "prompts are cached automatically; send the contents", ""),
    *warn("labels", "requests are not billed", {}),
    *warn("serviceTier", "there is one tier", ""),
    *warn("store", "answers are not stored", False),
)
GEMINI = ParameterTable("gemini", (GeminiBody,), _PROMPT_ROWS)
GEMINI_COUNT = ParameterTable("gemini_count", (GeminiCountBody,), _PROMPT_ROWS)
GEMINI_CONFIG = ParameterTable(
    "gemini_config",
    (GeminiConfig,),
    (
        *reject("responseModalities", "answers are text", [], ["TEXT"], ["text"]),
        *reject("speechConfig", "speech is not generated"),
        *reject("audioTimestamp", "audio has no timestamps here", False),
        *reject("imageConfig", "images are not generated"),
        *warn("audioTranscriptionConfig", "audio is not transcribed", {}),
        *warn("mediaResolution", "the model determines it", "MEDIA_RESOLUTION_UNSPECIFIED"),
        *warn("enableEnhancedCivicAnswers", "nothing is filtered here", False),
        *reject("routingConfig", "the path names the model"),
        *reject("modelSelectionConfig", "the path names the model"),
    ),
)
_EMBED_ROWS = (
    *accept("model", note="the path names the model"),
    *warn("taskType", "a text is embedded alike for all tasks", "", "TASK_TYPE_UNSPECIFIED"),
    *warn("title", "a text is embedded without a title", ""),
)
GEMINI_EMBED = ParameterTable("gemini_embed", (GeminiEmbedBody,), _EMBED_ROWS)
GEMINI_BATCH_EMBED = ParameterTable(
    "gemini_batch_embed",
    (GeminiBatchEmbedBody,),
    accept("model", note="the path names the model"),
)

_HELLO = {"contents": [{"parts": [{"text": "Hello"}]}]}
_CONFIG = {"generationConfig": JsonBody("GeminiGenerationConfig", (GeminiConfig,), GEMINI_CONFIG)}
GEMINI_REQUEST = JsonBody("GeminiRequest", (GeminiBody,), GEMINI, _CONFIG, _HELLO)
GEMINI_COUNT_REQUEST = JsonBody(
    "GeminiCountRequest", (GeminiCountBody,), GEMINI_COUNT, _CONFIG, _HELLO
)
GEMINI_EMBED_REQUEST = JsonBody(
    "GeminiEmbedContent",
    (GeminiEmbedBody,),
    GEMINI_EMBED,
    None,
    {"content": {"parts": [{"text": "Hello"}]}},
)
GEMINI_BATCH_EMBED_REQUEST = JsonBody(
    "GeminiBatchEmbedContents",
    (GeminiBatchEmbedBody,),
    GEMINI_BATCH_EMBED,
    None,
    {"requests": [{"content": {"parts": [{"text": "Hello"}]}}]},
)
