"""Response templates: the declarative format in which a model may define how its
responses are parsed.

    reasoning, tools = load(tokenizer_config["response_template"] as JSON text, texts of
    the added tokens)

Delimiters are texts, or regular expressions in the subset of `stream_regex`; others are
rejected on loading. Differences from transformers: unparseable text and calls of
undeclared tools stay text; plain JSON arguments stream unchanged and are not cast;
several regions of one field are joined, and none replaces another.
"""

from .template_format import ResponseTemplateFormat, load

__all__ = ["ResponseTemplateFormat", "load"]
