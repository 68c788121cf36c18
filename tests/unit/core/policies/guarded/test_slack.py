"""Slack against its definition, in exact arithmetic, with blocks of a few applications."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.policies.guarded import slack as slack_module
from justitia_ray.core.policies.guarded.slack import Slack
from justitia_ray.core.policies.guarded.spans import Search
from tests.exact import exact
from tests.property.profiles import examples


@dataclass(frozen=True)
class SlackEntry:
    """Application, perhaps one that ended before GPS had served it."""

    finish: Fraction
    sequence: int
    weight: Fraction
    remaining: Fraction
    binds: bool
    waits: bool


# Hypothesis strategies are slow to build, so each is built once.
_PARTS = st.sampled_from(sorted({Fraction(n, d) for d in range(1, 5) for n in range(12 * d + 1)}))
_ONES = st.tuples(
    _PARTS, st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 3)]), _PARTS,
    st.booleans(), st.booleans(),
).map(lambda drawn: SlackEntry(drawn[0], 0, *drawn[1:]))  # fmt: skip
_CHANGES = st.integers(1, 25)
_ONE_IN_FOUR = st.integers(0, 3)
_BOOLS = st.booleans()
_NAMES = st.sampled_from("abcdefghijklmnop")
_NAMES_OF_RECORDS = st.sampled_from("abcdefghijkl")
_SOME_NAMES = st.sets(st.sampled_from("abcdefgh"))
_PLACES = st.integers(0, 15)
_REST = st.sampled_from([Fraction(1, 2), Fraction(1)])


def overtaking_by_definition(ones: Mapping[str, SlackEntry], now: Fraction) -> list[str]:
    """Return the applications that may overtake, shortest first, by the literal definition."""
    in_order = sorted(ones, key=lambda name: (ones[name].finish, ones[name].sequence))
    bound = [name for name in in_order if ones[name].binds]
    if bound and ones[bound[0]].finish <= now:
        return []
    found, owed = [], Fraction(0)
    least: Fraction | float = inf
    for name in in_order:
        one = ones[name]
        if one.finish <= now:
            continue
        if one.waits and one.remaining <= least:
            found.append(name)
        owed += one.remaining
        if one.binds:
            active = [other for other in ones.values() if other.finish > now]
            given_until = sum(
                other.weight * (min(other.finish, one.finish) - now) for other in active
            )
            in_all = sum(other.weight * (other.finish - now) for other in active)
            left = sum(other.remaining for other in active)
            least = min(least, given_until - in_all + left - owed)
    return sorted(found, key=lambda n: (ones[n].remaining / ones[n].weight, ones[n].sequence))


def put_entry(slack: Slack, name: str, one: SlackEntry) -> None:
    """Insert, move or remove an application as its fields say."""
    slack.put(
        name,
        exact(one.finish),
        one.sequence,
        exact(one.weight),
        exact(one.remaining),
        binds=one.binds,
        waits=one.waits,
    )


@examples(300)
@given(st.data())
def test_shortest_application_with_enough_slack_before_it_is_first(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slack_module, "_MOST", 3)
        patch.setattr(slack_module, "_MOST_BLOCKS", 2)
        slack, ones = Slack(), dict[str, SlackEntry]()
        now = Fraction(0)
        for step in range(data.draw(_CHANGES)):
            if ones and data.draw(_ONE_IN_FOUR) == 0:
                gone = sorted(ones)[data.draw(_PLACES) % len(ones)]
                del ones[gone]
                slack.drop(gone)
            else:
                name = data.draw(_NAMES)
                one = data.draw(_ONES)
                # only waiting applications limit others; a served session has no remaining cost
                # work.
                waits = one.waits and one.finish > now
                binds = waits or (one.binds and one.remaining > 0)
                ones[name] = SlackEntry(one.finish, step, one.weight, one.remaining, binds, waits)
                put_entry(slack, name, ones[name])
            if data.draw(_BOOLS):
                now = max(now, data.draw(_PARTS))
            expected = overtaking_by_definition(ones, now)
            slack.advance(exact(now), exact(0))

            assert slack.passing() == expected
            assert slack.first() == (expected[0] if expected else None)
            but = data.draw(_SOME_NAMES)
            assert slack.first(but) == next((one for one in expected if one not in but), None)


@examples(30)
@given(st.integers(0, 10**6))
def test_search_examines_blocks_whose_bounds_allow_overtaking(seed: int) -> None:
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slack_module, "_MOST", 3)
        patch.setattr(slack_module, "_MOST_BLOCKS", 3)
        slack, tags = Slack(), dict[str, Fraction]()
        for step in range(150):
            name = f"a{random.randrange(40)}"
            if random.random() < 0.2:
                slack.drop(name)
                tags.pop(name, None)
            else:
                if name not in tags or random.random() < 0.2:
                    tags[name] = Fraction(random.randint(1, 400), 4)
                rest = Fraction(random.randint(0, 300), random.choice([1, 4, 16]))
                waits = random.random() < 0.5
                weight = Fraction(random.choice([1, 2]))
                put_entry(
                    slack,
                    name,
                    SlackEntry(tags[name], step, weight, rest, waits or rest > 0, waits),
                )
            if random.random() < 0.3:
                may_pass = slack.passing()
                for left_out in range(len(may_pass) + 1):
                    but = may_pass[:left_out]
                    assert slack.first(but) == next(iter(may_pass[left_out:]), None)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Search]:
    """Return a list that records every search of the queue for its first application."""
    monkeypatch.setattr(slack_module, "_MOST", 1)
    monkeypatch.setattr(slack_module, "_MOST_BLOCKS", 1)
    made: list[Search] = []

    def record_search() -> Search:
        made.append(Search())
        return made[-1]

    monkeypatch.setattr(slack_module, "Search", record_search)
    return made


def test_change_that_cannot_affect_the_first_application_keeps_it_cached(
    searches: list[Search],
) -> None:
    slack = Slack()
    mouse = SlackEntry(Fraction(12), 1, Fraction(1), Fraction(12), True, True)
    for _ in range(3):
        put_entry(slack, "mouse", mouse)
        slack.advance(exact(1), exact(7))

        assert slack.first() == "mouse"
    assert 1 == len(searches)


def _slack_with_overtaking_mouse(searches: list[Search]) -> Slack:
    slack = Slack()
    put_entry(slack, "early", SlackEntry(Fraction(10), 0, Fraction(1), Fraction(90), True, False))
    put_entry(slack, "mouse", SlackEntry(Fraction(12), 2, Fraction(1), Fraction(2), True, True))
    for rest in (106, 105):
        put_entry(
            slack, "giant", SlackEntry(Fraction(100), 1, Fraction(1), Fraction(rest), True, False)
        )

        assert slack.first() == "mouse"
    searches.clear()
    return slack


def test_first_application_stays_cached_while_enough_slack_is_left(searches: list[Search]) -> None:
    slack = _slack_with_overtaking_mouse(searches)
    for rest, first, made in ((100, "mouse", 0), (92, "mouse", 0), (91, None, 1)):
        put_entry(
            slack, "giant", SlackEntry(Fraction(100), 1, Fraction(1), Fraction(rest), True, False)
        )

        assert slack.first() == first
        assert made == len(searches)


def test_cached_first_application_gets_updated_sums(
    searches: list[Search],
) -> None:
    slack = _slack_with_overtaking_mouse(searches)
    put_entry(slack, "giant", SlackEntry(Fraction(100), 1, Fraction(1), Fraction(100), True, False))
    [giant] = [group for group in slack._groups if group.last == (100, 1)]
    before = giant.is_stale

    assert "mouse" == slack.first()
    assert (True, False) == (before, giant.is_stale)
    assert not searches


def test_first_application_stays_cached_during_arrivals_of_others(
    searches: list[Search],
) -> None:
    slack = _slack_with_overtaking_mouse(searches)
    put_entry(slack, "mouse", SlackEntry(Fraction(12), 2, Fraction(1), Fraction(1), True, True))
    put_entry(slack, "late", SlackEntry(Fraction(60), 3, Fraction(2), Fraction(120), True, True))

    assert slack.first() == "mouse"
    assert not searches


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("shorter", SlackEntry(Fraction(50), 3, Fraction(1), Fraction(1), True, True)),
        ("before", SlackEntry(Fraction(11), 3, Fraction(1), Fraction(60), True, False)),
        ("mouse", SlackEntry(Fraction(12), 2, Fraction(1), Fraction(2), True, False)),
        ("mouse", SlackEntry(Fraction(12), 2, Fraction(1), Fraction(3), True, True)),
        ("mouse", SlackEntry(Fraction(12), 2, Fraction(2), Fraction(2), True, True)),
        ("mouse", SlackEntry(Fraction(13), 2, Fraction(1), Fraction(2), True, True)),
        ("giant", SlackEntry(Fraction(100), 1, Fraction(2), Fraction(900), True, False)),
    ],
)
def test_change_that_may_affect_the_first_application_repeats_the_search(
    name: str, one: SlackEntry, searches: list[Search]
) -> None:
    slack = _slack_with_overtaking_mouse(searches)
    put_entry(slack, name, one)

    assert slack.first() == next(iter(slack.passing()), None)
    assert 1 == len(searches)


def test_application_behind_skipped_applications_needs_no_search(searches: list[Search]) -> None:
    slack = _slack_with_overtaking_mouse(searches)
    put_entry(slack, "rat", SlackEntry(Fraction(14), 3, Fraction(1), Fraction(3), True, True))
    put_entry(slack, "cat", SlackEntry(Fraction(16), 4, Fraction(1), Fraction(4), True, True))

    left_out = [set("x"), {"mouse"}, {"mouse", "rat"}, {"mouse", "cat"}, {"mouse", "rat", "cat"}]
    assert ["mouse", "rat", "cat", "rat", None] == [slack.first(but) for but in left_out]
    assert 1 == len(searches)


@dataclass
class ServedRecord:
    one: SlackEntry
    due_at: Fraction | None = None


def least_slack_before(
    records: Mapping[str, ServedRecord], name: str, now: Fraction, served: Fraction
) -> float | Fraction:
    """Return the least slack of the applications before another one, by its definition."""
    in_order = sorted(
        records, key=lambda name: (records[name].one.finish, records[name].one.sequence)
    )
    ahead = [records[other].one for other in in_order if records[other].one.finish > now]
    in_all = sum(one.weight * (one.finish - now) for one in ahead)
    left = sum(record.one.remaining for record in records.values())
    least: float | Fraction = inf
    owed = Fraction(0)
    for other in in_order[: in_order.index(name)]:
        record = records[other]
        owed += record.one.remaining
        if not record.one.binds:
            continue
        if record.due_at is not None:
            least = min(least, record.due_at - served - owed)
        else:
            finish = record.one.finish
            given = sum(one.weight * (min(one.finish, finish) - now) for one in ahead)
            least = min(least, given - in_all + left - owed)
    return least


@examples(300)
@given(st.data())
def test_least_slack_of_earlier_applications_limits_overtaking(
    data: st.DataObject,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slack_module, "_MOST", 3)
        patch.setattr(slack_module, "_MOST_BLOCKS", 2)
        slack, records = Slack(), dict[str, ServedRecord]()
        now, served = Fraction(0), Fraction(0)
        for step in range(data.draw(_CHANGES)):
            name = data.draw(_NAMES_OF_RECORDS)
            known = records.get(name)
            if known is not None and data.draw(_ONE_IN_FOUR) == 0:
                del records[name]
                slack.drop(name)
            elif known is not None and known.due_at is not None:  # it is served, or ends
                one = known.one
                rest = one.remaining * data.draw(_REST)
                known.one = SlackEntry(one.finish, one.sequence, one.weight, rest, True, one.waits)
                put_entry(slack, name, known.one)
            else:
                one = data.draw(_ONES)
                rest = one.remaining if one.binds else Fraction(0)
                finish = now + one.finish + 1
                new = SlackEntry(finish, step, one.weight, rest, one.binds, one.waits and one.binds)
                records[name] = ServedRecord(new)
                put_entry(slack, name, new)
            served_before, now = served, now + data.draw(_PARTS)
            served += data.draw(_PARTS)
            for passed, record in list(records.items()):
                if record.due_at is None and record.one.finish <= now:
                    record.due_at = served_before
                    if not record.one.binds:
                        del records[passed]
            slack.advance(exact(now), exact(served))

            for asked in records:
                least = least_slack_before(records, asked, now, served)
                amounts = [Fraction(0), Fraction(-7)]
                amounts += [] if least == inf else [Fraction(least), Fraction(least) + 1]
                for amount in amounts:
                    assert slack.allows(asked, exact(amount)) == (least >= amount), asked


@pytest.mark.parametrize(("left", "first"), [(20, "mouse"), (40, "a")])
def test_small_application_overtakes_within_the_slack_of_earlier_applications(
    left: int, first: str
) -> None:
    slack = Slack()
    put_entry(slack, "a", SlackEntry(Fraction(10), 0, Fraction(1), Fraction(left), True, True))
    put_entry(slack, "mouse", SlackEntry(Fraction(12), 1, Fraction(1), Fraction(12), True, True))
    for number in range(3):
        rest = Fraction(322 - 12 - left, 3)
        put_entry(
            slack,
            f"d{number}",
            SlackEntry(Fraction(100), 2 + number, Fraction(1), rest, True, True),
        )

    assert slack.first() == first


def test_overdue_application_is_never_overtaken() -> None:
    """GPS has finished the overdue application, so all its remaining work is late."""
    slack = Slack()
    put_entry(slack, "late", SlackEntry(Fraction(5), 0, Fraction(1), Fraction(9), True, False))
    put_entry(slack, "mouse", SlackEntry(Fraction(12), 1, Fraction(1), Fraction(1), True, True))

    slack.advance(exact(5), exact(0))

    assert slack.first() is None
    assert slack.passing() == []


def test_application_overdue_before_the_first_search_is_never_overtaken() -> None:
    slack = Slack(virtual_time=10, served=1000)
    put_entry(slack, "late", SlackEntry(Fraction(5), 0, Fraction(1), Fraction(1), True, False))
    put_entry(slack, "mouse", SlackEntry(Fraction(12), 1, Fraction(1), Fraction(1), True, True))
    slack.advance(exact(10), exact(1000))

    assert not slack.allows("mouse", -(10**9))


def test_all_service_reduces_the_slack_of_an_overdue_application() -> None:
    """If only its remaining work counted, small applications could always overtake it."""
    slack = Slack()
    put_entry(slack, "late", SlackEntry(Fraction(5), 0, Fraction(1), Fraction(9), True, True))
    put_entry(slack, "mouse", SlackEntry(Fraction(90), 1, Fraction(1), Fraction(1), True, True))
    slack.advance(exact(5), exact(10))

    assert slack.allows("mouse", -19)
    slack.advance(exact(6), exact(14))
    assert not slack.allows("mouse", -19)
    assert slack.allows("mouse", -23)
