"""Headers of agent harnesses, whose users cannot add a header of this service to their calls.

A harness sends a run id, or a session id and the parent's session id. A harness that sends neither
is recognised by its `User-Agent` or by the start of its system prompt, and its calls are grouped by
conversation. The table follows the harnesses' documentation and observed calls; an operator can add
rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

HeaderNames = tuple[str, ...]
"""Names of a header, newest first, because agent harnesses have renamed theirs."""
Marks = tuple[tuple[str, str], ...]
"""Pairs of a header and the start of its value in lower case; "" matches any value."""


@dataclass(frozen=True, slots=True)
class Session:
    """Session of an agent harness, as named in a call's headers."""

    session_id: str
    parent_id: str | None = None
    """Id of the parent session; None for a root, or if the parent is unknown."""
    can_have_parent: bool = False
    """Whether the agent harness sends the id of a session's parent."""
    is_final: bool = False
    """Whether this is the last call of the session."""


@dataclass(frozen=True, slots=True)
class Harness:
    """Agent harness (such as Claude Code): its headers in lower case, and its application class."""

    name: str
    run: HeaderNames = ()
    """Headers with the id of the whole run, including sub-agents."""
    session: HeaderNames = ()
    """Headers with the id of the session, i.e. of one agent in a run."""
    parent: HeaderNames = ()
    """Headers with the id of the parent session."""
    final: HeaderNames = ()
    """Headers that are `true` in the last call of a session."""
    application_class: str | None = None
    marks: Marks = ()
    """Headers that distinguish the harness from clients with equal id headers; one match is enough.
    None: the id headers are enough.
    """
    openings: tuple[str, ...] = ()
    """Possible starts of the harness's system prompt, which also identify it."""
    converses: bool = False
    """Whether calls without a session id are grouped by conversation."""
    counts_chunks: bool = False
    """Whether only chunks of a chat reset the client's idle timer, and comments do not."""

    def is_marked(self, headers: Mapping[str, str]) -> bool:
        """Return whether a call's headers show that the call is from this harness.

        Args:
            headers: Non-empty values by name in lower case.
        """
        return any(
            name in headers and headers[name].lower().startswith(start)
            for name, start in self.marks
        )

    def read(self, headers: Mapping[str, str]) -> Session | None:
        """Return the session that a call's headers name, or None.

        All sessions of a run belong to the run. If the header of the run only repeats the id of a
        session with a parent, the parent leads to the run.

        Args:
            headers: Non-empty values by name in lower case.
        """
        if self.marks and not self.is_marked(headers):
            return None
        run = _first_value(headers, self.run)
        session = _first_value(headers, self.session)
        parent = _first_value(headers, self.parent)
        is_final = (_first_value(headers, self.final) or "").lower() == "true"
        if run is not None and not (parent is not None and run == session):
            return Session(run, is_final=is_final and parent is None)
        session = session or run
        if session is None:
            return None
        return Session(session, parent, can_have_parent=bool(self.parent), is_final=is_final)


def _first_value(headers: Mapping[str, str], names: HeaderNames) -> str | None:
    for name in names:
        if name in headers:
            return headers[name]
    return None


HARNESSES = (
    # Sub-agents of Claude Code send the run's session id and an agent id of their own.
    Harness("claude-code", run=("x-claude-code-session-id",), application_class="claude-code"),
    # The harness pi sends a session id only in calls of the Responses API, or if configured so.
    Harness(
        "pi",
        run=("session-id", "session_id", "x-session-id", "x-session-affinity"),
        application_class="pi",
        marks=(("user-agent", "pi/"),),
        openings=(
            "You are a coding assistant running inside pi,",
            "You are an expert coding assistant operating inside pi,",
        ),
        converses=True,
    ),
    # Since release 0.147 sub-agents of Codex send the session id of their root agent.
    Harness(
        "codex",
        run=("session-id", "session_id"),
        session=("thread-id", "thread_id"),
        parent=("x-codex-parent-thread-id",),
        application_class="codex",
        marks=(
            *(("originator", "codex"), ("user-agent", "codex")),
            *(("thread-id", ""), ("thread_id", ""), ("x-codex-parent-thread-id", "")),
            *(("x-codex-turn-metadata", ""), ("x-codex-window-id", "")),
        ),
    ),
    # Any client may send these session headers, so they imply no application class.
    Harness("session-id", run=("session-id", "session_id")),
    Harness(
        "opencode",
        session=("x-session-id", "x-session-affinity"),
        parent=("x-parent-session-id",),
        application_class="opencode",
    ),
    Harness(
        "qwen-code",
        application_class="qwen-code",
        marks=(("user-agent", "qwencode/"),),
        openings=("You are Qwen Code,",),
        converses=True,
        counts_chunks=True,  # Qwen Code repeats a call after 240 s without a chunk
    ),
    Harness(
        "dynamo",
        session=("x-dynamo-session-id",),
        parent=("x-dynamo-parent-session-id",),
        final=("x-dynamo-session-final",),
    ),
    Harness("litellm", run=("x-litellm-trace-id",)),
)
"""Known agent harnesses, in the order in which they are tried."""


def counts_chunks(headers: Mapping[str, str]) -> bool:
    """Return whether a call's client has an idle timer that ignores comments.

    Args:
        headers: Non-empty values by name in lower case.
    """
    return any(one.counts_chunks and one.is_marked(headers) for one in HARNESSES)
