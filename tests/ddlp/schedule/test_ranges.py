from hypothesis import given
from hypothesis import strategies as st

from ddlp.schedule.ranges import RangeSet

OPERATION = st.tuples(st.sampled_from(["add", "remove", "range"]), st.integers(0, 30), st.integers(0, 6))
OPERATIONS = st.lists(OPERATION, max_size=60)


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
            assert ranges.last_missing(bound) == max((k for k in range(bound) if k not in model), default=-1)
            assert ranges.at_least(bound) == min((k for k in members if k >= bound), default=None)
            assert ranges.at_most(bound) == max((k for k in members if k <= bound), default=None)
        assert RangeSet(ranges.ranges()) == ranges
        pairs = ranges.ranges()
        assert all(stop < start for (_, stop), (start, _) in zip(pairs, pairs[1:], strict=False)), "adjacent ranges merge"
        if members:
            assert (ranges.first(), ranges.last()) == (members[0], members[-1])
