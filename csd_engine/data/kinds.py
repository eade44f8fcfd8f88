"""All kinds of data sets, by the "type" of their plain data. A new kind needs a file, and a line here."""

from __future__ import annotations

from typing import Any, Dict, Type

from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import Dataset
from csd_engine.data.carried import CarriedSet
from csd_engine.data.checks import bad
from csd_engine.data.concat import ConcatSet
from csd_engine.data.files import FileSet
from csd_engine.data.objects.dataset import ObjectSet
from csd_engine.data.parts import PartSet

__all__ = ["KINDS", "parse_dataset"]

KINDS: Dict[str, Type[Dataset]] = {
    kind.type: kind for kind in (FileSet, ArraySet, ConcatSet, PartSet, ObjectSet, CarriedSet)
}


def parse_dataset(data: Any) -> Dataset:
    """Make a data set from `Dataset.to_data`'s result, and check every field.

    Raises:
        DatasetError: quotes the field and the value; or it is too large for this computer.
    """
    name = data.get("type") if isinstance(data, dict) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        *most, last = KINDS
        raise bad(f"expected type {', '.join(most)} or {last}", data)
    return kind.parse(data, parse_dataset)
