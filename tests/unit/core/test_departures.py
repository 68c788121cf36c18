"""Service of an aborted inference is charged once, with its replica's final report."""

from justitia_ray.core import events as ev
from justitia_ray.core.usage import UsageTotals
from tests.core_driver import CoreDriver, refused


def _cancel_running(core: CoreDriver, made: int | None) -> str:
    """Lease, report and cancel one inference of 10 prompt tokens; return its lease id."""
    core.open("a", 1_000)
    core.submit("x")
    core.pull()
    lease_id = core.lease_of("x")
    if made is not None:
        core.pull(progress=[ev.LeaseProgress(lease_id, 10, made, running=True)])
    core.handle(ev.InferenceCancelled("x"))
    core.handle(ev.ApplicationClosed("a"))
    return lease_id


def _tenant_usage(core: CoreDriver) -> UsageTotals:
    (of_day,) = core.core.state.usage.totals.values()
    return of_day["tenant"]


def test_final_report_charges_the_tokens_since_the_last_report(core: CoreDriver) -> None:
    """A caller that leaves between two reports pays for all tokens, in usage and in fair share."""
    lease_id = _cancel_running(core, made=None)
    core.last_word(lease_id, output=4, prompt=10)

    used = _tenant_usage(core)
    assert (1, 10, 4, 10 * 4 + 10) == (
        used.inferences,
        used.prompt_tokens,
        used.output_tokens,
        used.kv_token_time,
    )


def test_cancelled_application_ends_with_its_final_report(core: CoreDriver) -> None:
    """The account of an application must exist when the final report is charged."""
    lease_id = _cancel_running(core, made=2)
    before = list(core.core.state.applications)
    core.last_word(lease_id, output=3, prompt=10)

    assert (["a"], []) == (before, list(core.core.state.applications))


def test_aborted_prefill_is_charged_for_its_computed_tokens(
    core: CoreDriver,
) -> None:
    lease_id = _cancel_running(core, made=None)
    core.last_word(lease_id, prompt=6)

    used = _tenant_usage(core)
    assert (1, 6, 0, 6) == (
        used.inferences,
        used.prompt_tokens,
        used.output_tokens,
        used.kv_token_time,
    )


def test_lease_whose_prompt_never_arrived_costs_nothing(core: CoreDriver) -> None:
    """The replica reports that the lease never ran."""
    core.last_word(_cancel_running(core, made=None))

    assert (0, 0) == (_tenant_usage(core).inferences, _tenant_usage(core).prompt_tokens)


def test_lease_of_a_lost_replica_is_charged_by_its_last_report(core: CoreDriver) -> None:
    """A lost replica sends no final report."""
    _cancel_running(core, made=2)
    core.handle(ev.ReplicaLost("r0"))

    assert (1, 10, 2) == (
        _tenant_usage(core).inferences,
        _tenant_usage(core).prompt_tokens,
        _tenant_usage(core).output_tokens,
    )
    assert {} == core.core.state.leaving


def test_repeated_final_report_is_counted_once(core: CoreDriver) -> None:
    """A replica repeats the end of a lease until it is confirmed."""
    lease_id = _cancel_running(core, made=2)
    for _ in range(2):
        core.last_word(lease_id, output=3, prompt=10)

    assert (1, 3) == (_tenant_usage(core).inferences, _tenant_usage(core).output_tokens)


def test_call_cancelled_as_it_ends_is_metered_completely(core: CoreDriver) -> None:
    """A caller that hangs up at the last event has received its answer."""
    lease_id = _cancel_running(core, made=None)
    core.pull(progress=None, finished={lease_id: 7})

    assert (1, 10, 7) == (
        _tenant_usage(core).inferences,
        _tenant_usage(core).prompt_tokens,
        _tenant_usage(core).output_tokens,
    )


def test_reopened_application_id_is_a_new_application(core: CoreDriver) -> None:
    core.open("a", 1_000)
    core.submit("x")
    core.pull()
    core.handle(ev.ApplicationCancelled("a"))
    core.handle(ev.ApplicationReopened("a"))
    core.open("a", 1_000)
    actions = core.submit("y")

    assert [] == refused(actions)
    assert not core.core.state.applications["a"].state.is_cancelled
    assert ["a"] == list(core.core.state.applications)


def test_prompt_computed_by_a_dying_engine_is_not_charged(core: CoreDriver) -> None:
    core.open("a", 1_000)
    core.submit("x")
    core.pull()
    first = core.lease_of("x")
    core.pull(finished=[ev.LeaseFinished(first, 8, 0, None)])
    again = core.lease_of("x")
    assert again != first
    core.handle(ev.InferenceCancelled("x"))
    core.last_word(again)

    application = core.application("a")
    assert (0, 0) == (application.prompt_tokens, application.kv_token_time)
