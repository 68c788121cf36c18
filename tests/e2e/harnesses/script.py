"""Output of the scripted model: turns of the script that the user's last prompt names.

A prompt names its script as `@@NAME@@`. The model answers with the script's first turn, and with
the next one on each call that adds tool results. A prompt without tools requests a title or a
summary.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = "SCRIPTS_OF_HARNESSES"
"""Environment variable with the path of the file from which the scripted model reads its answers.
"""
ROLES = ("system", "user", "assistant", "tool")
"""Message roles; the chat template marks each in the prompt by a token `<|ROLE|>`."""
TITLE = '{"title": "Words of a script", "isNewTopic": false}'
"""The model's answer to a prompt without tools; it is JSON, because some clients request JSON."""
UNSCRIPTED = "There is no script for this."
FINISHED = "The script has ended."
_NAME = re.compile(r"@@([a-z0-9-]+)@@")


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """Call of a client's tool, as the scripted model makes it."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """Scripted answer of the model: text, tool calls, or both."""

    text: str
    calls: tuple[ScriptedCall, ...] = ()

    def as_hermes_text(self) -> str:
        """Return the answer in the Hermes format, in which tool calls are marked text."""
        calls = (
            json.dumps({"name": call.name, "arguments": call.arguments}) for call in self.calls
        )
        return "\n".join((self.text, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)))


def write_scripts(file: Path, scripts: Mapping[str, Sequence[ScriptedTurn]]) -> None:
    """Write the scripts to the file that the model's process reads for each prompt."""
    said = {name: [turn.as_hermes_text() for turn in turns] for name, turns in scripts.items()}
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(said), encoding="utf-8")
    unfinished.rename(file)


def next_words(
    said: Sequence[tuple[str, str]], scripts: Mapping[str, Sequence[str]], *, has_tools: bool
) -> str:
    """Return the scripted model's next output for a prompt.

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
