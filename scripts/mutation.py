"""Change the code in one place at a time, and see whether the tests of that code notice. `scripts/mutation.sh` runs it.

    ./scripts/mutation.sh                                             # all groups
    ./scripts/mutation.sh schedule protocol                           # some
    ./scripts/mutation.sh ddlp/schedule/ledger.py --sample 100        # one file, 100 of its mutants, drawn by --seed
    ./scripts/mutation.sh --coverage                                  # the branch coverage by the same tests

The changes are mutmut's, with two more: a statement is left out, a condition is negated. Properties and tables are changed
too, which `mutmut run` leaves alone; texts for people are not. One false value (None, False, 0, "") is not replaced by
another, since no code here distinguishes them, nor are hex digits by those of the other case. Nothing on the disk is changed:
each mutant has a process of its own, forked from one that has collected the tests, where the code of functions is exchanged.
If no test notices that, or the change is elsewhere (in a class, a default, a table), the module is imported anew, in a process
forked from one that has imported the tests' packages alone. Mutants that no test can notice are in
`scripts/equivalent_mutants.txt`, with the reason. Ends with status 1 if any other survives.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import importlib.machinery
import inspect
import itertools
import mmap
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import CodeRange, WhitespaceInclusivePositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
CPU_S = 20  # limit for a mutant's tests: beyond it, the mutant has an endless loop
MEMORY_BYTES = 4 << 30  # limit for a mutant's process, beyond the memory of the first process

SURVIVES, NO_PYTHON = 0, 99 << 8  # a process's status: all tests pass; the change makes no Python, so it does not count


@dataclass(frozen=True)
class Group:
    """Files, and the quick tests that concern them."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    packages: tuple[str, ...] = ()  # imported once, for all mutants; they import none of the files


GROUPS = {
    "schedule": Group(
        ("ddlp/schedule/*.py", "ddlp/schedule/strategies/*.py"),
        # The quickest first, and without the random schedules.
        tuple(f"tests/ddlp/schedule/test_{one}.py" for one in "ledger claim_chunks choices rates ranges slots".split()),
    ),
    "protocol": Group(
        ("csd_engine/protocol/*.py",),
        # The quickest first, and without those that start processes.
        (
            *(f"tests/csd_engine/protocol/test_{one}.py"
              for one in "fields printable protocol allow_list keys cards sealed aead".split()),
            "-k", "not command_line and not imports_no_engine",
        ),  # fmt: skip
        ("numpy", "zmq.auth", "PIL.Image"),
    ),
    "states": Group(
        ("ddlp/schema.py", "ddlp/sampling/state_schema.py"),
        ("tests/ddlp/test_schema.py", "tests/ddlp/sampling/test_state_schema.py"),
        ("numpy", "torch"),
    ),
    "usercode": Group(
        ("ddlp/sources/usercode/tree.py",), ("tests/ddlp/sources/usercode/test_tree.py",), ("numpy", "torch"),
    ),  # fmt: skip
}


class Mutations(MutationVisitor):
    """mutmut's mutations, also of decorated functions and outside of functions."""

    METADATA_DEPENDENCIES = (*MutationVisitor.METADATA_DEPENDENCIES, WhitespaceInclusivePositionProvider)

    def __init__(self) -> None:
        super().__init__((*mutation_operators, (cst.BaseSmallStatement, left_out)), IgnoredCode(set(), set(), set()))
        self.spans: list[CodeRange] = []

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef):
            return False
        if isinstance(node, (cst.Raise, cst.Assert)):
            return True  # a text for people; a hint for mypy
        if isinstance(node, cst.ClassDef) and {"Enum", "enum.Enum"} & {get_full_name_for_node(one.value) for one in node.bases}:
            return True  # members are compared by identity
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "zip":
            return True  # the lists have equal lengths, so strict= changes nothing
        if isinstance(node, (cst.Assign, cst.AnnAssign)):
            target = node.targets[0].target if isinstance(node, cst.Assign) else node.target
            if isinstance(target, cst.Name):
                return target.value in ("__all__", "__slots__", "line")  # `line` is a text for people
        return super()._skip_node_and_children(node)

    def _create_mutations(self, node: cst.CSTNode) -> None:
        before = len(self.mutations)
        super()._create_mutations(node)
        self.mutations[before:] = [one for one in self.mutations[before:] if not _same(one)]
        if isinstance(node, cst.If):
            condition = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            self.mutations.append(Mutation(node.test, cst.UnaryOperation(cst.Not(), condition), None))
        for one in self.mutations[len(self.spans) :]:
            self.spans.append(self.get_metadata(WhitespaceInclusivePositionProvider, one.original_node))


