"""OpenAPI operations of stored objects, with the model lists."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ....dialects.anthropic.batch_results import MessageBatchResult
from ....dialects.anthropic.files import FileMetadata, FilePage
from ....dialects.anthropic.message_batches import MessageBatch, MessageBatchBody, MessageBatchPage
from ....dialects.anthropic.response_schemas import DeletedAnthropicFile, DeletedMessageBatch
from ....dialects.chat.response_schemas import ChatCompletion
from ....dialects.chat.stored_chat import ChatUpdate
from ....dialects.model_list import ModelObject, ModelObjectList
from ....dialects.openai_batches import BatchBody, BatchObject
from ....dialects.openai_files import FileObject
from ....dialects.responses.conversations import (
    ConversationBody,
    ConversationItemsBody,
    ConversationUpdate,
)
from ....dialects.responses.event_schemas import RESPONSE_EVENTS
from ....dialects.responses.response_schemas import (
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    ResponseObject,
)
from .operation import (
    BINARY,
    CURSOR,
    EVENTS,
    PAGE,
    STORED_LINES,
    ApiResponse,
    DeletedObjectResponse,
    Form,
    ObjectPage,
    Operation,
    Operations,
    Query,
    response,
)

_PAGE = (response(ObjectPage),)


_CHAT = "Chat Completions"


_ITEM = dict[str, object]
"""An item of a conversation or of an input. Its fields depend on its type; items of
hosted tools are kept as sent.
"""


STORED_OPERATIONS: Operations = {
    ("GET", "/v1/chat/completions"): Operation(
        _CHAT,
        "List stored completions",
        _PAGE,
        query=(*PAGE, Query("model", str, "Only completions of this model.")),
        description="`metadata[KEY]=VALUE` in the query selects by metadata.",
    ),
    ("GET", "/v1/chat/completions/{id}"): Operation(
        _CHAT, "Retrieve a stored completion", (response(ChatCompletion),)
    ),
    ("POST", "/v1/chat/completions/{id}"): Operation(
        _CHAT, "Replace a stored completion's metadata", (response(ChatCompletion),), (ChatUpdate,)
    ),
    ("DELETE", "/v1/chat/completions/{id}"): Operation(
        _CHAT, "Delete a stored completion", (response(DeletedObjectResponse),)
    ),
    ("GET", "/v1/chat/completions/{id}/messages"): Operation(
        _CHAT, "List the messages of a stored completion's request", _PAGE, query=PAGE
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "Responses",
        "Retrieve a stored response, or resume its stream",
        (response(ResponseObject), response(*RESPONSE_EVENTS, media=EVENTS)),
        query=(
            Query(
                "stream", Literal["true", "false"], "Stream the events of a background response."
            ),
            Query(
                "starting_after",
                Annotated[int, Meta(ge=0)],
                "Only events after this sequence number.",
            ),
            Query(
                "include", str, "Accepted; a stored response is returned as it is.", is_list=True
            ),
        ),
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        "Responses", "Delete a stored response", (response(DeletedResponse),)
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "Responses", "Cancel a background response", (response(ResponseObject),)
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "Responses", "List the input of a stored response", _PAGE, query=PAGE
    ),
    ("POST", "/v1/conversations"): Operation(
        "Conversations",
        "Create a conversation",
        (response(ConversationObject),),
        (ConversationBody,),
        is_body_optional=True,
    ),
    ("GET", "/v1/conversations/{id}"): Operation(
        "Conversations", "Retrieve a conversation", (response(ConversationObject),)
    ),
    ("POST", "/v1/conversations/{id}"): Operation(
        "Conversations",
        "Replace a conversation's metadata",
        (response(ConversationObject),),
        (ConversationUpdate,),
    ),
    ("DELETE", "/v1/conversations/{id}"): Operation(
        "Conversations", "Delete a conversation", (response(DeletedConversation),)
    ),
    ("GET", "/v1/conversations/{id}/items"): Operation(
        "Conversations", "List a conversation's items", _PAGE, query=PAGE
    ),
    ("POST", "/v1/conversations/{id}/items"): Operation(
        "Conversations", "Add items to a conversation", _PAGE, (ConversationItemsBody,)
    ),
    ("GET", "/v1/conversations/{id}/items/{item}"): Operation(
        "Conversations", "Retrieve an item", (response(_ITEM),)
    ),
    ("DELETE", "/v1/conversations/{id}/items/{item}"): Operation(
        "Conversations", "Delete an item", (response(ConversationObject),)
    ),
    ("GET", "/v1/messages/batches"): Operation(
        "Message batches", "List message batches", (response(MessageBatchPage),), query=CURSOR
    ),
    ("POST", "/v1/messages/batches"): Operation(
        "Message batches", "Create a message batch", (response(MessageBatch),), (MessageBatchBody,)
    ),
    ("GET", "/v1/messages/batches/{batch}"): Operation(
        "Message batches", "Retrieve a message batch", (response(MessageBatch),)
    ),
    ("DELETE", "/v1/messages/batches/{batch}"): Operation(
        "Message batches", "Delete a message batch", (response(DeletedMessageBatch),)
    ),
    ("POST", "/v1/messages/batches/{batch}/cancel"): Operation(
        "Message batches", "Cancel a message batch", (response(MessageBatch),)
    ),
    ("GET", "/v1/messages/batches/{batch}/results"): Operation(
        "Message batches",
        "Read the results, one a line",
        (response(MessageBatchResult, media=STORED_LINES),),
    ),
    ("GET", "/v1/files"): Operation(
        "Files",
        "List files",
        (response(ObjectPage, FilePage),),
        query=(
            Query("limit", Annotated[int, Meta(ge=1)], "Maximum number of objects per page."),
            *PAGE[1:],
            Query("purpose", str, "Only files of this purpose."),
            Query("page", str, "Anthropic's cursor: `next_page` of the previous page."),
        ),
        description="With the header `anthropic-version`, in Anthropic's format.",
    ),
    ("POST", "/v1/files"): Operation(
        "Files",
        "Upload a file",
        (response(FileObject, FileMetadata),),
        (
            Form(
                {
                    "file": (bytes, "The content."),
                    "purpose": (
                        str,
                        "`batch` or another of OpenAI's purposes; not in Anthropic's API.",
                    ),
                    "expires_after[anchor]": (
                        Literal["created_at"],
                        "The start of the file's lifetime.",
                    ),
                    "expires_after[seconds]": (int, "Lifetime of the file, in seconds."),
                    "expires_in_seconds": (
                        int,
                        "Lifetime of the file, in seconds, in Anthropic's API.",
                    ),
                }
            ),
        ),
        description="With the header `anthropic-version`, in Anthropic's format.",
    ),
    ("GET", "/v1/files/{file}"): Operation(
        "Files", "Retrieve a file's metadata", (response(FileObject, FileMetadata),)
    ),
    ("DELETE", "/v1/files/{file}"): Operation(
        "Files", "Delete a file", (response(DeletedObjectResponse, DeletedAnthropicFile),)
    ),
    ("GET", "/v1/files/{file}/content"): Operation(
        "Files", "Download a file", (ApiResponse(media=BINARY),)
    ),
    ("GET", "/v1/batches"): Operation("Batches", "List batches", _PAGE, query=PAGE),
    ("POST", "/v1/batches"): Operation(
        "Batches", "Create a batch", (response(BatchObject),), (BatchBody,)
    ),
    ("GET", "/v1/batches/{batch}"): Operation(
        "Batches", "Retrieve a batch", (response(BatchObject),)
    ),
    ("POST", "/v1/batches/{batch}/cancel"): Operation(
        "Batches", "Cancel a batch", (response(BatchObject),)
    ),
    ("GET", "/v1/models"): Operation("Models", "List the models", (response(ModelObjectList),)),
    ("GET", "/v1/models/{model}"): Operation(
        "Models",
        "Retrieve a model",
        (response(ModelObject),),
        description="The name may contain slashes.",
    ),
}
