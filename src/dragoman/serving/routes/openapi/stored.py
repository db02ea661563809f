"""The description of the routes with objects that the server stores, and of the model lists."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ....dialects.anthropic.answers import DeletedAnthropicFile, DeletedMessageBatch
from ....dialects.anthropic.batches import (
    FileMetadata,
    FilePage,
    MessageBatch,
    MessageBatchBody,
    MessageBatchPage,
    MessageBatchResult,
)
from ....dialects.batches import BatchBody, BatchObject, FileObject
from ....dialects.chat.stored import ChatUpdate
from ....dialects.models import ModelObject, ModelObjectList
from ....dialects.openai_answers import ChatCompletion
from ....dialects.responses.answers import (
    RESPONSE_EVENTS,
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    ResponseObject,
)
from ....dialects.responses.conversations import ConversationBody, ConversationItemsBody, ConversationUpdate
from .operations import (
    BINARY,
    CURSOR,
    EVENTS,
    PAGE,
    STORED_LINES,
    ApiAnswer,
    Catalogue,
    DeletedObjectAnswer,
    Form,
    ObjectPage,
    Operation,
    Query,
    answer,
)

_PAGE = (answer(ObjectPage),)
_CHAT = "Chat Completions"
_ITEM = dict[str, object]
"""An item of a conversation or of an input: the fields depend on its type, and hosted tools' items are kept as sent."""