def _same(mutation: Mutation) -> bool:
    """Return True if the change puts one false value in the place of another, or hex digits in the place of the same."""
    before, after = mutation.original_node, mutation.mutated_node
    if isinstance(before, cst.SimpleString) and isinstance(after, cst.SimpleString):
        return after.value.lower() == before.value and re.fullmatch(r'"[0-9a-f]{24,}"', before.value) is not None
    values = [getattr(node, "value", None) for node in (before, after)]
    kinds = (cst.Name, cst.Integer, cst.Float, cst.SimpleString)
    return all(isinstance(value, kinds) and value.value in ("None", "False", "0", "0.0", '""') for value in values)


def left_out(node: cst.BaseSmallStatement) -> Iterator[cst.Pass]:
    """Leave out a call, a deletion or an assignment to an attribute or an item."""
    if isinstance(node, (cst.Del, cst.AugAssign)) or isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        yield cst.Pass()
    elif isinstance(node, cst.Assign) and isinstance(node.targets[0].target, (cst.Attribute, cst.Subscript)):
        yield cst.Pass()


def mutants_of(source: str) -> list[str]:
    """Return the file's text with each of the changes."""
    visitor = Mutations()
    module = cst.MetadataWrapper(cst.parse_module(source)).visit(visitor)
    begins = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    texts: dict[str, None] = {}
    for mutation, span in zip(visitor.mutations, visitor.spans, strict=True):
        start, stop = (begins[at.line - 1] + at.column for at in (span.start, span.end))
        texts[source[:start] + module.code_for_node(mutation.mutated_node) + source[stop:]] = None
    return list(texts)


def difference(source: str, mutant: str) -> tuple[int, str]:
    """Return the line of the change, and the lines before (-) and after (+) it."""
    before, after = source.splitlines(), mutant.splitlines()
    changes = [one for one in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes() if one[0] != "equal"]
    lines = [f"- {line.strip()}" for _, first, last, _, _ in changes for line in before[first:last]]
    lines += [f"+ {line.strip()}" for _, _, _, first, last in changes for line in after[first:last]]
    return changes[0][1] + 1, "\n".join(lines)


def equivalents() -> set[tuple[str, str]]:
    """Return the file and the difference of each mutant that no test can notice."""
    found, path = set(), ""
    for block in EQUIVALENT.read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if len(lines) == 1:
            path = lines[0]
        found.add((path, "\n".join(line for line in lines if line[:2] in ("- ", "+ "))))
    return found


def outcome(module: str, path: str, mutant: str, tests: tuple[str, ...]) -> int:
    """Run the tests in a process of its own, with this text as the module's source. Returns SURVIVES if all pass."""
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    status = 1
    try:
        silence()
        usual = importlib.machinery.SourceFileLoader.get_code
        try:
            code = code_of(path, mutant)
        except SyntaxError:
            os._exit(NO_PYTHON >> 8)

        def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
            return code if name == module else usual(loader, name)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]
        limit()
        status = run_pytest("-x", "-q", *tests)
    finally:
        os._exit(status)


def silence() -> None:
    """Let this process print nothing."""
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)


