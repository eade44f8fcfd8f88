"""Imports point one way: no circle of files or rooms, and each room imports rooms of lower floors only.

A room is a folder below ddlp/ or csd_engine/; a module that lies directly there is a room of its own. Imports inside functions
and under TYPE_CHECKING count. ddlp/__init__.py is the face: it may import every room, because it imports them only when needed.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FACE = "ddlp/__init__.py"

# From bottom to top. CONTRIBUTING.md shows the same, with a line for each room.
FLOORS = (
    ("csd_engine", "csd_engine.errors", "csd_engine.kernels"),
    ("csd_engine.arithmetic", "csd_engine.machine"),
    ("csd_engine.batchfile",),
    ("csd_engine.data",),
    ("csd_engine.transforms", "csd_engine.protocol", "csd_engine.cache"),
    ("csd_engine.prepare",),
    ("csd_engine.service", "csd_engine.tools"),
    ("csd_engine.__main__",),
    ("ddlp.errors", "ddlp.transforms", "ddlp.decode", "ddlp.schedule"),
    ("ddlp.process", "ddlp.stats", "ddlp.devices", "ddlp.sampledata"),
    ("ddlp.auto", "ddlp.data", "ddlp.sampling", "ddlp.transfer"),
    ("ddlp.translate",),
    ("ddlp.sources", "ddlp.frameworks", "ddlp.caching"),
    ("ddlp.epoch", "ddlp.deploy", "ddlp.config"),
    ("ddlp.pools", "ddlp.recording"),
    ("ddlp.begin",),
    ("ddlp.loader",),
    ("ddlp", "ddlp.observe", "ddlp.integrations", "ddlp.swap", "ddlp.evaluation"),
    ("ddlp.tryout",),
    ("ddlp.cli",),
    ("ddlp.__main__",),
)  # fmt: skip


Graph = Mapping[str, Collection[str]]


# -- reading the imports -----------------------------------------------------------------------------------------------


def read() -> dict[str, str]:
    """The text of each file, by path."""
    paths = [path for top in ("csd_engine", "ddlp") for path in sorted((ROOT / top).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def module(path: str) -> str:
    """The name by which a file is imported."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def parsed(text: str) -> ast.Module:
    """The syntax tree of a file. Python 3.11 may miscount its depth if something runs in between (cpython 106905)."""
    for _ in range(3):
        try:
            return ast.parse(text)
        except SystemError as error:
            told = error
    raise told


def imported(path: str, text: str, modules: Collection[str]) -> set[str]:
    """The modules that a file imports anywhere. ``from a import b`` counts as a.b if that is one of ``modules``, else as a."""
    folder = path.removesuffix(".py").split("/")[:-1]
    names: set[str] = set()
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inner = {f"{base}.{one.name}" for one in node.names}
            names |= inner & set(modules)
            names |= {base} if inner - set(modules) else set()
    return names


