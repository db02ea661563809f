"""Images in prompts: exactly where the template inserts them."""

from __future__ import annotations

import json

import pytest
from tests.prompts import vocabularies
from tests.prompts.reference import NOW

from dragoman.core.errors import RequestError
from dragoman.core.message import Image, InlineMedia, Message, Role, Text
from dragoman.core.request import Conversation
from dragoman.prompts.chat_template import ChatTemplate
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.prompts.render import ImagePlaceholders, Renderer
from dragoman.prompts.rendered import Rendered

TOKENIZER = HfTokenizer(json.dumps(vocabularies.byte_level_data(("<image>", "<row>"))))
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %};{% "
    "endfor %}"
)
IMAGE = Image(InlineMedia(b""))


def render_images(*parts: Text | Image, texts: tuple[str, ...], source: str = TEMPLATE) -> Rendered:
    conversation = Conversation((Message(Role.USER, parts),))
    pictures = ImagePlaceholders("<image>", texts)
    return Renderer(ChatTemplate(source), TOKENIZER).render(
        conversation, now=NOW, placeholders=pictures
    )


def test_render_images_inserts_text_and_tokens_per_image() -> None:
    found = render_images(
        Text("a"), IMAGE, Text("b"), IMAGE, texts=("<image>" * 3, "<row><image>\n")
    )
    assert found.text == "a<image><image><image>b<row><image>\n;"
    image, row = (TOKENIZER.special_tokens[name] for name in ("<image>", "<row>"))
    assert [id for id in found.ids if id in (image, row)] == [image] * 3 + [row, image]


@pytest.mark.parametrize("written", ["<image>", "<row><image>", " <image> <image>", "<ima"])
def test_render_images_keeps_image_token_in_user_text_as_text(written: str) -> None:
    found = render_images(Text(written), IMAGE, Text("ge>"), texts=("<image>" * 2,))
    image = TOKENIZER.special_tokens["<image>"]
    assert found.text == f"{written}<image><image>ge>;"
    assert found.ids.count(image) == 2


@pytest.mark.parametrize("source", ["{{ messages[0].content[0].text }}", TEMPLATE + "<image>"])
def test_render_images_template_not_showing_each_once_rejected(source: str) -> None:
    with pytest.raises(RequestError, match="of the 1 images") as error:
        render_images(Text("a"), IMAGE, texts=("<image>",), source=source)
    assert error.value.param == "messages"