def limit() -> None:
    """Bound this process's time and memory from now on."""
    used_s = int(sum(os.times()[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (used_s + CPU_S, used_s + CPU_S))
    memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def noticed_at_once(path: str, source: str, mutants: list[str], tests: tuple[str, ...]) -> Iterator[bool]:
    """Yield for each mutant whether the tests notice the exchanged code of its functions. False: it is not known."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            silence()
            run_pytest("-q", "--capture=no", *tests, plugins=[Exchange(path, source, mutants, writer)])
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answers:
        yield from (answers.read(1) == b"1" for _ in mutants)
    os.waitpid(child, 0)


class Exchange:
    """A plugin of pytest. Once the tests are collected, it runs them for each mutant, in a fork with other functions' code.

    The test that has noticed a mutant comes first for the next one, which is often beside it.
    """

    def __init__(self, path: str, source: str, mutants: list[str], answers: int) -> None:
        self.path, self.before, self.mutants, self.answers = os.path.abspath(path), code_of(path, source), mutants, answers
        self.failed = mmap.mmap(-1, 4)  # the place of the test that failed, told by a fork

    def pytest_runtestloop(self, session: Any) -> bool:
        """Run the tests, and write b"1" for each mutant that they notice."""
        gc.unfreeze()  # what is frozen is not listed
        live: dict[CodeType, list[FunctionType]] = {}
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename == self.path:
                live.setdefault(one.__code__, []).append(one)
        gc.freeze()
        if self._fails(session, []):
            return True  # so nothing can be known here
        for mutant in self.mutants:
            exchange = self._exchange(mutant, live)
            os.write(self.answers, b"1" if exchange and self._fails(session, exchange) else b"0")
        return True

    def _exchange(self, mutant: str, live: dict[CodeType, list[FunctionType]]) -> list[tuple[FunctionType, CodeType]]:
        """Return the functions that are other ones in the mutant, and their code; none if it differs elsewhere too."""
        try:
            changed = changed_functions(self.before, code_of(self.path, mutant))
        except SyntaxError:
            return []
        if changed is None or any(before not in live for before in changed):
            return []
        return [(function, after) for before, after in changed.items() for function in live[before]]

    def _fails(self, session: Any, exchange: list[tuple[FunctionType, CodeType]]) -> bool:
        self.failed[:] = bytes(4)
        if child := os.fork():
            if os.waitpid(child, 0)[1] == 0:
                return False
            session.items.insert(0, session.items.pop(int.from_bytes(self.failed[:], "big")))
            return True
        status = 1
        try:
            limit()
            for function, code in exchange:
                function.__code__ = code
            for place, item in enumerate(session.items):
                following = session.items[place + 1] if place + 1 < len(session.items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    self.failed[:] = place.to_bytes(4, "big")
                    break
            status = int(session.testsfailed > 0)
        finally:
            os._exit(status)


def code_of(path: str, source: str) -> CodeType:
    """Compile a module."""
    return compile(source, os.path.abspath(path), "exec", dont_inherit=True)


def changed_functions(before: CodeType, after: CodeType) -> dict[CodeType, CodeType] | None:
    """Return the code of a module's functions, before and after a change of them alone; None if it changes more."""
    changed: dict[CodeType, CodeType] = {}
    own = [[one for one in code.co_consts if not isinstance(one, CodeType)] for code in (before, after)]
    inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (before, after)]
    if repr(own[0]) != repr(own[1]) or len(inner[0]) != len(inner[1]):
        return None
    if (before.co_code, before.co_names) != (after.co_code, after.co_names):
        return None
    for one, other in zip(*inner, strict=True):
        if one == other:
            continue
        if one.co_flags & inspect.CO_NEWLOCALS and one.co_freevars == other.co_freevars:
            changed[one] = other
        elif one.co_flags & inspect.CO_NEWLOCALS:
            return None  # a function keeps the number of variables that it has from outside
        elif (more := changed_functions(one, other)) is None:
            return None
        else:
            changed.update(more)
    return changed


def run_pytest(*arguments: str, plugins: Sequence[object] = ()) -> int:
    """Run pytest, with the same examples of each property each time."""
    import pytest
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutation", deadline=None, derandomize=True, database=None, phases=phases)
    settings.load_profile("mutation")
    # What a failing test's error says is not read: to prepare it takes longer than the tests. So do other packages' plugins and
    # what conftest.py imports; these tests need neither.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    quick = ("--noconftest", "--assert=plain", "--tb=no", "-p", "no:cacheprovider", "-p", "no:unraisableexception")
    return int(pytest.main([*quick, *arguments], plugins=plugins))


def prepare(group: Group, files: list[str]) -> None:
    """Import what the tests import, but not the files. Check that the tests pass without a change."""
    for package in ("pytest", "hypothesis", *group.packages):
        importlib.import_module(package)
    gc.freeze()
    module, source = module_of(files[0]), Path(files[0]).read_text()
    if module in sys.modules or outcome(module, files[0], source, group.tests) != SURVIVES:
        sys.exit(f"mutation: the tests fail without a change ({' '.join(group.tests)}), or {module} is imported too early")


def module_of(path: str) -> str:
    """Return a file's name as a module."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def run(group: Group, files: list[str], sample: int, seed: int) -> int:
    """Try the mutants of these files, and print those that survive. Returns how many survive without a reason."""
    prepare(group, files)
    known, unexplained = equivalents(), 0
    for path in files:
        source = Path(path).read_text()
        mutants = mutants_of(source)
        tried = mutants if not sample else random.Random(seed).sample(mutants, min(sample, len(mutants)))
        survivors = explained = killed = 0
        for mutant, noticed in zip(tried, noticed_at_once(path, source, tried, group.tests), strict=True):
            status = 1 if noticed else outcome(module_of(path), path, mutant, group.tests)
            killed += status not in (SURVIVES, NO_PYTHON)
            if status == SURVIVES:
                line, lines = difference(source, mutant)
                survivors += 1
                if (path, lines) in known:
                    explained += 1
                else:
                    print(f"{path}:{line}\n{lines}\n", flush=True)
        of = "" if len(tried) == len(mutants) else f" (a sample of {len(mutants)})"
        fate = f"{killed} killed, {explained} explained, {survivors - explained} not"
        print(f"{path}: {killed + survivors} mutants{of}, {fate}\n", flush=True)
        unexplained += survivors - explained
    return unexplained


def measure(group: Group, files: list[str]) -> int:
    """Print the branch coverage of these files by the group's tests."""
    data = Path(".coverage.mutation")
    coverage = [sys.executable, "-m", "coverage"]
    of = [f"--data-file={data}", f"--include={','.join(files)}"]
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *group.tests]
    status = subprocess.run([*coverage, "run", "--branch", *of, *tests]).returncode
    subprocess.run([*coverage, "report", "--show-missing", *of])
    data.unlink(missing_ok=True)
    return status


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    of_text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="mutation.sh", description=__doc__, formatter_class=of_text)
    parser.add_argument("what", nargs="*", help=f"groups ({', '.join(GROUPS)}) or files of them; default: all groups")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="try only N mutants of each file; default: all")
    parser.add_argument("--seed", type=int, default=0, help="draws the sample; default: 0")
    parser.add_argument("--coverage", action="store_true", help="print the branch coverage, and try no mutant")
    options: Any = parser.parse_args(arguments)
    status, what = 0, set(options.what)
    with tempfile.TemporaryDirectory(prefix="ddlp-mutation-") as own:
        tempfile.tempdir = own  # a mutant's process ends without removing what it has made
        for name, group in GROUPS.items():
            files = [str(path) for pattern in group.files for path in sorted(Path().glob(pattern))]
            chosen = files if not options.what or name in what else [path for path in files if path in what]
            what -= {name, *chosen}
            if not chosen:
                continue
            sys.stdout.flush()
            if child := os.fork():  # so that no group finds imported what another one's tests import
                status |= os.waitpid(child, 0)[1] != 0
                continue
            failed = measure(group, chosen) if options.coverage else run(group, chosen, options.sample, options.seed)
            sys.stdout.flush()
            os._exit(bool(failed))
    if what:
        parser.error(f"not known: {', '.join(sorted(what))}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
