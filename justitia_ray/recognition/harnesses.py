"""Headers of agent harnesses, whose users cannot add one of ours.

A harness names its run, or a session and the session that spawned it. One that names neither is
known by its `User-Agent` or the first words of its system prompt, and its calls are put together by
what was said. The table is that of the harnesses' own documentation and of what they were seen to
send; an operator adds rows of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

HeaderNames = tuple[str, ...]
"""Names of one header, newest first: harnesses have renamed theirs."""
Marks = tuple[tuple[str, str], ...]
"""Headers with the beginning of their value, in lower case; empty: any value."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session as a harness names it."""

    session_id: str
    parent_id: str | None = None
    """The session that spawned it, if it is no root, or may be none."""
    can_have_parent: bool = False
    """Whether sessions of the harness name parents at all."""
    is_final: bool = False
    """Whether this is its last call."""


@dataclass(frozen=True, slots=True)
class Harness:
    """A harness: its headers, in lower case, and the class of its applications."""

    name: str
    run: HeaderNames = ()
    """The whole run, sub-agents included."""
    session: HeaderNames = ()
    """The session, if that is one agent of a run."""
    parent: HeaderNames = ()
    """The session's parent."""
    final: HeaderNames = ()
    """`true` at the last call of a session."""
    application_class: str | None = None
    marks: Marks = ()
    """What tells it from other clients with the same headers, any of these; none: the headers."""
    openings: tuple[str, ...] = ()
    """First words of its system prompt, which are a mark, too."""
    converses: bool = False
    """Whether calls without a session are put together by what was said."""
    counts_chunks: bool = False
    """Whether its idle timer counts only chunks of a chat: comments do not keep it waiting."""

    def is_marked(self, headers: Mapping[str, str]) -> bool:
        """Return whether a call's headers have a mark of the harness.

        Args:
            headers: Names in lower case, and values that are not empty.
        """
        return any(
            name in headers and headers[name].lower().startswith(start)
            for name, start in self.marks
        )

    def read(self, headers: Mapping[str, str]) -> Session | None:
        """Return the session that a call's headers name, None if they name none.

        A run stands for all its sessions. Where the header of the run only repeats a session that
        has a parent, the parent leads to the run.

        Args:
            headers: Names in lower case, and values that are not empty.
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
    # Sub-agents send the session of the whole run, with an agent id of their own.
    Harness("claude-code", run=("x-claude-code-session-id",), application_class="claude-code"),
    # It names a session in Responses only, or where its settings say so.
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
    # Any client may name a session so, and its class is its own matter.
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
        counts_chunks=True,  # of 240 s; then it sends the turn again
    ),
    Harness(
        "dynamo",
        session=("x-dynamo-session-id",),
        parent=("x-dynamo-parent-session-id",),
        final=("x-dynamo-session-final",),
    ),
    Harness("litellm", run=("x-litellm-trace-id",)),
)
"""The harnesses that are known, in the order in which they are tried."""


def counts_chunks(headers: Mapping[str, str]) -> bool:
    """Return whether a call's client is a harness whose idle timer counts no comments.

    Args:
        headers: Names in lower case, and values that are not empty.
    """
    return any(one.counts_chunks and one.is_marked(headers) for one in HARNESSES)
