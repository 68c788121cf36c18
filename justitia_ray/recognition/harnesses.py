"""Headers of agent harnesses, whose users cannot add one of ours.

A harness names its run, or a session and the session that spawned it. The table is that of the
harnesses' own documentation and of what they were seen to send; an operator adds rows of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

HeaderNames = tuple[str, ...]
"""Names of one header, newest first: harnesses have renamed theirs."""


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

    def read(self, headers: Mapping[str, str]) -> Session | None:
        """Return the session that a call's headers name, None if they name none.

        A run stands for all its sessions. Where the header of the run only repeats a session that
        has a parent, the parent leads to the run.

        Args:
            headers: Names in lower case, and values that are not empty.
        """
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
    # Since 0.147 sub-agents send the root's session id; before, each sent its own.
    Harness(
        "codex",
        run=("session-id", "session_id"),
        session=("thread-id", "thread_id"),
        parent=("x-codex-parent-thread-id",),
        application_class="codex",
    ),
    Harness(
        "opencode",
        session=("x-session-id", "x-session-affinity"),
        parent=("x-parent-session-id",),
        application_class="opencode",
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
