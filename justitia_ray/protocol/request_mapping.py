"""Names of models and efforts that callers use, and what they mean here."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

_WILDCARDS = frozenset("*?[")


def listed_aliases(aliases: Sequence[str]) -> tuple[str, ...]:
    """Return the aliases that are names and no patterns: those that a listing of models has."""
    return tuple(alias for alias in aliases if not _WILDCARDS.intersection(alias))


def best_alias(name: str, aliases: Sequence[str]) -> str | None:
    """Return the alias that a name is: itself before patterns, a longer pattern before others."""
    if name in aliases:
        return name
    fitting = (alias for alias in aliases if fnmatchcase(name, alias))
    return max(fitting, key=len, default=None)


class RequestMapping:
    """The mapping of one model's requests."""

    def __init__(
        self, names: Sequence[str], aliases: Sequence[str], efforts: Mapping[str, str]
    ) -> None:
        """Keep the settings.

        Args:
            names: Names that are served: the model's own first, then those of its adapters.
            aliases: Other names of the model, and patterns of such.
            efforts: The effort to ask the engine for, by that which a caller names.
        """
        self._names = names
        self._aliases = aliases
        self._efforts = efforts

    def map_request(self, fields: dict[str, Any], body: bytes) -> bytes:
        """Return a body with names and efforts of the engine's: the same bytes if it has these.

        Args:
            fields: The body's fields, which are changed, too.
            body: JSON as it was sent.
        """
        asked: Any = fields.get("model")
        changed = False
        is_foreign = isinstance(asked, str) and asked not in self._names
        if is_foreign and best_alias(asked, self._aliases) is not None:
            fields["model"] = self._names[0]
            changed = True
        # Those of chats, of Responses and of Messages.
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
