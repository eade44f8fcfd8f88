"""Parts of objects: what tells them apart, and when that changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from csd_engine.data.objects.stored import Part, Stored, versions_of
from ddlp.data.objects.parts import Parts

SHARDS = [Stored("a.tar", 9000, '"one"'), Stored("b.tar", 9000, '"two"')]


def parts(shards: list[Stored] = SHARDS, **columns: Any) -> Parts:
    places = {"which": [0, 0, 1], "offsets": [512, 2048, 512], "sizes": [700, 700, 700], **columns}
    return Parts(shards, *(np.array(column) for column in places.values()), lambda k: f"part {k}")


def test_a_part_is_a_place_in_its_object():
    assert len(parts()) == 3 and parts()[1] == Part(SHARDS[0], 2048, 700) and parts().where(2) == "part 2"


def test_versions_tell_parts_from_others_and_from_what_they_become():
    found = versions_of("s3://bucket/", list(parts()))
    assert found is not None and len(set(found.names.tolist())) == 3  # of one size, two in one object
    marks = found.mtimes_ns
    assert marks[0] == marks[1] != marks[2] and (marks < 0).all() and found.sizes.tolist() == [700] * 3
    elsewhere = versions_of("s3://other/", list(parts()))
    assert elsewhere is not None and not set(found.names.tolist()) & set(elsewhere.names.tolist())
    changed = versions_of("s3://bucket/", list(parts([SHARDS[0]._replace(tag='"three"'), SHARDS[1]])))
    assert changed is not None and (found.mtimes_ns == changed.mtimes_ns).tolist() == [False, False, True]
    assert versions_of("s3://bucket/", list(parts([SHARDS[0], SHARDS[1]._replace(tag="")]))) is None


def test_the_fingerprint_depends_on_objects_and_places():
    others = [
        parts([SHARDS[0]._replace(tag='"three"'), SHARDS[1]]), parts([SHARDS[0]._replace(size=9001), SHARDS[1]]),
        parts([SHARDS[0]._replace(key="c.tar"), SHARDS[1]]), parts(which=[0, 1, 1]), parts(offsets=[512, 2048, 1024]),
        parts(sizes=[700, 700, 701]),
    ]  # fmt: skip
    assert len({parts().fingerprint(), *(one.fingerprint() for one in others)}) == 7
    assert parts().fingerprint() == parts().fingerprint()
