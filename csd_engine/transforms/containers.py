"""Operators that contain operators, and run them by chance, one of several, or in a random order."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import PipelineError
from csd_engine.transforms.operators import Canvas, Operator, Shape

__all__ = ["Container", "Group", "RandomApply", "RandomChoice", "RandomOrder", "SizedViews", "Views", "common", "group_out",
           "leaves", "row_size"]

Group = Tuple[Operator, ...]


def group_out(group: Group, shape: Shape) -> Shape:
    """What is known of the image after these operators have run in turn."""
    for operator in group:
        shape = operator.out(shape)
    return shape


def leaves(group: Group) -> Iterator[Operator]:
    """All operators in the group and in its containers, without the containers themselves."""
    for operator in group:
        if isinstance(operator, Container):
            for inner in operator.groups:
                yield from leaves(inner)
        else:
            yield operator


def common(first: Shape, second: Shape) -> Shape:
    """What is known of an image that has one of two shapes."""
    return Shape(
        first.size if first.size == second.size else None,
        first.channels if first.channels == second.channels else None,
    )


@dataclasses.dataclass(frozen=True)
class Container(Operator):
    """Base of the containers. Each of ``groups`` runs as a whole."""

    groups: Tuple[Group, ...] = ()

    @functools.cached_property
    def _known_shapes(self) -> Dict[Shape, Shape]:
        return {}

    def out(self, shape: Shape) -> Shape:
        """What is known of the result. Each shape is judged once: RandomOrder asks its groups again and again."""
        if shape not in self._known_shapes:
            self._known_shapes[shape] = self._out(shape)
        return self._known_shapes[shape]

    def _out(self, shape: Shape) -> Shape:
        raise NotImplementedError

    def to_data(self) -> Dict[str, Any]:
        """Plain data, as parsed."""
        return {"op": type(self).__name__, "groups": [[operator.to_data() for operator in g] for g in self.groups]}


@dataclasses.dataclass(frozen=True)
class RandomApply(Container):
    """Runs its only group with probability p."""

    p: float = 0.5

    def to_data(self) -> Dict[str, Any]:
        """Plain data, as parsed."""
        return {"op": "RandomApply", "ops": [operator.to_data() for operator in self.groups[0]], "p": self.p}

    def _out(self, shape: Shape) -> Shape:
        """Known if it is the same with and without the group."""
        return common(shape, group_out(self.groups[0], shape))

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add the group's steps, or none."""
        if keyed.uniform() < self.p:
            for operator in self.groups[0]:
                operator.draw(canvas, keyed)


@dataclasses.dataclass(frozen=True)
class RandomChoice(Container):
    """Runs one of its groups, chosen by weights p (None: all equally likely)."""

    p: Optional[Tuple[float, ...]] = None

    def validate(self) -> None:
        """Raise ValueError unless there is one weight for each group."""
        if self.p is not None and len(self.p) != len(self.groups):
            raise ValueError(f"{len(self.p)} weights for {len(self.groups)} groups")

    def to_data(self) -> Dict[str, Any]:
        """Plain data, as parsed."""
        return dict(super().to_data(), p=None if self.p is None else list(self.p))

    def _out(self, shape: Shape) -> Shape:
        """Known if it is the same for all groups."""
        return functools.reduce(common, (group_out(group, shape) for group in self.groups))

    def pick(self, keyed: Keyed) -> int:
        """Draw a group's number."""
        if self.p is None:
            return keyed.below(len(self.groups))
        return keyed.weighted(self.p)

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add the chosen group's steps."""
        for operator in self.groups[self.pick(keyed)]:
            operator.draw(canvas, keyed)


@dataclasses.dataclass(frozen=True)
class Views(Container):
    """Several views of each sample, with a group for each view. The sample's occurrence tells which view is made."""

    def _out(self, shape: Shape) -> Shape:
        """Known if it is the same for all views."""
        return functools.reduce(common, (group_out(group, shape) for group in self.groups))

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add the view's own steps."""
        for operator in self.groups[keyed.view(len(self.groups))]:
            operator.draw(canvas, keyed)


def row_size(sizes: Sequence[Tuple[int, int]]) -> Tuple[int, int]:
    """(height, width) of a row of a batch that holds views of these (height, width), their pixels one after another.

    The row is as wide as the widest view, so its last line may have room that is not used.
    """
    width = max(width for _, width in sizes)
    return -(-sum(height * width for height, width in sizes) // width), width


@dataclasses.dataclass(frozen=True)
class SizedViews(Container):
    """Several views of each sample, each of a size of its own, with a group for each view. One row of a batch holds them all.

    It is a pipeline's only operator, and `Pipeline.draw_row` draws it.
    """

    def validate(self) -> None:
        """Raise ValueError unless there are several views."""
        if len(self.groups) < 2:
            raise ValueError("expected at least two groups")

    def sizes(self, shape: Shape) -> Tuple[Optional[Tuple[int, int]], ...]:
        """(height, width) of each view, as far as it is known."""
        return tuple(group_out(group, shape).size for group in self.groups)

    def _out(self, shape: Shape) -> Shape:
        """The row. It is known if all views are, and if they have the same channels."""
        sizes = [size for size in self.sizes(shape) if size is not None]
        channels = {group_out(group, shape).channels for group in self.groups}
        return Shape(
            row_size(sizes) if len(sizes) == len(self.groups) else None, channels.pop() if len(channels) == 1 else None
        )

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Raise PipelineError: a plan is of one image."""
        raise PipelineError("SizedViews makes several images of a sample, and a plan is of one. Call Pipeline.draw_row")


def _settled(transfers: Sequence[Callable[[Any], Any]], start: Any) -> Any:
    """Result of all transfers, applied in any order; None unless it is sure to be the same in every order."""
    if all(transfer(start) == start for transfer in transfers):
        return start
    fixed = {transfer(None) for transfer in transfers} - {None}
    final = fixed.pop() if len(fixed) == 1 else None
    return final if all(transfer(final) == final for transfer in transfers) else None


@dataclasses.dataclass(frozen=True)
class RandomOrder(Container):
    """Runs all groups, in a random order."""

    def _out(self, shape: Shape) -> Shape:
        """Known if it does not depend on the order. Size and channels are judged separately."""
        sizes = [lambda size, g=group: group_out(g, Shape(size, None)).size for group in self.groups]
        channels = [lambda channels, g=group: group_out(g, Shape(None, channels)).channels for group in self.groups]
        return Shape(_settled(sizes, shape.size), _settled(channels, shape.channels))

    def draw(self, canvas: Canvas, keyed: Keyed) -> None:
        """Add all groups' steps, in the order that is drawn."""
        for i in keyed.permutation(len(self.groups)):
            for operator in self.groups[i]:
                operator.draw(canvas, keyed)
