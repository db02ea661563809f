"""Chat templates of the most common model families, reduced to their differences."""

from __future__ import annotations

from tests.prompts.vocabularies import EMBEDDED

from dragoman.prompts.chat_template import ChatTemplate

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.last_query_index = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""  # noqa: E501

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '\\n\\n' }}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{{- system_message + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' + tool_call.arguments | tojson + '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {{- message.content | tojson if message.content is mapping else message.content }}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""  # noqa: E501

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {% generation %}{{- message["content"] | trim + eos_token }}{% endgeneration %}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""  # noqa: E501

PARTS = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% for part in message.content -%}
{%- if part.type == 'text' -%}{{ part.text }}{%- elif part.type == 'image' -%}<image>{%- endif -%}
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""
"""A template that accepts only lists of parts."""

DEEPSEEK = """\
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '<|User|>' + message['content'] }}
    {%- elif message['role'] == 'assistant' and message['content'] is none %}
        {{- '<|Calls|>' }}
        {%- for call in message['tool_calls'] %}
            {{- call['function']['name'] + ' ' + call['function']['arguments'] | tojson }}
        {%- endfor %}
        {{- '<|End|>' }}
    {%- elif message['role'] == 'assistant' %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1] %}
        {%- endif %}
        {{- '<|Assistant|>' + content + '<|End|>' }}
    {%- elif message['role'] == 'tool' %}
        {{- '<|Output|>' + message['content'] + '<|End|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|Assistant|><think>\\n' }}
{%- endif %}
"""

HARMONY = """\
{%- macro render_type(parameter) -%}
    {%- if parameter.type == "object" -%}{ {% for name, inner in parameter.properties.items() -%}
        {{ name }}: {{ render_type(inner) }}, {% endfor -%} }
    {%- else -%}{{ parameter.type }}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>Reasoning: " + reasoning_effort | default("medium") + "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {{- "<|start|>developer<|message|>" + messages[0].content + "<|end|>" }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for tool in tools or [] %}
    {{- "type " + tool.function.name + " = " + render_type(tool.function.parameters) }}
{%- endfor %}
{%- for message in messages %}
    {%- if message.thinking %}
        {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
    {%- endif %}
    {{- "<|start|>" + message.role + "<|message|>" + (message.content or "") + "<|end|>" }}
{%- endfor %}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""

TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
}
CONTROLS = (
    *(
        "<s>",
        "</s>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "[INST]",
    ),
    *(
        "[/INST]",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<tool_response>",
        "</tool_response>",
    ),
    *(
        "<|User|>",
        "<|Assistant|>",
        "<|Calls|>",
        "<|End|>",
        "<|Output|>",
        "<|start|>",
        "<|end|>",
        "<|message|>",
    ),
    *("<|channel|>", "<|image|>", "<image>"),
)
SOURCES = {
    "embedded": (EMBEDDED / "chat_template.jinja").read_text(),
    "chatml": CHATML,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "parts": PARTS,
    "deepseek": DEEPSEEK,
    "harmony": HARMONY,
}


def template(name: str) -> ChatTemplate:
    return ChatTemplate(SOURCES[name], TOKENS)