STORED: Catalogue = {
    ("GET", "/v1/chat/completions"): Operation(
        _CHAT,
        "List stored completions",
        _PAGE,
        query=(*PAGE, Query("model", str, "Only completions of this model.")),
        description="`metadata[KEY]=VALUE` in the query selects by metadata.",
    ),
    ("GET", "/v1/chat/completions/{id}"): Operation(_CHAT, "Retrieve a stored completion", (answer(ChatCompletion),)),
    ("POST", "/v1/chat/completions/{id}"): Operation(
        _CHAT, "Replace a stored completion's metadata", (answer(ChatCompletion),), (ChatUpdate,)
    ),
    ("DELETE", "/v1/chat/completions/{id}"): Operation(
        _CHAT, "Delete a stored completion", (answer(DeletedObjectAnswer),)
    ),
    ("GET", "/v1/chat/completions/{id}/messages"): Operation(
        _CHAT, "List the messages of a stored completion's request", _PAGE, query=PAGE
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "Responses",
        "Retrieve a stored response, or resume its stream",
        (answer(ResponseObject), answer(*RESPONSE_EVENTS, media=EVENTS)),
        query=(
            Query("stream", Literal["true", "false"], "Stream the events of a background response."),
            Query("starting_after", Annotated[int, Meta(ge=0)], "Only events after this sequence number."),
            Query("include", str, "Accepted; a stored response is returned as it is.", is_list=True),
        ),
    ),
    ("DELETE", "/v1/responses/{id}"): Operation("Responses", "Delete a stored response", (answer(DeletedResponse),)),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "Responses", "Cancel a background response", (answer(ResponseObject),)
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "Responses", "List the input of a stored response", _PAGE, query=PAGE
    ),
    ("POST", "/v1/conversations"): Operation(
        "Conversations",
        "Create a conversation",
        (answer(ConversationObject),),
        (ConversationBody,),
        is_body_optional=True,
    ),
    ("GET", "/v1/conversations/{id}"): Operation(
        "Conversations", "Retrieve a conversation", (answer(ConversationObject),)
    ),
    ("POST", "/v1/conversations/{id}"): Operation(
        "Conversations", "Replace a conversation's metadata", (answer(ConversationObject),), (ConversationUpdate,)
    ),
    ("DELETE", "/v1/conversations/{id}"): Operation(
        "Conversations", "Delete a conversation", (answer(DeletedConversation),)
    ),
    ("GET", "/v1/conversations/{id}/items"): Operation(
        "Conversations", "List a conversation's items", _PAGE, query=PAGE
    ),
    ("POST", "/v1/conversations/{id}/items"): Operation(
        "Conversations", "Add items to a conversation", _PAGE, (ConversationItemsBody,)
    ),
    ("GET", "/v1/conversations/{id}/items/{item}"): Operation("Conversations", "Retrieve an item", (answer(_ITEM),)),
    ("DELETE", "/v1/conversations/{id}/items/{item}"): Operation(
        "Conversations", "Delete an item", (answer(ConversationObject),)
    ),
    ("GET", "/v1/messages/batches"): Operation(
        "Message batches", "List message batches", (answer(MessageBatchPage),), query=CURSOR
    ),
    ("POST", "/v1/messages/batches"): Operation(
        "Message batches", "Create a message batch", (answer(MessageBatch),), (MessageBatchBody,)
    ),
    ("GET", "/v1/messages/batches/{batch}"): Operation(
        "Message batches", "Retrieve a message batch", (answer(MessageBatch),)
    ),
    ("DELETE", "/v1/messages/batches/{batch}"): Operation(
        "Message batches", "Delete a message batch", (answer(DeletedMessageBatch),)
    ),
    ("POST", "/v1/messages/batches/{batch}/cancel"): Operation(
        "Message batches", "Cancel a message batch", (answer(MessageBatch),)
    ),
    ("GET", "/v1/messages/batches/{batch}/results"): Operation(
        "Message batches", "Read the results, one a line", (answer(MessageBatchResult, media=STORED_LINES),)
    ),
    ("GET", "/v1/files"): Operation(
        "Files",
        "List files",
        (answer(ObjectPage, FilePage),),
        query=(
            Query("limit", Annotated[int, Meta(ge=1)], "The most objects of a page."),
            *PAGE[1:],
            Query("purpose", str, "Only files of this purpose."),
            Query("page", str, "Anthropic's cursor: `next_page` of the page before."),
        ),
        description="With the header `anthropic-version`, in Anthropic's format.",
    ),
    ("POST", "/v1/files"): Operation(
        "Files",
        "Upload a file",
        (answer(FileObject, FileMetadata),),
        (
            Form(
                {
                    "file": (bytes, "The content."),
                    "purpose": (str, "`batch` or another of OpenAI's purposes; not in Anthropic's API."),
                    "expires_after[anchor]": (Literal["created_at"], "From when the file's time counts."),
                    "expires_after[seconds]": (int, "How long the file is kept."),
                    "expires_in_seconds": (int, "How long the file is kept, in Anthropic's API."),
                }
            ),
        ),
        description="With the header `anthropic-version`, in Anthropic's format.",
    ),
    ("GET", "/v1/files/{file}"): Operation("Files", "Retrieve a file's metadata", (answer(FileObject, FileMetadata),)),
    ("DELETE", "/v1/files/{file}"): Operation(
        "Files", "Delete a file", (answer(DeletedObjectAnswer, DeletedAnthropicFile),)
    ),
    ("GET", "/v1/files/{file}/content"): Operation("Files", "Download a file", (ApiAnswer(media=BINARY),)),
    ("GET", "/v1/batches"): Operation("Batches", "List batches", _PAGE, query=PAGE),
    ("POST", "/v1/batches"): Operation("Batches", "Create a batch", (answer(BatchObject),), (BatchBody,)),
    ("GET", "/v1/batches/{batch}"): Operation("Batches", "Retrieve a batch", (answer(BatchObject),)),
    ("POST", "/v1/batches/{batch}/cancel"): Operation("Batches", "Cancel a batch", (answer(BatchObject),)),
    ("GET", "/v1/models"): Operation("Models", "List the models", (answer(ModelObjectList),)),
    ("GET", "/v1/models/{model}"): Operation(
        "Models", "Retrieve a model", (answer(ModelObject),), description="The name may contain slashes."
    ),
}
