"""Random applications and replicas for the test engine."""

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import strategies as st

from tests.property.engine import Arrival, Server

_SIZES = st.tuples(st.integers(1, 30), st.integers(1, 12))
_STAGE = st.lists(_SIZES, min_size=1, max_size=6).map(tuple)
_ONE = st.just(Fraction(1))
_WEIGHTS = st.sampled_from([Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2)])


def arrivals(
    *,
    stages: int = 1,
    weighted: bool = False,
    overlaps: bool = False,
    predicted: Sequence[Fraction] = (Fraction(1),),
    expected: Sequence[Fraction | None] = (None,),
    cached: Sequence[Fraction] = (Fraction(0),),
) -> st.SearchStrategy[list[Arrival]]:
    """Return random applications with at most `stages` stages and 42 KV tokens per inference."""
    return st.lists(
        st.builds(
            Arrival,
            iteration=st.integers(0, 40),
            stages=st.lists(_STAGE, min_size=1, max_size=stages).map(tuple),
            weight=_WEIGHTS if weighted else _ONE,
            gap=st.integers(0, 20) if stages > 1 else st.just(0),
            predicted=st.sampled_from(predicted),
            overlaps=st.just(overlaps),
            expected=st.sampled_from(expected),
            cached=st.sampled_from(cached),
        ),
        min_size=2,
        max_size=7,
    )


def servers(most: int = 1, *, lagging: bool = False) -> st.SearchStrategy[list[Server]]:
    """Return up to `most` replicas; with so little KV memory, fragmentation is common."""
    return st.lists(
        st.builds(
            Server,
            kv_tokens=st.integers(42, 140),
            seats=st.integers(1, 6),
            report_every=st.integers(1, 5) if lagging else st.just(1),
            progress_every=st.integers(1, 4) if lagging else st.just(1),
        ),
        min_size=1,
        max_size=most,
    )
