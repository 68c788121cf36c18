"""The quota book: refusals, returned claims, and the cost of a scheduler's death."""

from justitia_ray.accounts.book import QuotaBook
from justitia_ray.accounts.messages import Answer, Ask, Exchange, Use
from justitia_ray.core.tenants import OnExhausted, Period, Quota, TenantNode, TenantTree, Unit

KV, APPS, TOKENS = Unit.KV_TOKEN_TIME, Unit.APPLICATIONS, Unit.TOKENS


def _quota_book(*quotas: Quota, below: tuple[Quota, ...] = ()) -> QuotaBook:
    return QuotaBook(TenantTree({"a": TenantNode(quotas=quotas), "a/*": TenantNode(quotas=below)}))


def _applications_per_day(limit: float, how: OnExhausted = OnExhausted.REJECT) -> Quota:
    return Quota(APPS, limit, Period.DAY, on_exhausted=how)


def _claim_request(name: str, tenant: str = "a/x", **wants: float) -> Ask:
    return Ask(name, tenant, {Unit(unit): amount for unit, amount in wants.items()})


def _granted_claims(answer: Answer) -> list[bool]:
    return [verdict.refused_by is None for verdict in answer.verdicts]


def test_two_schedulers_share_one_limit_of_applications() -> None:
    """1,000 concurrent requests of two schedulers are granted ten times, as the quota allows."""
    book = _quota_book(_applications_per_day(10))
    granted = 0
    for k in range(500):
        for name in ("m1", "m2"):
            told = Exchange(name, 1, k + 1, asks=(_claim_request(f"p{k}", applications=1),))
            granted += sum(_granted_claims(book.exchange(told, k)))

    assert 10 == granted


def test_refused_reservation_names_the_tenant_and_uses_no_quota() -> None:
    """A reservation that one tenant refuses must not consume the quota of another tenant."""
    book = _quota_book(_applications_per_day(5), below=(_applications_per_day(1),))
    asks = (
        _claim_request("p", applications=1),
        _claim_request("q", applications=1),
        _claim_request("r", "a/y", applications=1),
    )
    answer = book.exchange(Exchange("m", 1, 1, asks=asks), 0)

    assert [True, False, True] == _granted_claims(answer)
    refused = answer.verdicts[1].refused_by
    assert refused is not None
    assert ("a/x", "applications", 1, 0) == (
        refused.scope,
        refused.unit,
        refused.limit,
        refused.remaining,
    )
    assert 3 == book.standings("a", 0)[0].remaining


def test_unused_reserved_quota_is_returned_when_its_reservation_ends() -> None:
    """A reservation holds a high estimate of the usage, and is settled with the actual usage."""
    book = _quota_book(Quota(KV, 100, Period.MINUTE))
    book.exchange(Exchange("m", 1, 1, asks=(_claim_request("p", kv_token_time=90),)), 0)
    (before,) = book.standings("a", 1)
    book.exchange(Exchange("m", 1, 2, uses=(Use("p", {KV: 30}, is_over=True),)), 1)
    (after,) = book.standings("a", 1)

    assert (10, 70) == (before.remaining, after.remaining)


def test_repeated_quota_message_is_counted_once() -> None:
    """A scheduler that lost the answer repeats its whole message."""
    book = _quota_book(Quota(KV, 100, Period.MINUTE), _applications_per_day(1))
    told = Exchange("m", 1, 1, asks=(_claim_request("p", applications=1, kv_token_time=10),))
    end = Exchange(
        "m",
        1,
        2,
        uses=(Use("p", {KV: 30, APPS: 1}, is_over=True),),
        asks=(_claim_request("p", kv_token_time=20),),
    )
    answers = [book.exchange(one, 0) for one in (told, told, end, end)]

    assert [[True]] * 4 == [_granted_claims(answer) for answer in answers]
    assert [50, 0] == [standing.remaining for standing in book.standings("a", 0)]


