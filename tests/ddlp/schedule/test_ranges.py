import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlp.schedule.ranges import RangeSet

OPERATION = st.tuples(st.sampled_from(["add", "remove", "range"]), st.integers(0, 30), st.integers(0, 6))
OPERATIONS = st.lists(OPERATION, max_size=60)


@settings(deadline=None)
@given(OPERATIONS)
def test_it_is_a_set_of_ints(operations):
    ranges, model = RangeSet(), set()
    for what, item, width in operations:
        if what == "add":
            ranges.add(item)
            model.add(item)
        elif what == "range":
            ranges.add_range(item, item + width)
            model |= set(range(item, item + width))
        elif item in model:
            ranges.remove(item)
            model.remove(item)
        else:
            assert not ranges.discard(item)
        members = sorted(model)
        assert list(ranges) == members and len(ranges) == len(members)
        assert [ranges.nth(k) for k in range(len(members))] == members
        assert all((k in ranges) == (k in model) for k in range(40))
        assert ranges.first_missing() == next(k for k in range(99) if k not in model)
        for bound in range(40):
            assert ranges.first_missing(bound) == next(k for k in range(bound, 99) if k not in model)
            assert ranges.last_missing(bound) == max((k for k in range(bound) if k not in model), default=-1)
            assert ranges.at_least(bound) == min((k for k in members if k >= bound), default=None)
            assert ranges.at_most(bound) == max((k for k in members if k <= bound), default=None)
        assert RangeSet(ranges.ranges()) == ranges
        pairs = ranges.ranges()
        assert all(stop < start for (_, stop), (start, _) in zip(pairs, pairs[1:], strict=False)), "adjacent ranges merge"
        if members:
            assert (ranges.first(), ranges.last()) == (members[0], members[-1])


def test_a_gap_of_one_between_others_closes():
    ranges = RangeSet([(0, 2), (4, 7), (8, 9), (12, 13)])
    ranges.add(7)
    assert ranges.ranges() == [(0, 2), (4, 9), (12, 13)] and len(ranges) == 8


def test_a_member_in_the_middle_of_others_leaves_a_gap():
    ranges = RangeSet([(0, 5), (8, 9), (12, 15)])
    assert ranges.discard(2) and ranges.ranges() == [(0, 2), (3, 5), (8, 9), (12, 15)] and len(ranges) == 8


def test_what_is_no_range_and_what_is_not_there():
    ranges = RangeSet([(2, 4)])
    for start, stop in ((-1, 3), (3, 2), (-2, -1)):
        with pytest.raises(ValueError, match=rf"not a range of positions: \({start}, {stop}\)"):
            ranges.add_range(start, stop)
    for absent in (1, 4):
        with pytest.raises(KeyError, match=str(absent)):
            ranges.remove(absent)
    with pytest.raises(IndexError, match="beyond the end"):
        ranges.nth(2)
    for end in (RangeSet().first, RangeSet().last):
        with pytest.raises(IndexError):
            end()
    assert repr(ranges) == "RangeSet([(2, 4)])" and ranges == RangeSet([(3, 4), (2, 3)])
    assert ranges != RangeSet([(2, 5)]) and ranges != [(2, 4)]
    with pytest.raises(TypeError, match="unhashable"):
        hash(ranges)


def test_a_million_positions_are_one_range():
    ranges = RangeSet([(0, 10**12)])
    ranges.add(10**12)
    assert ranges.ranges() == [(0, 10**12 + 1)] and ranges.nth(10**12) == 10**12
    assert ranges.discard(5) and ranges.ranges() == [(0, 5), (6, 10**12 + 1)] and len(ranges) == 10**12
    ranges.add(5)
    assert ranges.ranges() == [(0, 10**12 + 1)]
