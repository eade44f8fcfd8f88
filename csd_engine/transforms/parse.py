"""Parses plain data into operators. Only listed operators are allowed, every parameter is checked, nothing is guessed."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type

from csd_engine.errors import PipelineError, quote
from csd_engine.transforms import (
    colour,
    containers,
    crops,
    masks,
    operators,
    policies,
    scales,
    timm_policies,
    timm_sizes,
    user,
    warps,
)
from csd_engine.transforms.checks import MAX_GROUPS, probability, weights
from csd_engine.transforms.containers import Group, leaves

__all__ = ["LEAVES", "parse_ops", "require_keys"]

MAX_DEPTH = 8
MAX_OPERATORS = 256
MAX_BOXES = 256

LEAVES: Dict[str, Type[operators.Operator]] = {
    cls.__name__: cls
    for cls in (
        *operators.OPERATORS, *colour.OPERATORS, *warps.OPERATORS, *policies.OPERATORS, *timm_policies.OPERATORS,
        *crops.OPERATORS, *scales.OPERATORS, *timm_sizes.OPERATORS, *masks.OPERATORS, user.User,
    )
}
CONTAINERS = ("RandomApply", "RandomChoice", "RandomOrder", "Views", "SizedViews")


def require_keys(data: Any, keys: List[str], where: str, optional: Sequence[str] = ()) -> None:
    """Raise PipelineError unless data is a dict with exactly these keys, and perhaps optional ones."""
    if type(data) is not dict:
        raise PipelineError(f"{where} is {quote(data)}, not an object; send a pipeline made by Pipeline.to_data")
    for key in keys:
        if key not in data:
            raise PipelineError(f"{where} lacks the parameter {key!r}; it takes {keys!r}")
    for key in data:
        if key not in keys and key not in optional:
            raise PipelineError(f"{where} has an unknown parameter {quote(key)} = {quote(data[key])}; "
                                f"it takes {keys!r} (is the other side's version newer?)")


def parse_ops(data: Any, where: str = "ops", calls: Optional[user.Calls] = None) -> Tuple[Group, int]:
    """Return the operators for their plain data, and the number of mask boxes of a sample.

    ``calls`` finds the user's own functions. Without it a pipeline with such functions can be inspected, but not run.

    Raises PipelineError, which quotes the operator, the parameter and its value. Errors of ``calls`` pass through.
    """
    parser = _Parser(calls)
    group = parser.group(data, where, 0)
    if len(group) > 1 and any(isinstance(operator, containers.SizedViews) for operator in group):
        raise PipelineError(f"{where}: SizedViews stands beside other operators; put these into each of its groups")
    if parser.masked(group) and parser.boxes > MAX_BOXES:
        raise PipelineError(f"{where}: {parser.boxes} mask boxes a sample; at most {MAX_BOXES} are allowed")
    return group, parser.boxes


class _Parser:
    def __init__(self, calls: Optional[user.Calls]) -> None:
        self.calls = calls
        self.operators = 0
        self.groups = 0
        self.boxes = 0

    def group(self, data: Any, where: str, depth: int) -> Group:
        if type(data) not in (list, tuple):
            raise PipelineError(f"{where} is {quote(data)}, not a list of operators")
        if depth > MAX_DEPTH:
            raise PipelineError(f"{where} is nested deeper than {MAX_DEPTH} levels")
        group = tuple(self.operator(item, f"{where}[{i}]", depth) for i, item in enumerate(data))
        self.require_masks_last(group, where)
        return group

    def operator(self, data: Any, where: str, depth: int) -> operators.Operator:
        self.operators += 1
        if self.operators > MAX_OPERATORS:
            raise PipelineError(f"{where}: more than {MAX_OPERATORS} operators in one pipeline")
        name = data.get("op") if type(data) is dict else None
        if type(name) is str and name in CONTAINERS:
            return self.container(name, data, f"{where} {name}", depth)
        if type(name) is not str or name not in LEAVES:
            raise PipelineError(f"{where} is {quote(data)}: unknown operator {quote(name)}; this version knows "
                                f"{sorted(LEAVES) + list(CONTAINERS)!r}")
        return self.leaf(LEAVES[name], data, f"{where} {name}")

    def leaf(self, cls: Type[operators.Operator], data: Dict[str, Any], where: str) -> operators.Operator:
        require_keys(data, ["op", *cls.FIELDS], where, tuple(cls.OPTIONAL))
        given = {**cls.FIELDS, **{name: check for name, check in cls.OPTIONAL.items() if name in data}}
        values = {name: _checked(check, data[name], where, name) for name, check in given.items()}
        operator = cls(**values)
        _validate(operator, data, where)
        if isinstance(operator, masks.Mask):
            operator = dataclasses.replace(operator, slot=self.boxes)
            self.boxes += operator.boxes
        if isinstance(operator, user.User) and self.calls is not None:
            return operator.resolved(self.calls)
        return operator

    def container(self, name: str, data: Dict[str, Any], where: str, depth: int) -> operators.Operator:
        if name == "RandomApply":
            require_keys(data, ["op", "ops", "p"], where)
            p = _checked(probability, data["p"], where, "p")
            return containers.RandomApply(groups=(self.group(data["ops"], f"{where}.ops", depth + 1),), p=p)
        require_keys(data, ["op", "groups"] + (["p"] if name == "RandomChoice" else []), where)
        if type(data["groups"]) not in (list, tuple) or not data["groups"]:
            raise PipelineError(f"{where}: groups={quote(data['groups'])}: expected a list of at least one group")
        self.groups += len(data["groups"])
        if self.groups > MAX_GROUPS:
            raise PipelineError(f"{where}: more than {MAX_GROUPS} groups in one pipeline")
        groups = tuple(self.group(g, f"{where}.groups[{i}]", depth + 1) for i, g in enumerate(data["groups"]))
        if name == "RandomChoice":
            choice = containers.RandomChoice(groups=groups, p=_checked(weights, data["p"], where, "p"))
            _validate(choice, data, where)
            return choice
        if name == "Views":
            return containers.Views(groups=groups)
        if name == "SizedViews":
            if depth > 0 or any(map(self.masked, groups)):
                raise PipelineError(f"{where}: it stands inside another operator, or a group draws mask boxes; it must be the "
                                    "pipeline's only operator, without masks")
            views = containers.SizedViews(groups=groups)
            _validate(views, data, where)
            return views
        if any(map(self.masked, groups)):
            # Twice, since in some order a pixel operator of any group could come after a mask.
            self.require_masks_last(tuple(operator for group in groups + groups for operator in group), where)
        return containers.RandomOrder(groups=groups)

    def masked(self, group: Group) -> bool:
        """Whether a mask is anywhere in the group."""
        return any(isinstance(operator, masks.Mask) for operator in leaves(group))

    def pixels(self, group: Group) -> bool:
        """Whether an operator on pixels is anywhere in the group."""
        return any(not isinstance(operator, masks.Mask) for operator in leaves(group))

    def require_masks_last(self, group: Group, where: str) -> None:
        after = ""
        for operator in group:
            if after and self.pixels((operator,)):
                raise PipelineError(f"{where}: {type(operator).__name__} follows {after}, which draws mask boxes; "
                                    "masks must be the last operators, since boxes are not cropped or flipped")
            if self.masked((operator,)):
                after = type(operator).__name__


def _checked(check: Any, value: Any, where: str, name: str) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise PipelineError(f"{where}: {name}={quote(value)}: {error}") from None


def _validate(operator: operators.Operator, data: Dict[str, Any], where: str) -> None:
    try:
        operator.validate()
    except ValueError as error:
        raise PipelineError(f"{where}: {quote(data)}: {error}") from None
