"""Adapted deficit round robin, step by step as VTC (OSDI 2024), App. C.2 has it.

Visits are made one by one. There is no room to ask for: `schedule` is called when a seat is free.
"""

from collections.abc import Mapping


class RoundRobin:
    """The four steps of App. C.2 over clients that are named by their place in the ring, from 1."""

    def __init__(self, quantum: int) -> None:
        """Step 1: the quantum Q."""
        self.quantum = quantum
        self.balance: dict[int, int] = {}
        """Step 2: C_i, 0 at first; what the source calls debt is what it lacks of being above 0."""
        self.at = 0
        """Whose visit is under way; 0 before the first."""

    def see(self, client: int) -> None:
        """Put a client into the ring."""
        self.balance.setdefault(client, 0)

    def schedule(self, prompts: Mapping[int, int]) -> int:
        """Step 3, until one inference is scheduled; return its client.

        Args:
            prompts: Cost of the first waiting prompt of each client that has one; not empty.
        """
        while self.at not in prompts or self.balance[self.at] <= 0:
            self.at = self._next()
            waits = self.at in prompts
            # "If a client has no requests in the queue, it will cease to be refilled once C ≥ 0."
            if self.balance[self.at] <= 0 if waits else self.balance[self.at] < 0:
                self.balance[self.at] += self.quantum
        self.balance[self.at] -= prompts[self.at]
        return self.at

    def decode(self, client: int, cost: int) -> None:
        """Step 4: deduct the cost of tokens."""
        self.balance[client] -= cost

    def _next(self) -> int:
        ring = sorted(self.balance)
        return next(
            (client for client in ring if self.at is not None and client > self.at), ring[0]
        )
