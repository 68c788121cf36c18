"""The loop to compare with: the least counter found by looking at every client, each time.

This is how the artifact of VTC (Ying1123/VTC-artifact, `slora/server/router/vtc_req_queue.py`)
decides: counters in a dict, a scan of all for each grant (Alg. 2, line 21), a copy of all for each
batch, a scan of all for the lift of a client whose queue was empty (lines 8 to 14).

In its favour: nothing but the decision is done. No leases, no accounts, no room but a number of
seats, no durable records; and the artifact's list of all waiting requests, built anew for each
batch, is left out. A core does all of that in the times that it is compared with.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable

from justitia_ray.bench.core_load import ARRIVAL, GRANT, SUBMIT, WAITING_EACH, Timings

_SEATS = 20
"""Grants of a batch: about what one pull of a full replica brings."""
_INPUT_PRICE, _OUTPUT_PRICE = 1.0, 2.0
_OUTPUT_TOKENS = 110
_LAST_GRANT = 0.1


class LinearScan:
    """Virtual token counters without a heap; a request is its number of prompt tokens."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self._waiting: dict[str, deque[int]] = {}

    def add(self, client: str, counter: float, prompt_tokens: Iterable[int]) -> None:
        """Put a client in as it is, without a lift: a scan for each would take minutes."""
        self.counters[client] = counter
        self._waiting[client] = deque(prompt_tokens)

    def submit(self, client: str, prompt_tokens: int) -> None:
        """Let a request wait; the counter of a client that had none is lifted. O(clients)."""
        line = self._waiting.setdefault(client, deque())
        line.append(prompt_tokens)
        if len(line) > 1:
            return
        others = [c for name, c in self.counters.items() if self._waiting[name] and name != client]
        lifted = min(others, default=0.0)
        self.counters[client] = max(self.counters.get(client, 0.0), lifted)

    def grant(self, seats: int) -> list[str]:
        """Take so many requests, each of the client with the least counter. O(clients) each."""
        granted: list[str] = []
        counters = dict(self.counters)
        while counters and len(granted) < seats:
            client = min(counters, key=counters.__getitem__)
            line = self._waiting[client]
            if not line:
                del counters[client]
                continue
            charge = _INPUT_PRICE * line.popleft()
            self.counters[client] += charge
            counters[client] += charge
            granted.append(client)
        return granted

    def serve(self, client: str, output_tokens: int) -> None:
        """Charge what a client's request has made."""
        self.counters[client] += _OUTPUT_PRICE * output_tokens

    def leave(self, client: str) -> None:
        """Forget a client and what waits of it."""
        del self.counters[client]
        del self._waiting[client]


class LinearLoad:
    """The same steady crowd as `core_load`: ten waiting each, one grant in ten the last."""

    def __init__(
        self, clients: int, seed: int, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """Make a full queue of so many clients, to be timed by `clock_ns`."""
        self._clock_ns = clock_ns
        self.queue = LinearScan()
        self.timings = {kind: Timings() for kind in (ARRIVAL, SUBMIT, GRANT)}
        self._random = random.Random(seed)
        for number in range(clients):
            prompts = [self._prompt() for _ in range(WAITING_EACH)]
            self.queue.add(f"client-{number}", self._random.uniform(0, 1000), prompts)
        self._named = clients

    def run(self, batches: int) -> None:
        """Time so many batches of grants, and the arrivals and submissions that answer them."""
        for _ in range(batches):
            started = self._clock_ns()
            granted = self.queue.grant(_SEATS)
            self.timings[GRANT].add(self._clock_ns() - started, len(granted))
            ended: set[str] = set()
            for client in granted:
                if client in ended:
                    continue
                self.queue.serve(client, _OUTPUT_TOKENS)
                if self._random.random() >= _LAST_GRANT:
                    self._submit(SUBMIT, client)
                    continue
                ended.add(client)
                self.queue.leave(client)
                self._arrive()

    def forget(self) -> None:
        """Drop what was timed so far."""
        self.timings = {kind: Timings() for kind in self.timings}

    def _arrive(self) -> None:
        self._named += 1
        name = f"client-{self._named}"
        self._submit(ARRIVAL, name)
        for _ in range(WAITING_EACH - 1):
            self._submit(SUBMIT, name)

    def _submit(self, kind: str, client: str) -> None:
        prompt_tokens = self._prompt()
        started = self._clock_ns()
        self.queue.submit(client, prompt_tokens)
        self.timings[kind].add(self._clock_ns() - started, 1)

    def _prompt(self) -> int:
        return self._random.randint(50, 400)
