"""Applications: their tags against the clock, and whether somebody still speaks for them."""

from collections.abc import Iterator

from justitia_ray.doctor.finding import RESTART_SCHEDULER, Fact, Severity
from justitia_ray.doctor.look import OfficeLook
from justitia_ray.units import Seconds

_LATE_S: Seconds = 5.0
"""After its time an idle application is ended by a timer."""


def tag_behind_the_clock(look: OfficeLook) -> Iterator[Fact]:
    """GPS serves an application as long as its tag F is ahead of V, and no longer."""
    for application_id, application in look.office.applications.items():
        if application.active != (application.finish > application.clock):
            state = "still" if application.active else "no longer"
            yield Fact(
                Severity.WRONG,
                application_id,
                f"application {application_id} is {state} served by the fair share's model, with"
                f" its tag F at {application.finish:,.0f} and V at {application.clock:,.0f}",
                "its place in the order is not the one that is due: this is a bug, report it with"
                f" --json; {RESTART_SCHEDULER}",
            )


def application_that_should_have_ended(look: OfficeLook) -> Iterator[Fact]:
    """An application with nothing to do ends by itself."""
    for application_id, application in look.office.applications.items():
        idle_s = application.idle_s
        if idle_s is not None and idle_s > look.limits.application_s + _LATE_S:
            yield Fact(
                Severity.WRONG,
                application_id,
                f"application {application_id} has been idle for {idle_s:.0f} s, and should have"
                f" ended after {look.limits.application_s:g} s (scheduler.application_idle_s)",
                f"end it: DELETE /v1/applications/{application_id}; report it with --json",
            )


def application_nobody_speaks_for(look: OfficeLook) -> Iterator[Fact]:
    """An application whose ingress is gone goes on if its caller does, and else ends idle."""
    for application_id, application in look.office.applications.items():
        if application.ingress_id not in look.office.ingresses:
            rest = ""
            if application.idle_s is not None:
                left_s = max(0.0, look.limits.application_s - application.idle_s)
                rest = f"; it ends by itself in {left_s:.0f} s"
            yield Fact(
                Severity.NOTE,
                application_id,
                f"application {application_id} was opened at an ingress that is gone, and no other"
                f" has heard of it since{rest}",
                "nothing: if its caller goes on, so does it; to end it now:"
                f" DELETE /v1/applications/{application_id}",
            )
