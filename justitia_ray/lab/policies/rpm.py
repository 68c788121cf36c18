"""Limit on requests per minute of each client (VTC, OSDI 2024, Sec. 2.2 and 5.1).

The policy is not work-conserving: requests over the limit wait even while replicas are idle.
Differences from the source: requests over the limit wait for the next window instead of being
refused, and a client is an application unless `unit` is `tenant`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.client_policy import ClientPolicy
from justitia_ray.core.policies.options import UNIT, Option, whole
from justitia_ray.core.queue import Key
from justitia_ray.core.records import RecordReader
from justitia_ray.units import ApplicationId, ClientId, RequestId, Seconds

WINDOW_S = 60


class RpmPolicy(ClientPolicy):
    """First come, first served, with a limit on each client's requests per minute.

    Windows are [60k, 60k + 60) s. An inference counts once. If it is requeued in the window in
    which it was counted, it is uncounted, and counted again when it is granted. In later windows it
    does not count again, but it waits while its client has reached the limit.
    """

    holds_back: ClassVar[bool] = True
    OPTIONS: ClassVar[tuple[Option, ...]] = (
        UNIT,
        # VTC's Table 2 has limits of 5, 20 and 30; this one had the highest throughput.
        Option("requests_per_minute", 30, whole(1)),
    )

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._limit: int = self.options.own["requests_per_minute"]
        self._used: dict[ClientId, tuple[int, int]] = {}
        """For each client, the minute of its last grant and its number of grants in that minute."""
        self._counted: dict[ApplicationId, dict[RequestId, int]] = {}

    def key(self, client: ClientId, application: Application) -> Key:
        return application.waiting.first.order

    def eligible_at(self, client: ClientId) -> Seconds:
        """Return when a client at its limit may be served again; 0 below the limit."""
        window = self._present_window()
        if self._used.get(client) == (window, self._limit):
            return float(WINDOW_S * (window + 1))
        return 0.0

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Give a client its request back if the inference is requeued within its minute."""
        counted = self._counted.get(application.application_id, {})
        window = self._present_window()
        if counted.get(inference.request_id) == window:
            del counted[inference.request_id]
            client = self.client(application)
            self._used[client] = (window, self._used[client][1] - 1)
        return ()

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Count a granted inference against the client's limit, once."""
        counted = self._counted.setdefault(application.application_id, {})
        if inference.request_id in counted:
            return ()
        client, window = self.client(application), self._present_window()
        counted[inference.request_id] = window
        last, used = self._used.get(client, (window, 0))
        self._used[client] = (window, used + 1 if last == window else 1)
        return (client,)

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        self._counted.get(application.application_id, {}).pop(inference.request_id, None)
        return ()

    def forget_client(self, client: ClientId) -> None:
        self._used.pop(client, None)

    def forget_application(self, application_id: ApplicationId) -> None:
        self._counted.pop(application_id, None)

    def counted(self) -> dict[str, Any]:
        return {
            "used": {client: list(used) for client, used in self._used.items()},
            "inferences": {name: dict(windows) for name, windows in self._counted.items()},
        }

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Restore the state from the record that `counted` returns.

        Raises:
            ValueError: If the record has another form than `counted` returns.
        """
        reader = RecordReader(counted, ("used", "inferences"), None)
        self._used = reader.table("used", _read_used)
        self._counted = reader.table(
            "inferences", lambda windows, name: windows.table(name, RecordReader.integer)
        )

    def _present_window(self) -> int:
        return int(self.context.now() // WINDOW_S)


def _read_used(used: RecordReader, client: str) -> tuple[int, int]:
    window, count = used.integers(client)
    return (window, count)
