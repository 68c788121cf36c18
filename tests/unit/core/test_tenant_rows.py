"""Bounded tables of tenants: a caller with many names takes no place of others."""

from justitia_ray.core.state import Counters
from justitia_ray.core.tenant_rows import TenantRows
from justitia_ray.core.usage import UsageBook


def test_subtenants_of_one_tenant_use_at_most_half_of_the_usage_rows() -> None:
    """Further tenant names count for their parent node, and other tenants still have places."""
    told = TenantRows(6, "other")
    names = [told.name_of(f"acme/{k}") for k in range(10)]

    assert [f"acme/{k}" for k in range(3)] + ["acme"] * 7 == names
    assert ["beta", "beta/x", "beta", "other"] == [
        told.name_of(name) for name in ("beta", "beta/x", "beta/y", "gamma")
    ]
    assert ["acme/1", "acme", "other"] == [told.name_of(n) for n in ("acme/1", "acme/x", "gamma")]


def test_flood_of_tenant_names_keeps_the_usage_of_others() -> None:
    book, counters = UsageBook(), Counters()
    for number in range(20_000):
        book.of(f"acme/{number}", 0.0).applications += 1
        counters.count_services([(f"acme/{number}", 1.0)])
    book.of("beta", 0.0).applications += 1
    counters.count_services([("beta", 1.0)])

    assert (15_000, 1) == (book.totals[0]["acme"].applications, book.totals[0]["beta"].applications)
    assert (20_000 - 512, 1) == (counters.served["acme"], counters.served["beta"])


def test_usage_rows_of_tenants_survive_a_restart() -> None:
    book = UsageBook()
    for number in range(6_000):
        book.of(f"acme/{number}", 0.0)
    successor = UsageBook()
    successor.restore(book.take_changed())

    assert successor.of("acme/7000", 0.0) is successor.totals[0]["acme"]
    assert successor.of("acme/4999", 0.0) is successor.totals[0]["acme/4999"]
