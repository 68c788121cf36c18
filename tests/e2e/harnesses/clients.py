"""Coding agents: how each starts without a terminal, and the tools that its model calls."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.e2e.harnesses.pages import settings_on_page
from tests.e2e.harnesses.script import ScriptedCall


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """A coding agent as a test client: its command line, its settings files and its tools."""

    name: str
    """Heading of the agent's section in `deployments/harnesses.md`."""
    package: str
    """Name of the agent's npm package."""
    program: str
    application_class: str
    """Application class that the service must recognize in the agent's calls."""
    begin: tuple[str, ...]
    """Command-line arguments that start a session; the prompt follows."""
    resume: tuple[str, ...]
    """Command-line arguments that resume the last session; the prompt follows."""
    run_shell: Callable[[str], ScriptedCall]
    """Function that returns the agent's tool call for a shell command."""
    spawn: Callable[[str], ScriptedCall] | None = None
    """Function that returns the tool call that starts a sub-agent with a prompt; None if the agent
    has no sub-agents.
    """
    gives_up: bool = True
    """Whether the agent ends at an error that waiting cannot mend; otherwise it retries."""
    leaves_agents: bool = False
    """Whether the agent's program may exit while its sub-agents still run."""
    impatience: Mapping[str, str] | None = None
    """Environment variables that make the agent give up a stream after five silent seconds."""
    impatient_lines: tuple[tuple[str, str], ...] = ()
    """(original line, replacement) in the agent's settings files; the replacement makes the agent
    give up silent streams.
    """
    impatient_files: Mapping[str, str] | None = None
    """Additional settings files that make the agent give up silent streams."""
    variant: str = ""
    """Heading of the subsection in `deployments/harnesses.md` with the agent's settings; empty for
    the whole section.
    """
    asks_for: str = "MODEL"
    """Prefix of the model names that the agent sends."""

    def command_line(
        self, installed: Path, model: str, prompt: str, *, resume: bool = False
    ) -> list[str]:
        program = installed / "node_modules" / ".bin" / self.program
        arguments = self.resume if resume else self.begin
        return [str(program), *(one.replace("MODEL", model) for one in arguments), prompt]

    def __str__(self) -> str:
        return "-".join((self.program, *self.variant.lower().split()[-1:]))

    def write_files(
        self, home: Path, *, url: str, key: str, model: str, impatient: bool = False
    ) -> dict[str, str]:
        """Write the agent's settings files into a home directory, and return its environment.

        The environment has none of the tests' variables. The client can reach only this machine:
        the proxy for all other hosts does not exist.
        """
        settings = settings_on_page(self.name, self.variant, url=url, key=key, model=model)
        files = settings.files | (dict(self.impatient_files or {}) if impatient else {})
        for path, text in files.items():
            for line, other in self.impatient_lines if impatient else ():
                assert line in text, f"{self}: {path} has no {line}"
                text = text.replace(line, other)
            file = home / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        nowhere = "http://127.0.0.1:9"
        return {
            "HOME": str(home),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "PATH": os.environ["PATH"],
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "NO_PROXY": "127.0.0.1,localhost",
            "DO_NOT_TRACK": "1",
            **settings.variables,
            **((self.impatience or {}) if impatient else {}),
        }


def _tool_call(name: str, argument: str, **more: Any) -> Callable[[str], ScriptedCall]:
    return lambda value: ScriptedCall(name, {argument: value, **more})


CLIENTS = (
    CodingAgent(
        "Claude Code",
        "@anthropic-ai/claude-code",
        "claude",
        "claude-code",
        ("--print", "--allowedTools=Bash,Agent,Task", "--output-format=json"),
        ("--print", "--allowedTools=Bash,Agent,Task", "--output-format=json", "--continue"),
        _tool_call("Bash", "command", description="Run a command"),
        _tool_call("Agent", "prompt", description="Look", subagent_type="Explore"),
        impatience={"CLAUDE_ENABLE_STREAM_WATCHDOG": "1", "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "5000"},
    ),
    CodingAgent(
        "Codex",
        "@openai/codex",
        "codex",
        "codex",
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"),
        (
            *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("--json", "resume", "--last"),
        ),
        _tool_call("exec_command", "cmd"),
        _tool_call("multi_agent_v1__spawn_agent", "message"),
        leaves_agents=True,
        impatient_lines=(("stream_idle_timeout_ms = 300000", "stream_idle_timeout_ms = 5000"),),
    ),
    CodingAgent(
        "OpenCode",
        "opencode-ai",
        "opencode",
        "opencode",
        ("run", "--format=json"),
        ("run", "--format=json", "--continue"),
        _tool_call("bash", "command", description="Run a command"),
        _tool_call("task", "prompt", description="Look", subagent_type="explore"),
        gives_up=False,
        impatient_lines=(('"timeout": 3600000', '"chunkTimeout": 5000'),),
    ),
    CodingAgent(
        "Qwen Code",
        "@qwen-code/qwen-code",
        "qwen",
        "qwen-code",
        ("--yolo", "--output-format=json"),
        ("--yolo", "--output-format=json", "--continue"),
        _tool_call("run_shell_command", "command", is_background=False),
        _tool_call("agent", "prompt", description="Look", subagent_type="Explore"),
        gives_up=False,
        impatience={"QWEN_STREAM_IDLE_TIMEOUT_MS": "5000"},
    ),
    CodingAgent(
        "pi",
        "@earendil-works/pi-coding-agent",
        "pi",
        "pi",
        ("--print", "--mode", "json", "--model", "justitia/MODEL"),
        ("--print", "--mode", "json", "--continue"),
        _tool_call("bash", "command"),
        impatient_files={".pi/agent/settings.json": '{"httpIdleTimeoutMs": 5000}'},
    ),
)
_CLAUDE, _, _OPENCODE, _, _PI = CLIENTS
VARIANTS = (
    replace(_CLAUDE, variant="Without names of models", asks_for="claude-"),
    replace(_OPENCODE, variant="OpenCode with Responses"),
    replace(_OPENCODE, variant="OpenCode with Messages"),
    replace(_PI, variant="pi with Responses"),
    replace(_PI, variant="pi with Messages"),
)
"""Coding agents with the settings of another subsection of `deployments/harnesses.md`."""
