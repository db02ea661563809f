"""YAML in which a mapping cannot have a key twice; PyYAML silently keeps the last
value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import cast

import yaml


class DuplicateKeyError(yaml.YAMLError):
    """A mapping has a key twice. line: where the mapping begins, from 1."""

    def __init__(self, key: str, line: int) -> None:
        super().__init__(f"line {line}: {key!r} appears twice")
        self.line = line


class StrictLoader(yaml.SafeLoader):
    """A SafeLoader that raises DuplicateKeyError."""

    # The stubs of PyYAML have a wrong type for the anchor.
    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:  # pyright: ignore[reportIncompatibleMethodOverride]
        node = super().compose_mapping_node(anchor)  # pyright: ignore[reportArgumentType]
        scalars = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        # A mapping may be merged with several others.
        keys = Counter(
            scalar.value for scalar in scalars if scalar.tag != "tag:yaml.org,2002:merge"
        )
        if keys and (most := keys.most_common(1)[0])[1] > 1:
            raise DuplicateKeyError(most[0], node.start_mark.line + 1)
        return node


def load_yaml(text: str | bytes) -> object:
    """Parse a document.

    Raises:
        ValueError: it is not valid YAML, a mapping has a key twice, or it is nested too
            deeply.
    """
    with _report_errors():
        return StrictLoader(text).get_single_data()


def load_yaml_items(text: str) -> Iterator[tuple[int, object]] | None:
    """Parse the items of a sequence one by one, each with the line where it begins, from
    1; None if the document is no sequence.

    Raises:
        ValueError: as `load_yaml`, also while it is iterated.
    """
    loader = StrictLoader(text)
    with _report_errors():
        root = loader.get_single_node()
    if not isinstance(root, yaml.SequenceNode):
        return None
    return _construct_items(loader, root)


def _construct_items(loader: StrictLoader, root: yaml.SequenceNode) -> Iterator[tuple[int, object]]:
    for node in root.value:
        with _report_errors():
            value = cast("object", loader.construct_object(node, deep=True))  # pyright: ignore[reportUnknownMemberType]
        yield node.start_mark.line + 1, value


@contextmanager
def _report_errors() -> Generator[None]:
    try:
        yield
    except RecursionError:
        raise ValueError("the YAML is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
