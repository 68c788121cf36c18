"""Scripts of the model for each client."""

from collections.abc import Sequence

from tests.e2e.harnesses.clients import CodingAgent
from tests.e2e.harnesses.script import ScriptedTurn

TOOLS, AGENTS, AGAIN, LONG, HOG = "tools", "agents", "again", "long", "hog"
BELOW = "below"
FILES = ("first", "second", "third", BELOW, "fourth")
"""Files to which the scripted shell commands append a line, each file once."""
ENDS = {
    TOOLS: "All of it is done.",
    AGENTS: "The agents are done.",
    AGAIN: "The resumed work is done.",
}
LONG_WORDS = " ".join(f"word{number}" for number in range(1200))
"""Answer so long that it is cut in the middle while other calls begin."""
ENDLESS = 60_000
"""Answer that never ends, so that its call occupies a seat of the engine until its caller
disconnects.
"""


def scripts_for_client(client: CodingAgent) -> dict[str, Sequence[ScriptedTurn]]:
    """Return the scripts of one client; each script's name starts with the client's name."""

    def append_command(*files: str) -> ScriptedTurn:
        return ScriptedTurn(
            "I look.", tuple(client.run_shell(f"echo ran >> {file}") for file in files)
        )

    first, second, third, below, fourth = FILES
    scripts: dict[str, Sequence[ScriptedTurn]] = {
        TOOLS: (append_command(first, second), append_command(third), ScriptedTurn(ENDS[TOOLS])),
        AGAIN: (append_command(fourth), ScriptedTurn(ENDS[AGAIN])),
        LONG: (ScriptedTurn(LONG_WORDS),),
        below: (append_command(below), ScriptedTurn("The sub-agent is done.")),
    }
    if client.spawn is not None:
        spawn = client.spawn(f"Look around for @@{client.program}-{below}@@")
        waits = (
            (ScriptedTurn("I wait.", (client.run_shell("sleep 8"),)),)
            if client.leaves_agents
            else ()
        )
        scripts[AGENTS] = (
            ScriptedTurn("I send one.", (spawn,)),
            *waits,
            *3 * (ScriptedTurn(ENDS[AGENTS]),),
        )
    return {f"{client.program}-{name}": turns for name, turns in scripts.items()}


def all_scripts(clients: Sequence[CodingAgent]) -> dict[str, Sequence[ScriptedTurn]]:
    found: dict[str, Sequence[ScriptedTurn]] = {HOG: (ScriptedTurn("word " * ENDLESS),)}
    for client in clients:
        found |= scripts_for_client(client)
    return found
