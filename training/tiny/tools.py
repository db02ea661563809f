"""Conversations with tools: choosing one, several or none, reading the results, and
continuing the conversation.
"""

from __future__ import annotations

from .chat import Exchange, capital, general, greeting, larger
from .conversation import Conversation, Turn
from .instructions import turns_of
from .source import Source
from .toolbox import REALISTIC, Request, Tool, build_invented_tool, weather

NO_TOOL = "I have no tool for that."


def talk(s: Source) -> Exchange:
    """Return an exchange that no tool could answer, so no sums."""
    return s.pick((greeting, capital, general, larger))(s)


def request(s: Source) -> Request:
    """Return a request for a realistic or an invented tool, with equal probability."""
    return s.pick(REALISTIC)(s) if s.chance(0.5) else build_invented_tool(s)


def with_distractors(
    s: Source, wanted: list[Tool], least: int = 0
) -> tuple[dict[str, object], ...]:
    """Return the given tools and up to three others in random order; no name and no
    topic occurs twice.
    """
    tools = list({tool.name: tool for tool in wanted}.values())
    for _ in range(max(least, s.pick((0, 0, 1, 1, 2, 3)))):
        other = request(s).tool
        if all(other.name != tool.name and other.topic != tool.topic for tool in tools):
            tools.append(other)
    return tuple(tool.declaration() for tool in s.sample(tools, len(tools)))


def _thought(requests: list[Request], thinking: bool) -> str:
    names = " and ".join(one.tool.name for one in requests)
    return f"I should call {names}." if thinking else ""


def answered(
    ask: str, requests: list[Request], *, thinking: bool, until_result: bool
) -> list[Turn]:
    """Return the turns of requests: the question, the calls, and with `until_result`
    the results and the answer.
    """
    calls = tuple(one.call() for one in requests)
    turns = [
        Turn("user", ask),
        Turn("assistant", thought=_thought(requests, thinking), calls=calls),
    ]
    if until_result:
        turns += [Turn("tool", one.result) for one in requests]
        conclusion = " ".join(one.conclusion for one in requests)
        turns.append(
            Turn("assistant", conclusion, thought="I have the result." if thinking else "")
        )
    return turns


def single(s: Source, thinking: bool = False) -> Conversation:
    """Return a conversation with one call."""
    wanted = request(s)
    turns = answered(wanted.ask, [wanted], thinking=thinking, until_result=s.chance(0.5))
    return Conversation((*_system(s), *turns), with_distractors(s, [wanted.tool]))


def parallel(s: Source, thinking: bool = False) -> Conversation:
    """Return a conversation with two or three calls at once, of one tool or of several."""
    if s.chance(0.4):
        ask, requests = _weather_of_several(s)
    else:
        requests = _different(s, 2)
        joint = s.pick((" ", " ", " Then: ", " Also: "))
        ask = joint.join(one.ask for one in requests)
    turns = answered(ask, requests, thinking=thinking, until_result=s.chance(0.4))
    tools = with_distractors(s, [one.tool for one in requests])
    return Conversation((*_system(s), *turns), tools)


def _different(s: Source, count: int) -> list[Request]:
    requests = [request(s)]
    while len(requests) < count:
        other = request(s)
        if all(
            other.tool.name != one.tool.name and other.tool.topic != one.tool.topic
            for one in requests
        ):
            requests.append(other)
    return requests


def _weather_of_several(s: Source) -> tuple[str, list[Request]]:
    model = weather(s)
    place = model.tool.parameters[0].name
    cities = list({s.city(): None for _ in range(s.pick((2, 2, 3)))})
    requests: list[Request] = []
    for city in cities:
        degrees = s.integer(-9, 38)
        result = f'{{"temperature": {degrees}}}'
        conclusion = f"It is {degrees} degrees in {city}."
        requests.append(Request("", model.tool, {place: city}, result, conclusion))
    listed = (
        cities[0]
        if len(cities) == 1
        else ", ".join(cities[:-1]) + s.pick((" and ", " and in ")) + cities[-1]
    )
    ask = s.pick(
        (
            f"What is the weather in {listed}?",
            f"How is the weather in {listed}?",
            f"Tell me the weather in {listed}.",
        )
    )
    return ask, requests


def none_fits(s: Source, thinking: bool = False) -> Conversation:
    """Return a conversation in which no tool fits: the user makes conversation, or asks
    for something that no tool does.
    """
    tools = with_distractors(s, [], least=1)
    if s.chance(0.6):
        return Conversation((*_system(s), *turns_of(talk(s), thinking=thinking)), tools)
    wanted = build_invented_tool(s)
    tools = tuple(tool for tool in tools if not _related(tool, wanted.tool))
    if not tools:
        return single(s, thinking)
    thought = "No tool fits." if thinking else ""
    return Conversation(
        (*_system(s), Turn("user", wanted.ask), Turn("assistant", NO_TOOL, thought=thought)), tools
    )


def _related(declaration: dict[str, object], tool: Tool) -> bool:
    noun = tool.name.replace("-", "_").split("_")[-1].lower()
    return noun in str(declaration).lower() or tool.name.lower() in str(declaration).lower()


def several_turns(s: Source, thinking: bool = False) -> Conversation:
    """Return two or three rounds with the same tools, with other exchanges in between."""
    requests = _different(s, 3)
    turns: list[Turn] = []
    for wanted in requests[: s.integer(2, 3)]:
        turns += answered(wanted.ask, [wanted], thinking=thinking, until_result=True)
        if s.chance(0.3):
            turns += turns_of(talk(s), thinking=thinking)
    return Conversation((*_system(s), *turns), with_distractors(s, [one.tool for one in requests]))


def _system(s: Source) -> list[Turn]:
    if s.chance(0.6):
        return []
    texts = (
        "You are a helpful assistant.",
        "You are a helpful assistant with tools.",
        "Use the tools if needed.",
        s.pick(s.sentences),
    )
    return [Turn("system", s.pick(texts))]