def test_late_quota_message_makes_no_reservation() -> None:
    """A message that timed out may arrive after the message that replaced it."""
    book = _quota_book(_applications_per_day(2))
    told = Exchange("m", 1, 1, asks=(_claim_request("p", applications=1),))
    book.exchange(told, 0)
    book.exchange(Exchange("m", 1, 2, uses=(Use("p", {}, is_over=True),)), 1)
    late = book.exchange(told, 2)

    assert (True, ()) == (late.is_stale, late.verdicts)
    assert 2 == book.standings("a", 3)[0].remaining


def test_quota_reservations_of_a_dead_scheduler_count_as_used() -> None:
    """A dead scheduler may have admitted all applications with a granted reservation."""
    book = _quota_book(_applications_per_day(3))
    asks = tuple(_claim_request(name, applications=1) for name in ("p", "q"))
    book.exchange(Exchange("m", 1, 1, asks=asks), 0)
    again = book.exchange(Exchange("m", 2, 1, asks=asks[:1], survivors=("p",)), 10)
    late = book.exchange(Exchange("m", 1, 2, asks=(_claim_request("r", applications=1),)), 10)
    more = book.exchange(
        Exchange(
            "m", 2, 2, asks=tuple(_claim_request(name, applications=1) for name in ("s", "t"))
        ),
        20,
    )

    assert [True] == _granted_claims(again)
    assert late.is_stale
    assert [True, False] == _granted_claims(more)
    book.expire(700, silent_s=600)
    assert 0 == book.standings("a", 86_400 - 300)[0].remaining
    assert 3 == book.standings("a", 86_400 + 3_000)[0].remaining


def test_deprioritising_quota_refuses_no_application_and_is_reported() -> None:
    book = _quota_book(
        _applications_per_day(1, OnExhausted.DEPRIORITISE),
        Quota(KV, 1, Period.DAY, on_exhausted=_SHADOW),
    )
    asks = tuple(_claim_request(name, applications=1, kv_token_time=5) for name in ("p", "q"))
    answer = book.exchange(Exchange("m", 1, 1, asks=asks), 0)
    book.exchange(Exchange("m", 1, 2, uses=(Use("p", {}, is_over=True),)), 1)
    later = book.exchange(Exchange("m", 1, 3, asks=asks[1:], wants_nodes=True), 2)

    assert [True, True] == _granted_claims(answer)
    assert [False, True] == [verdict.is_deprioritised for verdict in answer.verdicts]
    assert [False] == [verdict.is_deprioritised for verdict in later.verdicts]
    assert [1, 2] == [standing.exceeded for standing in later.nodes["a"]]


_SHADOW = OnExhausted.SHADOW


def test_changed_quota_settings_keep_the_counted_usage() -> None:
    book = _quota_book(_applications_per_day(3))
    use = Use("p", {APPS: 1}, is_over=True)
    book.exchange(Exchange("m", 1, 1, asks=(_claim_request("p", applications=1),)), 0)
    book.exchange(Exchange("m", 1, 2, (use,), (_claim_request("q", applications=1),)), 0)
    book.configure(_quota_book(_applications_per_day(9)).tree, 1)
    raised = book.standings("a", 1)
    book.configure(_quota_book(Quota(APPS, 5, Period.MONTH)).tree, 1)
    book.configure(_quota_book(_applications_per_day(2)).tree, 1)

    assert [7] == [standing.remaining for standing in raised]
    assert [0] == [standing.remaining for standing in book.standings("a", 1)]


def test_ended_application_is_not_counted_again() -> None:
    """A restarted scheduler reports an application whose end was already reported."""
    book = _quota_book(_applications_per_day(10), Quota(KV, 100, Period.DAY))
    book.exchange(
        Exchange("m", 1, 1, asks=(_claim_request("p", applications=1, kv_token_time=40),)), 0
    )
    book.exchange(Exchange("m", 1, 2, uses=(Use("p", {APPS: 1, KV: 40}, is_over=True),)), 1)
    book.exchange(Exchange("m", 2, 1, asks=(_claim_request("p", kv_token_time=20),)), 2)
    book.exchange(Exchange("m", 2, 2, uses=(Use("p", {APPS: 1, KV: 20}, is_over=True),)), 3)

    assert 9 == book.standings("a", 3)[0].remaining


