"""What happened in a history, in virtual time, for people; nothing is kept unless it is wanted."""

import re

from justitia_ray.units import Seconds

_LONG_ID = re.compile(r"[0-9a-f]{32}\+*|ingress-[0-9a-f]{12}")


class Story:
    """The events of one history. Ids that are new in every run get short names by appearance."""

    def __init__(self, *, told: bool) -> None:
        """Begin.

        Args:
            told: Whether to keep it; a search has no use for it.
        """
        self.told = told
        self.lines: list[tuple[Seconds, str]] = []
        self._names: dict[str, str] = {}

    def tell(self, at: Seconds, text: str) -> None:
        """Add an event."""
        if self.told:
            self.lines.append((at, _LONG_ID.sub(self._short, text)))

    def _short(self, match: re.Match[str]) -> str:
        found = match.group()
        kind = "ingress~" if found.startswith("ingress") else "q"
        return self._names.setdefault(found, f"{kind}{len(self._names) + 1}")

    def text(self) -> str:
        """Return it, one event a line."""
        return "\n".join(f"{at:10.4f}  {text}" for at, text in self.lines)
