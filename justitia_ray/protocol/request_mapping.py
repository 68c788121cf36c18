"""Map the model names and reasoning efforts that callers send to those of the engine."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

_WILDCARDS = frozenset("*?[")


def listed_aliases(aliases: Sequence[str]) -> tuple[str, ...]:
    """Return the model aliases without wildcards, which are listed as models."""
    return tuple(alias for alias in aliases if not _WILDCARDS.intersection(alias))


def best_alias(name: str, aliases: Sequence[str]) -> str | None:
    """Return the alias that matches a model's name: an equal one, or else the longest pattern."""
    if name in aliases:
        return name
    fitting = (alias for alias in aliases if fnmatchcase(name, alias))
    return max(fitting, key=len, default=None)


class RequestMapping:
    """Replaces aliases of models and names of reasoning efforts in requests.

    Args:
        names: Served names: first the model's own name, then those of its adapters.
        aliases: Other names of the model, and patterns of names.
        efforts: Reasoning effort to send to the engine, by the caller's effort.
    """

    def __init__(
        self, names: Sequence[str], aliases: Sequence[str], efforts: Mapping[str, str]
    ) -> None:
        self._names = names
        self._aliases = aliases
        self._efforts = efforts

    def map_request(self, fields: dict[str, Any], body: bytes) -> bytes:
        """Return a body with the engine's names of model and effort; unchanged if they are equal.

        Args:
            fields: The body's fields; modified as well.
            body: Body as it was received.
        """
        asked: Any = fields.get("model")
        changed = False
        is_foreign = isinstance(asked, str) and asked not in self._names
        if is_foreign and best_alias(asked, self._aliases) is not None:
            fields["model"] = self._names[0]
            changed = True
        # Fields with the reasoning effort in Chat Completions, Responses and Messages.
        for holder, name in (
            (fields, "reasoning_effort"),
            (fields.get("reasoning"), "effort"),
            (fields.get("output_config"), "effort"),
        ):
            if isinstance(holder, dict) and self._map_effort(holder, name):
                changed = True
        return json.dumps(fields).encode() if changed else body

    def _map_effort(self, holder: dict[str, Any], name: str) -> bool:
        effort = holder.get(name)
        meant = self._efforts.get(effort) if isinstance(effort, str) else None
        if meant is None:
            return False
        holder[name] = meant
        return True
