"""The GPS oracle compared with numbers computed by hand."""

from fractions import Fraction

from tests.oracles.gps import ExactFairShare, GpsServer

F = Fraction


def _server_with_sessions(**sessions: tuple[int, int]) -> GpsServer:
    server = GpsServer()
    for name, (work, weight) in sessions.items():
        server.join(name, F(weight))
        server.add_work(name, F(work))
    return server


def test_equal_weights_share_equally_until_the_smaller_session_departs() -> None:
    server = _server_with_sessions(a=(2, 1), b=(6, 1))
    server.give_service(F(4))  # 2 each: a is done

    assert (F(2), {"b"}) == (server.virtual_time, server.busy())

    server.give_service(F(3))

    assert (F(5), F(1)) == (server.virtual_time, server.owed["b"])


def test_gps_shares_service_in_proportion_to_weights() -> None:
    """A session of weight 3 gets three quarters of the service beside one of weight 1."""
    server = _server_with_sessions(a=(2, 1), b=(6, 3))

    assert (F(2), F(2)) == (server.tag("a"), server.tag("b"))

    server.give_service(F(4))  # W = 4, so V = 1

    assert (F(1), F(1), F(3)) == (server.virtual_time, server.owed["a"], server.owed["b"])


def test_gps_ends_several_sessions_within_one_report() -> None:
    """A report may contain more service than the first session still needs."""
    server = _server_with_sessions(a=(1, 1), b=(2, 1), c=(10, 1))
    server.give_service(F(8))

    assert (F(5), {"c"}, F(5)) == (server.virtual_time, server.busy(), server.owed["c"])
    assert (F(1), F(2), F(10)) == (server.tag("a"), server.tag("b"), server.tag("c"))


def test_virtual_time_of_gps_stops_without_backlog() -> None:
    """Service without a session leaves the virtual time unchanged."""
    server = _server_with_sessions(a=(3, 1))
    server.give_service(F(10))
    server.add_work("a", F(4))

    assert (F(3), F(3), F(7)) == (server.virtual_time, server.given, server.tag("a"))


def test_service_refunded_to_gps_goes_to_the_other_sessions() -> None:
    """A refund first removes remaining work; service already given goes to the others."""
    server = _server_with_sessions(a=(6, 1), b=(9, 1))
    server.give_service(F(8))  # V = 4: a owed 2, b owed 5
    server.remove_work("a", F(5))  # 2 removed, 3 for b

    assert (F(7), F(2)) == (server.virtual_time, server.owed["b"])
    assert F(4) == server.tag("a")


def test_charge_doubles_when_an_application_receives_more_service() -> None:
    """When 9 are attained, a charge of 4 becomes 8 and then 16 (rule 1)."""
    rules = ExactFairShare()
    rules.arrive("a", F(4), F(1))
    rules.report([("a", F(9))])

    assert (F(16), F(9)) == (rules.ledgers["a"].charged, rules.ledgers["a"].attained)
    assert (F(9), F(16)) == (rules.gps.virtual_time, rules.gps.tag("a"))


def test_oracle_owes_exactly_the_charged_service() -> None:
    """They must be equal after a tool gap, an end and a change of weight."""
    rules = ExactFairShare()
    rules.arrive("a", F(10), F(1))
    rules.arrive("b", F(30), F(2))
    rules.arrive("c", F(1), F(1))  # charged 2
    rules.report([("a", F(6)), ("b", F(3))])
    rules.leave("a")
    rules.reweigh("b", F(5))
    rules.end("c")
    rules.report([("b", F(4))])
    rules.come_back("a")

    owed = sum(rules.gps.owed.values())
    charged = sum(
        entry.charged - entry.attained for entry in rules.ledgers.values() if not entry.away
    )

    assert (F(27), F(27)) == (owed, charged)  # a: 10 − 6, b: 30 − 7
