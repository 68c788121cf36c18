"""The directory: sessions below their root, conversations, and ambiguous names."""

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.recognition.directory import DEEPEST, Directory


def application_of(directory: Directory, session: str, parent: str | None = None) -> str:
    """Return the application of a session; it has the name of its root session."""
    name = None if parent is None else parent.encode()
    return directory.claim_session("t", session.encode(), session, name, parent)


def test_sub_agents_belong_to_the_application_of_their_root_session() -> None:
    """Sub-agents may be several generations deep and call in any order."""
    directory = Directory()
    application_of(directory, "root")

    assert ["root"] * 3 == [
        application_of(directory, "child", "root"),
        application_of(directory, "grandchild", "child"),
        application_of(directory, "child", "root"),
    ]


def test_session_of_an_unknown_parent_becomes_a_permanent_root() -> None:
    """If the parent later names its own parent, both join the same application."""
    directory = Directory()
    children = [
        application_of(directory, "child", "later"),
        application_of(directory, "other", "later"),
    ]

    assert ["later", "later"] == children
    assert "later" == application_of(directory, "later", "above")
    assert "above" == application_of(directory, "above")


def test_session_with_a_changed_parent_keeps_its_application() -> None:
    """A later call of the session may name another parent, or none."""
    directory = Directory()

    assert "a" == application_of(directory, "s", "a")
    assert "a" == application_of(directory, "s", "b")
    assert "a" == application_of(directory, "s")


def test_root_session_stays_a_root_if_it_later_names_a_parent() -> None:
    directory = Directory()

    assert "s" == application_of(directory, "s")
    assert "s" == application_of(directory, "s", "a")


def test_cycle_of_parent_sessions_ends_at_the_first_named_session() -> None:
    directory = Directory()

    assert ["b", "b"] == [application_of(directory, "a", "b"), application_of(directory, "b", "a")]
    assert "self" == application_of(directory, "self", "self")


def test_sub_agents_beyond_the_depth_limit_start_a_new_application() -> None:
    """A session that spawns itself forever starts a new application at each limit."""
    directory = Directory()
    roots = [application_of(directory, "0")]
    roots += [application_of(directory, str(n + 1), str(n)) for n in range(2 * DEEPEST + 2)]

    assert ["0"] * (DEEPEST + 1) == roots[: DEEPEST + 1]
    assert {str(DEEPEST + 1)} == set(roots[DEEPEST + 1 : 2 * DEEPEST + 2])
    assert str(2 * DEEPEST + 2) == roots[-1]


def test_longest_matching_conversation_name_determines_the_application() -> None:
    """A known fork has a name of its own; a new fork is found by the common part."""
    directory = Directory()
    directory.name_conversation("t", [b"short"], "a")
    directory.name_conversation("t", [b"long"], "b")

    assert "b" == directory.find_conversation("t", [b"unknown", b"long", b"short"])
    assert "a" == directory.find_conversation("t", [b"unknown", b"short"])
    assert directory.find_conversation("t", [b"unknown"]) is None


def test_ambiguous_conversation_name_matches_no_application() -> None:
    """Unrelated calls with equal words and answers must not be joined."""
    directory = Directory()
    directory.name_conversation("t", [b"hello"], "a")
    directory.name_conversation("t", [b"hello"], "a")

    assert "a" == directory.find_conversation("t", [b"hello"])
    directory.name_conversation("t", [b"hello"], "b")
    directory.name_conversation("t", [b"hello"], "a")
    assert "" == directory.find_conversation("t", [b"hello", b"shorter"])


def test_least_recently_used_conversation_name_is_evicted() -> None:
    """The directory must not grow with the age of the service."""
    directory = Directory(most=2)
    directory.name_conversation("t", [b"1"], "a")
    directory.name_conversation("t", [b"2"], "b")
    directory.find_conversation("t", [b"1"])
    directory.name_conversation("t", [b"3"], "c")

    assert (2, "a", None, "c") == (
        len(directory),
        directory.find_conversation("t", [b"1"]),
        directory.find_conversation("t", [b"2"]),
        directory.find_conversation("t", [b"3"]),
    )


def test_tenant_evicts_only_its_own_conversation_names() -> None:
    directory = Directory(most=100)
    directory.name_conversation("few", [b"name"], "a")
    for number in range(1_000):
        directory.name_conversation("many", [b"%d" % number], "b")

    assert len(directory) <= 100
    assert ("a", "b") == (
        directory.find_conversation("few", [b"name"]),
        directory.find_conversation("many", [b"999"]),
    )
    assert directory.find_conversation("other", [b"name"]) is None


def test_merge_of_session_directories_keeps_the_newer_entries() -> None:
    directory = Directory()
    application_of(directory, "s")
    directory.restore_names("t", [(b"s", "old"), (b"t", "root")])

    assert "s" == application_of(directory, "s")
    assert "root" == application_of(directory, "t")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9) | st.none()), max_size=60))
def test_sub_agents_of_one_session_are_one_application(calls: list[tuple[int, int | None]]) -> None:
    """Calls may come in any order; the first named parent gives the application."""
    directory = Directory()
    seen: dict[int, str] = {}
    for session, parent in calls:
        known = seen.get(session)
        answer = application_of(directory, str(session), None if parent is None else str(parent))
        assert known in (None, answer)
        if parent is not None and session not in seen:
            assert answer == application_of(directory, str(parent))
            seen.setdefault(parent, answer)
        seen[session] = answer
