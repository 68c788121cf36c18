"""Scripts of the model for each client."""

from collections.abc import Sequence

from tests.e2e.harnesses.clients import Client
from tests.e2e.harnesses.script import Turn

TOOLS, AGENTS, AGAIN, LONG, HOG = "tools", "agents", "again", "long", "hog"
BELOW = "below"
FILES = ("first", "second", "third", BELOW, "fourth")
"""Files to which the scripted commands append a line, each once."""
ENDS = {
    TOOLS: "All of it is done.",
    AGENTS: "The agents are done.",
    AGAIN: "The resumed work is done.",
}
LONG_WORDS = " ".join(f"word{number}" for number in range(1200))
"""Answer long enough to be cut in the middle while others begin."""
ENDLESS = 60_000
"""Words of an answer that occupies a seat until its caller disconnects."""


def scripts_of(client: Client) -> dict[str, Sequence[Turn]]:
    """Return the scripts for a client; each name starts with the client's."""

    def adds_to(*files: str) -> Turn:
        return Turn("I look.", tuple(client.run_shell(f"echo ran >> {file}") for file in files))

    first, second, third, below, fourth = FILES
    scripts: dict[str, Sequence[Turn]] = {
        TOOLS: (adds_to(first, second), adds_to(third), Turn(ENDS[TOOLS])),
        AGAIN: (adds_to(fourth), Turn(ENDS[AGAIN])),
        LONG: (Turn(LONG_WORDS),),
        below: (adds_to(below), Turn("The sub-agent is done.")),
    }
    if client.spawn is not None:
        spawn = client.spawn(f"Look around for @@{client.program}-{below}@@")
        waits = (Turn("I wait.", (client.run_shell("sleep 8"),)),) if client.leaves_agents else ()
        scripts[AGENTS] = (Turn("I send one.", (spawn,)), *waits, *3 * (Turn(ENDS[AGENTS]),))
    return {f"{client.program}-{name}": turns for name, turns in scripts.items()}


def all_scripts(clients: Sequence[Client]) -> dict[str, Sequence[Turn]]:
    """Return the scripts for all clients, and an endless one."""
    found: dict[str, Sequence[Turn]] = {HOG: (Turn("word " * ENDLESS),)}
    for client in clients:
        found |= scripts_of(client)
    return found
