"""KV memory of shared prefixes, against the union of the blocks that the leases hold."""

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.footprints import Footprint, Footprints
from justitia_ray.core.prefixes import Prefix

BLOCK = 4
_PROMPTS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("".join)
"""Prompts as sequences of block-sized segments; equal segments have equal tokens."""
_LEASE = st.tuples(
    st.sampled_from("12345"), _PROMPTS, st.integers(0, 3), st.integers(1, 9), st.integers(1, 3)
)
"""Lease id, prompt, tokens after the prompt, iterations and sequences."""
_NAMES = st.sets(st.integers(1, 4))
_FOUND = st.tuples(st.sampled_from("12345"), st.integers(0, 4))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), _LEASE, _NAMES),
        st.tuples(st.just("end"), st.sampled_from("12345")),
        st.tuples(st.just("report"), st.sampled_from("12345")),
        st.tuples(st.just("found"), _FOUND),
    ),
    max_size=25,
)


class _World:
    """Leases with the blocks that each one holds, and the ledger of shared prefixes under test."""

    def __init__(self, *, names_all: bool) -> None:
        self.ledger = Footprints()
        self.leases: dict[str, tuple[str, Footprint]] = {}
        self.missed: dict[str, int] = {}
        """Number of leading blocks after which a lease has its own copies."""
        self._names_all = names_all

    def apply(self, step: tuple) -> None:  # type: ignore[type-arg]
        kind, what, *names = step
        if kind == "grant" and what[0] not in self.leases:
            lease_id, prompt, rest, iterations, choices = what
            named = range(1, 5) if self._names_all else names[0]
            prefixes = named_prefixes(prompt, named)
            if prefixes:
                self.ledger.join(lease_id, prefixes)
            context = BLOCK * len(prompt) + rest
            self._set_lease(lease_id, prompt, Footprint(iterations, choices, context, lease_id))
        elif kind == "end" and what in self.leases:
            del self.ledger[what], self.leases[what]
            self.missed.pop(what, None)
        elif kind == "report" and what in self.leases:
            prompt, (iterations, choices, context, owner) = self.leases[what]
            grown = Footprint(max(0, iterations - 1), choices, context + choices, owner)
            self._set_lease(what, prompt, grown)
        elif kind == "found" and what[0] in self.leases:
            self.missed.setdefault(what[0], what[1])
            self.ledger.note_found(what[0], BLOCK * what[1])

    def _set_lease(self, lease_id: str, prompt: str, footprint: Footprint) -> None:
        self.ledger[lease_id] = footprint
        self.leases[lease_id] = (prompt, footprint)

    def held_tokens(self, after: int = 0) -> int:
        """Return the KV tokens in use after some iterations; each shared block counts once."""
        own = 0
        blocks: dict[str, list[bool]] = {}
        for lease_id, (prompt, footprint) in self.leases.items():
            if footprint.iterations < after:
                continue
            own += footprint.context_tokens - BLOCK * len(prompt) + footprint.choices * after
            for length in range(1, len(prompt) + 1):
                is_copy = length > self.missed.get(lease_id, 4)
                blocks.setdefault(prompt[:length], []).append(is_copy)
        return own + BLOCK * sum(max(1, sum(copies)) for copies in blocks.values())

    def unshared_tokens(self) -> int:
        """Return the KV tokens that the leases would use without sharing."""
        return sum(footprint.context_tokens for _, footprint in self.leases.values())


def named_prefixes(prompt: str, lengths: object) -> tuple[Prefix, ...]:
    """Return the prefixes of a prompt that have the given lengths, in blocks."""
    assert isinstance(lengths, range | set)
    return tuple(
        Prefix(BLOCK * n, prompt[:n].encode().ljust(7)) for n in sorted(lengths) if n <= len(prompt)
    )


@given(_STEPS)
def test_prefix_ledger_equals_the_union_of_the_cached_blocks(steps: list) -> None:  # type: ignore[type-arg]
    """Equal in any order of starts, ends and cache misses."""
    world = _World(names_all=True)
    for step in steps:
        world.apply(step)

        assert world.held_tokens() == world.ledger.context_tokens
        forecast = world.ledger.forecast(1)
        columns = zip(reversed(forecast.ends), reversed(forecast.held), strict=True)
        at_ends = {end: world.held_tokens(end) for end in forecast.ends}
        assert at_ends == dict(columns) or world.missed
        full = sum(f.choices * f.iterations for _, f in world.leases.values())
        assert world.held_tokens() + full == world.ledger.full_tokens
        assert world.ledger.full_tokens == sum(part.full_tokens for part in world.ledger.parts())


@given(_STEPS)
def test_unnamed_prompt_prefix_counts_once_for_each_lease(steps: list) -> None:  # type: ignore[type-arg]
    """The ledger is never below the union of the blocks, so no engine gets more than fits."""
    world = _World(names_all=False)
    for step in steps:
        world.apply(step)

        assert world.held_tokens() <= world.ledger.context_tokens or world.missed
        assert 0 <= world.ledger.context_tokens
        assert world.ledger.context_tokens <= world.unshared_tokens() or world.missed
    for lease_id in list(world.leases):
        del world.ledger[lease_id]
    assert (0, 0, 0) == (
        world.ledger.context_tokens,
        world.ledger.full_tokens,
        len(list(world.ledger.beginnings or ())),
    )


@given(_STEPS, _LEASE)
def test_incremental_memory_peak_equals_the_peak_of_all_leases(
    steps: list,  # type: ignore[type-arg]
    lease: tuple[str, str, int, int, int],
) -> None:
    """A lease may outlive the one with which it shares blocks."""
    world = _World(names_all=True)
    _, prompt, rest, iterations, choices = lease
    named = named_prefixes(prompt, range(1, 5))
    for step in [*steps, ("end", "5")]:
        world.apply(step)
        ledger = world.ledger
        context = BLOCK * len(prompt) + rest - ledger.longest_shared_beginning(named)
        wanted = Footprint(iterations, choices, context, "6")
        extension = ledger.extension(named, iterations)
        together = ledger.forecast_with(wanted, 1, extension)
        peak = max(together.held, default=0)
        assert peak == ledger.forecast(1).peak_with_lease(wanted, extension)
        assert (peak > 40) == ledger.exceed(40, wanted, 1, extension)

    if not world.missed:
        world.apply(("grant", ("6", prompt, rest, iterations, choices), set()))
        ends = [footprint.iterations for _, footprint in world.leases.values()]
        assert peak == max(world.held_tokens(end) for end in ends)
