"""Response templates: the declarative format in which a model may ship how its answers are to be read.

    reasoning, tools = load(tokenizer_config["response_template"] as JSON text, texts of the added tokens)

Delimiters may be texts, or patterns of the subset that `pattern` names; anything else is refused when it is loaded.
What differs from transformers: what cannot be read stays text; a call of an undeclared tool stays text; plain JSON
arguments stream as they are written and are not cast; regions of one field are joined, never replaced.
"""

from .format import ResponseTemplateFormat, load

__all__ = ["ResponseTemplateFormat", "load"]