def _claim_of_tokens(name: str, most: float, likely: float) -> Ask:
    return Ask(name, "a/x", {TOKENS: most}, needs={TOKENS: likely})


def test_quota_reservation_must_fit_beside_all_earlier_reservations() -> None:
    """A refusal by expected usage is final; a refusal by other reservations is temporary."""
    book = _quota_book(Quota(TOKENS, 100, Period.MINUTE))
    asks = (
        _claim_of_tokens("p", 90, 10),
        _claim_of_tokens("q", 20, 10),
        _claim_of_tokens("r", 50, 11),
        _claim_of_tokens("s", 99, 91),
    )
    answer = book.exchange(Exchange("m", 1, 1, asks=asks), 0)

    assert [True, True, False, False] == _granted_claims(answer)
    assert [True, False] == [verdict.waits for verdict in answer.verdicts[2:]]
    assert 0 == book.standings("a", 0)[0].remaining


def test_final_usage_returns_unused_quota_and_keeps_the_reservations_record() -> None:
    """A restarted scheduler that repeats the request is then not refused."""
    book = _quota_book(Quota(TOKENS, 100, Period.MINUTE))
    book.exchange(Exchange("m", 1, 1, asks=(_claim_of_tokens("p", 90, 10),)), 0)
    book.exchange(Exchange("m", 1, 2, uses=(Use("p", {TOKENS: 30}, is_final=True),)), 0)
    left = book.standings("a", 0)[0].remaining
    again = book.exchange(Exchange("m", 2, 1, asks=(_claim_of_tokens("p", 90, 10),)), 0)

    assert 70 == left
    assert {TOKENS: 30} == again.verdicts[0].holds or _granted_claims(again) == [True]


def test_expected_usage_of_a_reservation_survives_a_restart_of_the_quota_service() -> None:
    """Without its expected usage, a reservation would block others with its maximum."""
    quota = Quota(TOKENS, 100, Period.MINUTE)
    book = _quota_book(quota)
    book.exchange(Exchange("m", 1, 1, asks=(_claim_of_tokens("p", 90, 10),)), 0)
    successor = _quota_book(quota)
    records = {name: book.record(name) for name in book.all_records()}
    successor.restore({name: record for name, record in records.items() if record}, 0)
    answer = successor.exchange(Exchange("m", 1, 2, asks=(_claim_of_tokens("q", 20, 20),)), 0)

    assert [True] == [verdict.waits for verdict in answer.verdicts]


def test_reservation_above_the_whole_quota_is_refused_with_its_size() -> None:
    book = _quota_book(Quota(TOKENS, 100, Period.MINUTE))
    (verdict,) = book.exchange(
        Exchange("m", 1, 1, asks=(_claim_of_tokens("p", 200, 150),)), 0
    ).verdicts

    assert verdict.refused_by is not None
    assert (150, True, None) == (
        verdict.refused_by.wanted,
        verdict.refused_by.is_too_small,
        verdict.retry_after_s,
    )


def test_exhaustion_of_a_deprioritising_quota_depends_on_expected_usage() -> None:
    """A large but improbable usage of an application does not lower its priority."""
    book = _quota_book(Quota(TOKENS, 100, Period.MINUTE, on_exhausted=OnExhausted.DEPRIORITISE))
    asks = (
        _claim_of_tokens("p", 500, 90),
        _claim_of_tokens("q", 500, 20),
        Ask("app", "a/x", {TOKENS: 0.0}),
    )
    answer = book.exchange(Exchange("m", 1, 1, asks=asks), 0)
    over = Use("q", {TOKENS: 5}, is_over=True)
    later = book.exchange(Exchange("m", 1, 2, (over,), asks[2:]), 0)

    assert [False, True, True] == [verdict.is_deprioritised for verdict in answer.verdicts]
    assert [False] == [verdict.is_deprioritised for verdict in later.verdicts]
