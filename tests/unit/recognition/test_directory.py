"""The directory: sessions below their root, conversations, and ambiguous names."""

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.recognition.directory import DEEPEST, Directory


def claim(directory: Directory, session: str, parent: str | None = None) -> str:
    """Return the application of a session; a root's application has the root's name."""
    name = None if parent is None else parent.encode()
    return directory.claim_session("t", session.encode(), session, name, parent)


def test_sub_agents_belong_to_their_root() -> None:
    """Sub-agents may be several generations deep and call in any order."""
    directory = Directory()
    claim(directory, "root")

    assert ["root"] * 3 == [
        claim(directory, "child", "root"),
        claim(directory, "grandchild", "child"),
        claim(directory, "child", "root"),
    ]


def test_unknown_parent_is_a_root_and_stays_one() -> None:
    """The parent has not called yet; if it later names a parent, its family stays together."""
    directory = Directory()
    children = [claim(directory, "child", "later"), claim(directory, "other", "later")]

    assert ["later", "later"] == children
    assert "later" == claim(directory, "later", "above")
    assert "above" == claim(directory, "above")


def test_session_stays_where_it_was_put_first() -> None:
    """A session keeps its root although a later call names another parent, or none."""
    directory = Directory()

    assert "a" == claim(directory, "s", "a")
    assert "a" == claim(directory, "s", "b")
    assert "a" == claim(directory, "s")


def test_root_that_names_a_parent_later_stays_a_root() -> None:
    directory = Directory()

    assert "s" == claim(directory, "s")
    assert "s" == claim(directory, "s", "a")


def test_cycle_ends_at_the_session_that_was_named_first() -> None:
    directory = Directory()

    assert ["b", "b"] == [claim(directory, "a", "b"), claim(directory, "b", "a")]
    assert "self" == claim(directory, "self", "self")


def test_deepest_generation_becomes_a_separate_application() -> None:
    """A session that spawns itself forever starts a new application at each limit."""
    directory = Directory()
    roots = [claim(directory, "0")]
    roots += [claim(directory, str(n + 1), str(n)) for n in range(2 * DEEPEST + 2)]

    assert ["0"] * (DEEPEST + 1) == roots[: DEEPEST + 1]
    assert {str(DEEPEST + 1)} == set(roots[DEEPEST + 1 : 2 * DEEPEST + 2])
    assert str(2 * DEEPEST + 2) == roots[-1]


def test_longest_matching_name_decides() -> None:
    """A known fork is found by its own name, a new fork by the part it shares."""
    directory = Directory()
    directory.name_conversation("t", [b"short"], "a")
    directory.name_conversation("t", [b"long"], "b")

    assert "b" == directory.find_conversation("t", [b"unknown", b"long", b"short"])
    assert "a" == directory.find_conversation("t", [b"unknown", b"short"])
    assert directory.find_conversation("t", [b"unknown"]) is None


def test_name_of_two_applications_matches_neither() -> None:
    """Unrelated calls with equal words and answers must not be joined."""
    directory = Directory()
    directory.name_conversation("t", [b"hello"], "a")
    directory.name_conversation("t", [b"hello"], "a")

    assert "a" == directory.find_conversation("t", [b"hello"])
    directory.name_conversation("t", [b"hello"], "b")
    directory.name_conversation("t", [b"hello"], "a")
    assert "" == directory.find_conversation("t", [b"hello", b"shorter"])


def test_least_recently_used_name_is_evicted() -> None:
    """The directory must not grow with the service's age."""
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


def test_tenant_evicts_only_its_own_names() -> None:
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


def test_new_directory_accepts_entries_and_keeps_newer_ones() -> None:
    directory = Directory()
    claim(directory, "s")
    directory.restore_names("t", [(b"s", "old"), (b"t", "root")])

    assert "s" == claim(directory, "s")
    assert "root" == claim(directory, "t")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9) | st.none()), max_size=60))
def test_whole_family_is_one_application(calls: list[tuple[int, int | None]]) -> None:
    """In any order of calls a session keeps one application, shared with its first named parent."""
    directory = Directory()
    seen: dict[int, str] = {}
    for session, parent in calls:
        known = seen.get(session)
        answer = claim(directory, str(session), None if parent is None else str(parent))
        assert known in (None, answer)
        if parent is not None and session not in seen:
            assert answer == claim(directory, str(parent))
            seen.setdefault(parent, answer)
        seen[session] = answer
