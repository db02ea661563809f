"""Tools and requests for them: realistic tools with natural wording, and invented
tools, which only their schema explains. Each `Request` has the call that answers it.
"""

# ruff: noqa: SIM905 (a split string is easier to read than a list of words)
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .conversation import Call
from .facts import CAPITALS
from .source import Source

VERBS = (
    "open close start stop create delete update find move copy send show count check reset lock "
    "load save list merge "
    "print scan sort clean paint cook order book rent build fix test sell buy plan rate tag share "
    "block rename"
).split()
UNITS = ("celsius", "fahrenheit")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool: its schema, and whether it is required."""

    name: str
    schema: dict[str, Any]
    required: bool = True


@dataclass(frozen=True)
class Tool:
    """A tool as the model sees it, and its topic. Two tools of one topic could answer
    the same request.
    """

    topic: str
    name: str
    description: str
    parameters: tuple[Parameter, ...]
    strict: bool = False

    def declaration(self) -> dict[str, Any]:
        """The tool in the form that chat templates read."""
        properties = {parameter.name: parameter.schema for parameter in self.parameters}
        required = [parameter.name for parameter in self.parameters if parameter.required]
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        schema |= {"required": required} if required else {}
        schema |= {"additionalProperties": False} if self.strict else {}
        described = {"name": self.name} | (
            {"description": self.description} if self.description else {}
        )
        strict = {"strict": True} if self.strict else {}
        return {"type": "function", "function": {**described, "parameters": schema, **strict}}


@dataclass(frozen=True)
class Request:
    """What a user asks, and the call that answers it.

    result: what the tool returns.
    conclusion: the answer to the user after the result.
    """

    ask: str
    tool: Tool
    arguments: dict[str, Any]
    result: str
    conclusion: str

    def call(self) -> Call:
        """The call that answers the request."""
        return Call(self.tool.name, self.arguments)


Maker = Callable[[Source], Request]


def _schema(kind: str, description: str = "") -> dict[str, Any]:
    return {"type": kind, "description": description} if description else {"type": kind}


def _tool(s: Source, topic: str, names: str, description: str, *parameters: Parameter) -> Tool:
    return Tool(topic, s.pick(names.split()), description, parameters, strict=s.chance(0.15))


def outcome(s: Source) -> tuple[str, str]:
    """Return a result that any tool may give, and the answer to it."""
    value = s.title()
    return s.pick(
        (
            (f'{{"result": "{value}"}}', f"The result is {value}."),
            (f'{{"error": "{value}"}}', f"The tool failed: {value}."),
            ('{"status": "ok"}', "Done."),
            ('{"ok": true}', "Done."),
            (value, f"The tool says: {value}"),
        )
    )


def weather(s: Source) -> Request:
    """The weather in a place, sometimes with a unit."""
    city = s.city()
    degrees = s.integer(-9, 38)
    city += f", {s.pick(('CA', 'MA', 'NY', 'UK', *CAPITALS))}" if s.chance(0.15) else ""
    place = Parameter(
        s.pick(("city", "city", "location", "place")),
        _schema("string", s.pick(("", "Name of the city"))),
    )
    unit = Parameter("unit", {"type": "string", "enum": list(UNITS)}, required=False)
    with_unit = s.chance(0.3)
    tool = _tool(
        s,
        "weather",
        "get_weather get_weather weather get_current_weather",
        s.pick(("Get the weather", "Get the weather in a city.", "Current weather")),
        *((place, unit) if with_unit else (place,)),
    )
    ask = s.pick((f"What is the weather in {city}?", f"How is the weather in {city} today?",
                  f"What's the weather like in {city}?", f"What is the weather like in {city} "
                      f"today?",
                  f"Tell me the weather in {city}.", f"Weather in {city}?", f"Is it warm in "
                      f"{city}?"))  # fmt: skip
    arguments: dict[str, Any] = {place.name: city}
    if with_unit and s.chance(0.6):
        arguments["unit"] = s.pick(UNITS)
        ask = f"{ask[:-1]} in {arguments['unit']}{ask[-1]}"
    key = s.pick(("temperature", "temperature", "temp"))
    sky = s.pick(("sunny", "cloudy", "rainy", "windy"))
    return s.pick(
        (
            Request(
                ask,
                tool,
                arguments,
                f'{{"{key}": {degrees}}}',
                f"It is {degrees} degrees in {city}.",
            ),
            Request(
                ask,
                tool,
                arguments,
                f'{{"{key}": {degrees}, "condition": "{sky}"}}',
                f"It is {degrees} degrees and {sky} in {city}.",
            ),
            Request(
                ask, tool, arguments, f"{sky}, {degrees} C", f"The tool says: {sky}, {degrees} C"
            ),
        )
    )


def arithmetic(s: Source) -> Request:
    """A sum or a product."""
    a = s.number()
    b = s.number()
    first, second = s.pick((("a", "b"), ("a", "b"), ("x", "y")))
    parameters = [
        Parameter(name, _schema(s.pick(("integer", "number")))) for name in (first, second)
    ]
    if s.chance(0.6):
        tool = _tool(s, "arithmetic", "add add sum_numbers", "Add two numbers", *parameters)
        ask = s.pick((f"What is {a} + {b}?", f"Add {a} and {b}.", f"What is {a} plus {b}?"))
        result = a + b
    else:
        tool = _tool(s, "arithmetic", "multiply", "Multiply two numbers", *parameters)
        ask = s.pick((f"What is {a} * {b}?", f"Multiply {a} and {b}.", f"What is {a} times {b}?"))
        result = a * b
    return Request(
        ask,
        tool,
        {first: a, second: b},
        s.pick((f'{{"result": {result}}}', str(result))),
        f"The result is {result}.",
    )


def search(s: Source) -> Request:
    """A search for words."""
    query = " ".join(s.word() for _ in range(s.integer(1, 4))) if s.chance(0.7) else s.title()
    tool = _tool(
        s,
        "search",
        "search web_search search_web",
        s.pick(("Search the web", "Search for a text.")),
        Parameter(s.pick(("query", "query", "q", "text")), _schema("string")),
    )
    ask = s.pick(
        (
            f"Search for {query}.",
            f"Search the web for {query}.",
            f"Find information about {query}.",
            f"Look up {query}.",
        )
    )
    found = s.pick(s.sentences)
    return Request(
        ask,
        tool,
        {tool.parameters[0].name: query},
        f'{{"results": ["{found}"]}}',
        f"I found this: {found}",
    )


def _path(s: Source) -> str:
    folder = s.pick(("", "", f"{s.word()}/", f"/home/{s.word()}/", "src/"))
    return f"{folder}{s.word()}.{s.pick(('txt', 'py', 'md', 'json', 'csv'))}"


def read_file(s: Source) -> Request:
    """Reading a file."""
    path = _path(s)
    text = s.phrase()
    tool = _tool(
        s,
        "read_file",
        "read_file read_file open_file",
        s.pick(("Read a file", "Read the content of a file.")),
        Parameter(s.pick(("path", "path", "file_path", "filename")), _schema("string")),
    )
    ask = s.pick(
        (
            f"Read the file {path}.",
            f"Read {path}.",
            f"What is in {path}?",
            f"Show me the file {path}.",
        )
    )
    return Request(ask, tool, {tool.parameters[0].name: path}, text, f"The file says: {text}")


def write_file(s: Source) -> Request:
    """Writing a file."""
    path = _path(s)
    text = s.title()
    parameters = (
        Parameter(s.pick(("path", "path", "file_path")), _schema("string")),
        Parameter(s.pick(("content", "text")), _schema("string")),
    )
    tool = _tool(s, "write_file", "write_file", "Write a text to a file", *parameters)
    ask = s.pick(
        (
            f"Write '{text}' to {path}.",
            f"Write '{text}' to the file {path}.",
            f"Save '{text}' in {path}.",
        )
    )
    return Request(
        ask, tool, {parameters[0].name: path, parameters[1].name: text}, '{"status": "ok"}', "Done."
    )


def send_email(s: Source) -> Request:
    """Sending a message to an address."""
    to = f"{s.name().lower()}@{s.word()}.{s.pick(('com', 'org', 'net'))}"
    subject = s.title()
    body = s.phrase()
    full = s.chance(0.5)
    parameters = [
        Parameter("to", _schema("string")),
        Parameter("subject", _schema("string")),
        Parameter("body", _schema("string")),
    ]
    tool = _tool(
        s, "send_email", "send_email", "Send an email", *(parameters if full else parameters[:2])
    )
    arguments = {"to": to, "subject": subject}
    ask = s.pick(
        (
            f"Send an email to {to} with the subject '{subject}'",
            f"Write an email to {to} with the subject '{subject}'",
        )
    )
    if full:
        arguments["body"] = body
        ask += f" and the body '{body}'"
    return Request(
        f"{ask}.", tool, arguments, s.pick(('{"status": "ok"}', '{"sent": true}')), "Done."
    )


def get_time(s: Source) -> Request:
    """The time in a place."""
    city = s.city()
    time = f"{s.integer(0, 23):02}:{s.integer(0, 59):02}"
    tool = _tool(
        s,
        "get_time",
        "get_time get_time current_time",
        s.pick(("Get the time", "Get the current time in a city.")),
        Parameter(s.pick(("city", "location", "timezone")), _schema("string")),
    )
    ask = s.pick(
        (
            f"What time is it in {city}?",
            f"Tell me the time in {city}.",
            f"What is the time in {city}?",
        )
    )
    return Request(
        ask,
        tool,
        {tool.parameters[0].name: city},
        f'{{"time": "{time}"}}',
        f"It is {time} in {city}.",
    )


def set_timer(s: Source) -> Request:
    """A timer of some minutes."""
    minutes = s.integer(1, 120)
    unit = s.pick(("minutes", "seconds"))
    tool = _tool(
        s, "set_timer", "set_timer start_timer", "Set a timer", Parameter(unit, _schema("integer"))
    )
    ask = s.pick((f"Set a timer for {minutes} {unit}.", f"Start a timer of {minutes} {unit}."))
    return Request(ask, tool, {unit: minutes}, '{"status": "ok"}', "Done.")


def set_light(s: Source) -> Request:
    """Switching a lamp on or off."""
    room = s.pick(("kitchen", "bedroom", "office", "garden", s.word()))
    on = s.chance(0.5)
    tool = _tool(
        s,
        "set_light",
        "set_light switch_light",
        "Switch a light on or off",
        Parameter("room", _schema("string")),
        Parameter("on", _schema("boolean")),
    )
    word = "on" if on else "off"
    ask = s.pick(
        (
            f"Turn {word} the light in the {room}.",
            f"Switch the light in the {room} {word}.",
            f"Turn the {room} light {word}.",
        )
    )
    return Request(ask, tool, {"room": room, "on": on}, '{"ok": true}', "Done.")


REALISTIC: tuple[Maker, ...] = (
    weather, weather, arithmetic, search, read_file, write_file, send_email, get_time, set_timer,
    set_light,
)  # fmt: skip


def _value(s: Source, kind: str) -> tuple[dict[str, Any], Any, str]:
    """Return a schema of this kind, a value for it, and the value as a user writes it."""
    if kind == "integer":
        whole = s.number()
        return _schema(kind), whole, str(whole)
    if kind == "number":
        number = s.integer(0, 999) + s.integer(1, 9) / 10
        return _schema(kind), number, str(number)
    if kind == "boolean":
        flag = s.chance(0.5)
        return _schema(kind), flag, "true" if flag else "false"
    if kind == "enum":
        options = s.distinct_words(s.integer(2, 4))
        chosen = s.pick(options)
        return {"type": "string", "enum": options}, chosen, chosen
    if kind == "array":
        items = s.distinct_words(s.integer(1, 4))
        return {"type": "array", "items": {"type": "string"}}, items, ", ".join(items)
    text = s.title()
    return _schema("string"), text, text


def _spell(s: Source, verb: str, noun: str) -> str:
    return s.pick(
        (f"{verb}_{noun}", f"{verb}_{noun}", f"{verb}{noun.capitalize()}", f"{verb}-{noun}", noun)
    )


def build_invented_tool(s: Source) -> Request:
    """Return a request for an invented tool with up to three parameters. The request
    uses the names of the schema.
    """
    verb, noun, *names = [s.pick(VERBS), *s.distinct_words(1 + s.pick((0, 1, 1, 1, 2, 2, 3)))]
    parameters: list[Parameter] = []
    mentioned: list[tuple[str, str]] = []
    arguments: dict[str, Any] = {}
    for name in names:
        kind = s.pick(
            (
                "string",
                "string",
                "string",
                "integer",
                "integer",
                "number",
                "boolean",
                "enum",
                "array",
            )
        )
        schema, value, text = _value(s, kind)
        if s.chance(0.2):
            schema["description"] = s.pick((f"The {name}", f"The {name} to {verb}", s.word()))
        given = s.chance(0.8)
        parameters.append(Parameter(name, schema, required=given and s.chance(0.85)))
        if given:
            arguments[name] = value
            mentioned.append((name, text))
    description = s.pick((f"{verb.capitalize()} the {noun}", f"{verb.capitalize()} a {noun}.", ""))
    result, conclusion = outcome(s)
    tool = Tool(
        f"{verb} {noun}",
        _spell(s, verb, noun),
        description,
        tuple(parameters),
        strict=s.chance(0.2),
    )
    return Request(_ask(s, verb, noun, mentioned), tool, arguments, result, conclusion)


def _ask(s: Source, verb: str, noun: str, mentioned: list[tuple[str, str]]) -> str:
    opening = s.pick(
        (
            f"{verb.capitalize()} the {noun}",
            f"Please {verb} the {noun}",
            f"Can you {verb} the {noun}",
            f"I want to {verb} the {noun}",
        )
    )
    if s.chance(0.25):
        mentioned = s.sample(mentioned, len(mentioned))
    equals, separator = s.pick(((" ", " and "), (" = ", "; "), (": ", "; "), ("=", " and ")))
    listed = separator.join(f"{name}{equals}{text}" for name, text in mentioned)
    return f"{opening} with {listed}." if listed else f"{opening}."
