"""Which replica an inference goes to, and which later one may go before one that fits nowhere.

Matching is by room, then by locality (a replica that has finished an inference of the application
may hold prefixes of its prompts), then by free KV. Locality decides between replicas with room
only: nobody waits for a certain replica, and nobody is passed for one. What an application submits
at once before anything of it is finished spreads over the replicas.

An inference that waits for room is *in line* for every replica that could hold it if it were empty.
A later one may start on a replica for which nobody is in line (the replica is too small for all who
wait), for it takes nothing that they could use. Where somebody is in line, only `backfill` lets it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from justitia_ray.core.admission import Admission, expected_footprint, kv_need_tokens
from justitia_ray.core.entities import Application, Inference, Replica
from justitia_ray.core.state import State
from justitia_ray.units import Tokens


@dataclass(frozen=True, slots=True)
class Place:
    """A replica, and those in line for it who are passed there."""

    replica: Replica
    passed: list[Inference]


class Placement:
    """Finds room."""

    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self.admission = admission

    def fits(self, replica: Replica, inference: Inference) -> bool:
        """Return whether an inference may start on a replica now, as far as its room goes."""
        return self.can_hold(replica, inference) and (
            not replica.leases or self.admission.fits(replica, inference)
        )

    def can_hold(self, replica: Replica, inference: Inference) -> bool:
        """Return whether an inference could run to its end on a replica that it has alone.

        What exceeds every replica goes to the largest: otherwise it would wait for ever, and
        everything behind it too.
        """
        capacity = replica.capacity
        if (
            kv_need_tokens(inference, capacity.block_size) <= capacity.kv_tokens
            and inference.choices <= capacity.max_num_seqs
        ):
            return True
        return not any(_size(other) > _size(replica) for other in self._taking())

    def find(
        self,
        application: Application,
        inference: Inference,
        share_cap: float = 1.0,
        line: Sequence[Inference] = (),
        backfill: int | None = 0,
    ) -> Place | None:
        """Return where to lease an inference, or None if it must wait.

        On a replica for which others are in line it may start if by the predictions that does not
        delay the first of them there, and none of them has been passed as often as is allowed.

        Args:
            application: Its application.
            inference: A waiting inference.
            share_cap: Share of a replica's KV that the application may hold; 1 is no limit.
            line: Those before it in order that wait for room.
            backfill: How often an inference may be passed; None is no limit.
        """
        for replica in self._ranked(application):
            passed = self._in_line(replica, line)
            if (
                _may_pass(passed, backfill)
                and (
                    replica.prompt_budget is None
                    or inference.prompt_tokens <= replica.prompt_budget
                )
                and self.fits(replica, inference)
                and self._within_share(replica, inference, share_cap)
                and not (passed and self._delays(replica, passed[0], inference))
            ):
                return Place(replica, passed)
        return None

    def is_open(self, line: Sequence[Inference], backfill: int | None) -> bool:
        """Return whether any replica may be given to one behind these."""
        return any(_may_pass(self._in_line(replica, line), backfill) for replica in self._asking())

    def is_capped(self, inference: Inference, share_cap: float) -> bool:
        """Return whether it is the cap alone that keeps an inference from every replica."""
        if share_cap >= 1:
            return False
        fitting = [replica for replica in self._asking() if self.fits(replica, inference)]
        return bool(fitting) and not any(
            self._within_share(replica, inference, share_cap) for replica in fitting
        )

    def _delays(self, replica: Replica, first: Inference, later: Inference) -> bool:
        """Return whether `first` would start there later if `later` started now.

        By the predicted lengths, at a token an iteration for each sequence, and if nothing else is
        admitted.
        """
        block = replica.capacity.block_size
        alone = replica.leases.forecast(block)
        both = replica.leases.forecast_with(expected_footprint(later).load, block)
        start = self.admission.start
        return start(replica, first, both) > start(replica, first, alone)

    def _in_line(self, replica: Replica, line: Sequence[Inference]) -> list[Inference]:
        return [inference for inference in line if self.can_hold(replica, inference)]

    def _within_share(self, replica: Replica, inference: Inference, share_cap: float) -> bool:
        """Return whether the application stays under its share of a replica with the inference.

        Counted are prompts and expected outputs. An application that holds nothing of the replica
        may always have one inference on it.
        """
        if share_cap >= 1:
            return True
        held = replica.leases.held_by(inference.application_id)
        wanted = expected_footprint(inference).load.full_tokens
        return held == 0 or held + wanted <= share_cap * replica.capacity.kv_tokens

    def _ranked(self, application: Application) -> list[Replica]:
        """Return the replicas that ask for work: those that served it, then by free KV, by name."""
        asking, served = list(self._asking()), application.replicas
        if len(asking) == 1:
            return asking
        return sorted(
            asking,
            key=lambda replica: (
                replica.replica_id not in served,
                -_free(replica),
                replica.replica_id,
            ),
        )

    def _taking(self) -> Iterator[Replica]:
        return (r for r in self._state.replicas.values() if not r.draining)

    def _asking(self) -> Iterator[Replica]:
        return (r for r in self._state.asking.values() if not r.draining)


def _may_pass(passed: Sequence[Inference], backfill: int | None) -> bool:
    return backfill is None or all(inference.passes < backfill for inference in passed)


def _size(replica: Replica) -> tuple[Tokens, int]:
    return (replica.capacity.kv_tokens, replica.capacity.max_num_seqs)


def _free(replica: Replica) -> Tokens:
    return replica.capacity.kv_tokens - replica.unaccounted_tokens - replica.context_tokens
