"""The order of applications: the policy in force, the accounts it reads, the queue it sorts."""

from collections.abc import Iterable, Mapping

from justitia_ray.core.policies import POLICIES, Delivery, parse_options
from justitia_ray.core.queue import Queue
from justitia_ray.core.state import State
from justitia_ray.core.virtual_clock import VirtualClock
from justitia_ray.units import ApplicationId


class Order:
    """Keeps the queue in step with what changes keys."""

    def __init__(self, state: State, policy: str, options: Mapping[str, object]) -> None:
        self._state = state
        self.policy_name = policy
        self.options = parse_options(policy, options)
        self.fair_share = self.options.fair_share()
        self.policy = POLICIES[policy](self.fair_share)
        self.queue = Queue(self.policy.key)

    def rekey(self, application_ids: Iterable[ApplicationId]) -> None:
        """Sort these applications anew."""
        for application_id in application_ids:
            self._state.changed[application_id] = None
            self.queue.touch(self._state.applications[application_id])

    def book(self, deliveries: list[Delivery]) -> None:
        """Book one report's service: rules 1 and 2 of the clock, and the policy's own charges."""
        if not deliveries:
            return
        recharged = self.fair_share.deliver((d.application_id, d.amount) for d in deliveries)
        self._state.changed.update((d.application_id, None) for d in deliveries)
        self.rekey(recharged)
        self.rekey(self.policy.served(deliveries))

    def capacity_changed(self) -> None:
        """A replica came or went: the nominal clock has another rate."""
        total = sum(replica.capacity.kv_tokens for replica in self._state.replicas.values())
        self.fair_share.set_rate(total, self._state.now)

    def change(self, policy: str, options: Mapping[str, object]) -> None:
        """Order by another policy from now on; accounts and queue stay.

        Raises:
            ConfigError: If the policy or an option is not one of those allowed; nothing changed.
        """
        parsed = parse_options(policy, options)
        clock_stays = parsed.same_clock(self.options)
        self.policy_name, self.options = policy, parsed
        if clock_stays:
            self._take_policy()
        else:
            self.restart_clock()

    def restart_clock(self) -> None:
        """Start a new clock at this V, with what each live application may still ask for."""
        before, self.fair_share = self.fair_share, self.options.fair_share()
        self.fair_share.clock = VirtualClock(before.clock.virtual_time)
        # What GPS owed to applications that have ended is forgotten, in the store too.
        self._state.changed.update(dict.fromkeys(before.clock.take_forgotten()))
        self._state.changed.update(dict.fromkeys(before.clock.sessions()))
        self.capacity_changed()
        for application_id, account in before.accounts.items():
            self.fair_share.arrive(
                application_id, account.charged - account.attained, account.weight, account.sequence
            )
            renewed = self.fair_share.accounts[application_id]
            renewed.charged += account.attained
            renewed.attained = account.attained
            renewed.settlements = account.settlements
            if self._state.applications[application_id].is_idle:
                self.fair_share.withdraw(application_id)
        self._take_policy()

    def _take_policy(self) -> None:
        self.policy = POLICIES[self.policy_name](self.fair_share)
        self.queue.reorder(self.policy.key)
