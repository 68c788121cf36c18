"""Adapted deficit round robin, step by step as in VTC (OSDI 2024), App. C.2.

Visits are made one by one. Memory is not modelled: `schedule` is called when a seat is free.
"""

from collections.abc import Mapping


class RoundRobin:
    """Deficit round-robin of the paper's App. C.2, with clients at positions in a ring."""

    def __init__(self, quantum: int) -> None:
        """Step 1 of the algorithm: set the quantum Q."""
        self.quantum = quantum
        self.balance: dict[int, int] = {}
        """Step 2 of the algorithm: balance C_i of each client, initially 0."""
        self.at = 0
        """Number of the client whose turn it is; 0 before the first turn."""

    def add_client(self, client: int) -> None:
        self.balance.setdefault(client, 0)

    def schedule(self, prompts: Mapping[int, int]) -> int:
        """Repeat step 3 until one inference is scheduled; return its client.

        Args:
            prompts: Cost of the first waiting prompt of each client that has one; not empty.
        """
        while self.at not in prompts or self.balance[self.at] <= 0:
            self.at = self._next_in_ring()
            waits = self.at in prompts
            # "If a client has no requests in the queue, it will cease to be refilled once C ≥ 0."
            if self.balance[self.at] <= 0 if waits else self.balance[self.at] < 0:
                self.balance[self.at] += self.quantum
        self.balance[self.at] -= prompts[self.at]
        return self.at

    def decode(self, client: int, cost: int) -> None:
        """Step 4 of the algorithm: deduct the cost of tokens."""
        self.balance[client] -= cost

    def _next_in_ring(self) -> int:
        ring = sorted(self.balance)
        return next(
            (client for client in ring if self.at is not None and client > self.at), ring[0]
        )
