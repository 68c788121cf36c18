"""Headers of agent harnesses, whose users cannot add a header of this service.

A harness sends a run id, or a session id and its parent's. A harness that sends neither is
recognised by its `User-Agent` or the start of its system prompt, and its calls are grouped by
conversation. The table follows the harnesses' documentation and observed calls; an operator can add
rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

HeaderNames = tuple[str, ...]
"""Names of one header, newest first: harnesses have renamed theirs."""
Marks = tuple[tuple[str, str], ...]
"""(header, start of its value in lower case); "": any value."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session as a harness names it."""

    session_id: str
    parent_id: str | None = None
    """Id of the session that spawned it; None: it is a root, or its parent is not known."""
    can_have_parent: bool = False
    """Whether sessions of the harness name parents at all."""
    is_final: bool = False
    """Whether this is the session's last call."""


@dataclass(frozen=True, slots=True)
class Harness:
    """A harness: its headers, in lower case, and the class of its applications."""

    name: str
    run: HeaderNames = ()
    """Headers with the id of the whole run, sub-agents included."""
    session: HeaderNames = ()
    """Headers with the id of the session, if that is one agent of a run."""
    parent: HeaderNames = ()
    """Headers with the id of the session's parent."""
    final: HeaderNames = ()
    """Headers that are `true` at the last call of a session."""
    application_class: str | None = None
    marks: Marks = ()
    """Headers that distinguish it from other clients with the same ids; any is enough. None: the id
    headers are enough."""
    openings: tuple[str, ...] = ()
    """Possible starts of its system prompt, which identify it too."""
    converses: bool = False
    """Whether calls without a session are grouped by conversation."""
    counts_chunks: bool = False
    """Whether its idle timer counts only chunks of a chat: comments do not reset it."""

    def is_marked(self, headers: Mapping[str, str]) -> bool:
        """Return whether a call's headers have a mark of the harness.

        Args:
            headers: Non-empty values by name in lower case.
        """
        return any(
            name in headers and headers[name].lower().startswith(start)
            for name, start in self.marks
        )

    def read(self, headers: Mapping[str, str]) -> Session | None:
        """Return the session that a call's headers name, None if they name none.

        A run stands for all its sessions. Where the header of the run only repeats a session with a
        parent, the parent leads to the run.

        Args:
            headers: Non-empty values by name in lower case.
        """
        if self.marks and not self.is_marked(headers):
            return None
        run = _first(headers, self.run)
        session = _first(headers, self.session)
        parent = _first(headers, self.parent)
        is_final = (_first(headers, self.final) or "").lower() == "true"
        if run is not None and not (parent is not None and run == session):
            return Session(run, is_final=is_final and parent is None)
        session = session or run
        if session is None:
            return None
        return Session(session, parent, can_have_parent=bool(self.parent), is_final=is_final)


def _first(headers: Mapping[str, str], names: HeaderNames) -> str | None:
    for name in names:
        if name in headers:
            return headers[name]
    return None


HARNESSES = (
    # Sub-agents send the session id of the whole run, with an agent id of their own.
    Harness("claude-code", run=("x-claude-code-session-id",), application_class="claude-code"),
    # pi sends a session id in Responses only, or where its settings say so.
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
    # Since 0.147 sub-agents send the root's session id; before, each sent its own.
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
    # Any client may use these headers, so they imply no class.
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
        counts_chunks=True,  # idle timer of 240 s; then it repeats the turn
    ),
    Harness(
        "dynamo",
        session=("x-dynamo-session-id",),
        parent=("x-dynamo-parent-session-id",),
        final=("x-dynamo-session-final",),
    ),
    Harness("litellm", run=("x-litellm-trace-id",)),
)
"""Known harnesses, in the order in which they are tried."""


def counts_chunks(headers: Mapping[str, str]) -> bool:
    """Return whether a call comes from a harness whose idle timer ignores comments.

    Args:
        headers: Non-empty values by name in lower case.
    """
    return any(one.counts_chunks and one.is_marked(headers) for one in HARNESSES)
