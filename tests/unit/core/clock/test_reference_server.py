"""Prefix sums under insertions and removals, against a plain sorted list."""

from hashlib import blake2b
from itertools import pairwise

import pytest

from justitia_ray.core.clock.reference_server import Place, PrefixSums
from tests.exact import exact


def _pseudo_random(number: int, below: int) -> int:
    return int.from_bytes(blake2b(str(number).encode(), digest_size=8).digest()) % below


def _place_of_tag(tag: int) -> Place:
    return (float(tag), tag, f"a{tag}")


def _tree_depth(sums: PrefixSums) -> int:
    deepest, level = 0, [sums._root]
    while level := [node for node in level if node is not None]:
        deepest += 1
        level = [child for node in level for child in (node.left, node.right)]
    return deepest


def test_tree_sums_equal_the_sums_of_a_sorted_list() -> None:
    """Scheduling keys of tenants are sums of this tree, so an error would change the order."""
    sums, plain = PrefixSums(), dict[Place, float]()
    for step in range(600):
        place = _place_of_tag(_pseudo_random(step, 60))
        if _pseudo_random(-step, 3) and place in plain:
            sums.remove(place)
            del plain[place]
        else:
            plain[place] = exact(_pseudo_random(step + 10**6, 1000), 7)
            sums.put(place, plain[place])
        asked = _place_of_tag(_pseudo_random(step + 10**7, 60))

        assert sum(v for p, v in plain.items() if p <= asked) == sums.sum_up_to(asked)
        assert sum(plain.values()) == sums.total
        assert min(plain.items(), default=None) == sums.first()


def test_sessions_with_equal_tags_are_ordered_by_arrival() -> None:
    sums = PrefixSums()
    for sequence in (3, 1, 2):
        sums.put((5.0, sequence, "x"), sequence)

    assert [1, 3, 6] == [sums.sum_up_to((5.0, sequence, "x")) for sequence in (1, 2, 3)]
    assert sums.sum_up_to((4.0, 9, "x")) == 0


def test_tree_sum_of_an_empty_server_is_zero() -> None:
    sums = PrefixSums()

    assert (0, 0, None) == (sums.total, sums.sum_up_to(_place_of_tag(1)), sums.first())


def test_removing_an_absent_tree_entry_is_an_error() -> None:
    sums = PrefixSums()
    sums.put(_place_of_tag(1), 1)
    with pytest.raises(KeyError):
        sums.remove(_place_of_tag(2))


def test_tree_sums_of_floats_do_not_depend_on_the_order_of_insertion() -> None:
    """After a restart the same amounts must give exactly the same keys."""
    amounts = {_place_of_tag(n): 0.1 + _pseudo_random(n, 10**6) / 7 for n in range(300)}
    sums, again = PrefixSums(), PrefixSums()
    for number in range(300, 600):
        sums.put(_place_of_tag(number), 1 / 3)
    for place, amount in amounts.items():
        sums.put(place, amount * 3)
        sums.put(place, amount)
    for number in range(300, 600):
        sums.remove(_place_of_tag(number))
    for place in sorted(amounts, key=lambda place: _pseudo_random(place[1] + 5, 10**9)):
        again.put(place, amounts[place])

    assert [sums.sum_up_to(place) for place in amounts] == [
        again.sum_up_to(place) for place in amounts
    ]
    assert sums.total == again.total


@pytest.mark.parametrize("direction", [1, -1])
def test_tree_stays_balanced_when_tags_rise_or_fall(direction: int) -> None:
    """Tags mostly rise with time, so that without random ranks the tree would become a list."""
    depths = []
    for size in (512, 4096):
        sums = PrefixSums()
        for number in range(size):
            sums.put((float(direction * number), number, "x"), 1)
        depths.append(_tree_depth(sums))

    assert all(depth < 40 for depth in depths)  # 2·ln 4096 is 17 on average
    assert all(later - earlier < 15 for earlier, later in pairwise(depths))