def file_graph(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """The files that each file imports."""
    paths = {module(path): path for path in texts}
    return {
        path: {paths[name] for name in imported(path, text, paths) if name in paths and paths[name] != path}
        for path, text in texts.items()
    }


def room(path: str) -> str:
    """ddlp/sources/engine/link.py is in ddlp.sources, ddlp/loader.py is ddlp.loader, ddlp/__init__.py is ddlp."""
    return ".".join(module(path).split(".")[:2])


# -- judging them ------------------------------------------------------------------------------------------------------


def room_graph(graph: Graph) -> dict[str, set[str]]:
    """The rooms that each room imports. The face's imports do not count."""
    rooms: dict[str, set[str]] = {room(path): set() for path in graph}
    for path, others in graph.items():
        if path != FACE:
            rooms[room(path)] |= {room(other) for other in others} - {room(path)}
    return rooms


def circle(graph: Graph) -> list[str]:
    """A shortest circle with its first node repeated at the end. Empty if there is none."""
    found: list[str] = []
    for start in sorted(graph):
        before: dict[str, str] = {}  # the node from which each node is first reached
        queue = deque([start])
        while queue and start not in before:
            node = queue.popleft()
            for other in sorted(graph.get(node, ())):
                if other not in before:
                    before[other] = node
                    queue.append(other)
        if start in before:
            way = [start, before[start]]
            while way[-1] != start:
                way.append(before[way[-1]])
            if not found or len(way) < len(found):
                found = way[::-1]
    return found


def upward(graph: Graph, floors: Collection[Collection[str]] = FLOORS) -> list[str]:
    """Each import of a room that is not on a lower floor. Rooms without a floor are skipped."""
    floor = {one: number for number, rooms in enumerate(floors) for one in rooms}
    return [
        f"{path} imports {other}: {room(path)} is on floor {floor[room(path)]}, {room(other)} on floor {floor[room(other)]}"
        for path, others in sorted(graph.items())
        for other in sorted(others)
        if path != FACE and room(path) != room(other) and floor.get(room(path), len(floors)) <= floor.get(room(other), -1)
    ]


# -- the packages ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return read()


@pytest.fixture(scope="module")
def graph(texts: dict[str, str]) -> dict[str, set[str]]:
    return file_graph(texts)


def test_every_room_has_a_floor(graph):
    rooms = sorted(one for floor in FLOORS for one in floor)
    assert rooms == sorted(room_graph(graph)), "give a new room a floor in FLOORS, and a line in CONTRIBUTING.md"


def test_no_circle_of_files(graph):
    found = circle(graph)
    assert not found, f"files import each other: {' -> '.join(found)}"


def test_rooms_import_lower_floors_only(graph):
    """So there is no circle of rooms."""
    found = upward(graph)
    assert not found, "\n".join(found)


def test_the_engine_needs_neither_ddlp_nor_torch(texts):
    found = {path: imported(path, text, ()) for path, text in texts.items() if path.startswith("csd_engine/")}
    wrong = {path: names for path, names in found.items() if {name.partition(".")[0] for name in names} & {"ddlp", "torch"}}
    assert not wrong, f"a device has neither: {wrong}"


def test_what_users_get_imports_no_benchmark():
    """Nor what only the repository has: tests and scripts."""
    paths = [path for top in ("csd_engine", "ddlp", "templates") for path in sorted((ROOT / top).rglob("*.py"))]
    tops = {path: {name.partition(".")[0] for name in imported(path.name, path.read_text(), ())} for path in paths}
    assert "ddlp" in tops[ROOT / "templates" / "common.py"]
    assert not {path: names for path, names in tops.items() if names & {"benchmarks", "scripts", "tests"}}


PURE = {
    "__future__", "abc", "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "math", "typing",
}  # fmt: skip


def test_the_schedule_is_pure(texts):
    """It imports itself, ddlp.errors, and only those standard modules that tell no time, do not wait and read nothing."""
    paths = {module(path): path for path in texts}
    names = {name for path, text in texts.items() if room(path) == "ddlp.schedule" for name in imported(path, text, paths)}
    assert "ddlp.schedule" in {".".join(name.split(".")[:2]) for name in names}
    ours = ("ddlp.schedule.", "ddlp.errors.")
    assert not [name for name in sorted(names) if name.partition(".")[0] not in PURE and not f"{name}.".startswith(ours)]


def written_from_outside(texts: Mapping[str, str]) -> list[str]:
    """Each assignment to an attribute of a ledger, a strategy or rates, except in the schedule's own files."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, text in sorted(texts.items()) if room(path) != "ddlp.schedule"
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        and re.search(r"\b_?(ledger|rates|strategy)\b", ast.unparse(node.value))
    ]  # fmt: skip


def test_only_the_schedule_writes_its_state(texts):
    found = written_from_outside(texts)
    assert not found, f"say what happens, by a method of its owner: {found}"


def test_contributing_shows_the_same_rooms():
    rows = re.findall(r"^\| (\d+) \| `(.+?)/?` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    shown = [(int(floor), module(path)) for floor, path in rows]
    assert shown == [(floor, one) for floor, rooms in enumerate(FLOORS) for one in rooms], "the order of FLOORS"


LOADER_TYPES = ("DataLoader", "DataLoader | OrderSource", "LoaderView")
# They run torch's own iterators and worker loop over a loader. One source for user code is to take their place.
OF_USER_CODE = (
    "ddlp/sources/host/torch_workers.py", "ddlp/sources/host/memories.py", "ddlp/sources/host/own_steps.py",
    "ddlp/sources/usercode/",
)  # fmt: skip
PRIVATE_NAMES = "ddlp/sampling/torch_loader.py"


def whole_loaders(texts: Mapping[str, str]) -> list[str]:
    """Where a file below the loader takes one by another type than `LOADER_TYPES`, or uses a private name of it."""
    floor = {one: number for number, rooms in enumerate(FLOORS) for one in rooms}
    below = {path: text for path, text in sorted(texts.items()) if floor.get(room(path), 99) < floor["ddlp.loader"]}
    found = []
    for path, text in below.items():
        if path.startswith(OF_USER_CODE) or path == PRIVATE_NAMES:
            continue
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.arg) and node.arg == "loader" and room(path) != "ddlp.translate":
                annotation = "nothing" if node.annotation is None else ast.unparse(node.annotation)
                if annotation not in LOADER_TYPES:
                    found.append(f"{path}:{node.lineno}: loader: {annotation}")
            elif isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w*", node.attr):
                if re.search(r"\b_?loader$|\bview\.torch$", ast.unparse(node.value)):
                    found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_what_lies_below_the_loader_takes_no_whole_one(texts):
    found = whole_loaders(texts)
    assert not found, f"take what is needed of it, an Epoch, or a LoaderView: {found}"


# -- these tests can fail ------------------------------------------------------------------------------------------------


def test_an_arrow_turned_round_is_found(graph):
    path, other = "ddlp/begin/live.py", "ddlp/epoch/iterator.py"
    assert other in graph[path]
    turned = {**graph, other: {*graph[other], path}}
    assert circle(turned) == [path, other, path]
    assert [line.partition(":")[0] for line in upward(turned)] == [f"{other} imports {path}"]


def test_imports_are_found_wherever_they_stand():
    texts = {
        "ddlp/__init__.py": "",
        "ddlp/a/__init__.py": "def f():\n    import ddlp.b",
        "ddlp/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ddlp.a import c, name",
        "ddlp/a/c.py": "from . import d\nfrom ..b import name",
        "ddlp/a/d.py": "from ddlp.a import *",
    }
    assert file_graph(texts) == {
        "ddlp/__init__.py": set(), "ddlp/a/__init__.py": {"ddlp/b.py"}, "ddlp/b.py": {"ddlp/a/__init__.py", "ddlp/a/c.py"},
        "ddlp/a/c.py": {"ddlp/a/d.py", "ddlp/b.py"}, "ddlp/a/d.py": {"ddlp/a/__init__.py"},
    }  # fmt: skip


def test_a_writer_from_outside_is_found():
    text = "self.ledger = a\nself._rates.host.parallel = 2\nb, strategy.c[0].d = e\nx.rates.device(n).f += 1\nself.y = ledger.z"
    said = written_from_outside({"ddlp/a.py": text, "ddlp/schedule/b.py": text})
    assert sorted(said) == [
        "ddlp/a.py:2: self._rates.host.parallel", "ddlp/a.py:3: strategy.c[0].d", "ddlp/a.py:4: x.rates.device(n).f",
    ]  # fmt: skip


def test_a_whole_loader_is_found():
    text = "def f(loader: Any): return loader._life\ndef g(self, loader: DataLoader): return self._loader._iterator, loader.a"
    said = whole_loaders({"ddlp/epoch/a.py": text, "ddlp/observe/b.py": text})
    assert said == [
        "ddlp/epoch/a.py:1: loader: Any", "ddlp/epoch/a.py:1: loader._life", "ddlp/epoch/a.py:2: self._loader._iterator",
    ]  # fmt: skip


def test_a_long_circle_is_shown_whole():
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": {"d"}, "d": {"a"}, "e": {"a"}}) == ["a", "b", "d", "a"]
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
