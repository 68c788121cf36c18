"""What the scripted model says: turns by the name of a script in the last prompt of the user.

A prompt names its script: `@@NAME@@`. The model says the script's first turn to it, and the next
one each time it is called again with what its tools answered. A prompt without tools asks for a
title or a summary.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = "SCRIPTS_OF_HARNESSES"
"""Variable of an engine's process with the file of the scripts."""
ROLES = ("system", "user", "assistant", "tool")
"""Each is marked in the prompt by a token `<|ROLE|>`."""
TITLE = '{"title": "Words of a script", "isNewTopic": false}'
"""Answer to a prompt without tools: JSON, for some clients ask for it."""
UNSCRIPTED = "There is no script for this."
FINISHED = "The script has ended."
_NAME = re.compile(r"@@([a-z0-9-]+)@@")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a client's tool."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer of the model."""

    text: str
    calls: tuple[Call, ...] = ()

    def words(self) -> str:
        """Return it as the model writes it, with calls in the form of Hermes."""
        calls = (
            json.dumps({"name": call.name, "arguments": call.arguments}) for call in self.calls
        )
        return "\n".join((self.text, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)))


def write_scripts(file: Path, scripts: Mapping[str, Sequence[Turn]]) -> None:
    """Write the scripts that engines read with each prompt."""
    said = {name: [turn.words() for turn in turns] for name, turns in scripts.items()}
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(said), encoding="utf-8")
    unfinished.rename(file)


def next_words(
    said: Sequence[tuple[str, str]], scripts: Mapping[str, Sequence[str]], *, has_tools: bool
) -> str:
    """Return the model's next words.

    Args:
        said: Role and text of each message of the prompt.
        scripts: Turns by the name of the script.
        has_tools: Whether the prompt has tools.
    """
    if not has_tools:
        return TITLE
    turn = 0
    for role, text in reversed(said):
        if role == "assistant":
            turn += 1
        elif role == "user" and (names := _NAME.findall(text)):
            script = scripts.get(names[-1])
            if script is not None:
                return script[turn] if turn < len(script) else FINISHED
    return UNSCRIPTED
