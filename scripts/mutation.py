"""Change the code in one place at a time, and see whether the tests of that code notice. `scripts/mutation.sh` runs it.

    ./scripts/mutation.sh                                             # all groups
    ./scripts/mutation.sh schedule protocol                           # some
    ./scripts/mutation.sh ddlp/schedule/ledger.py --sample 100        # one file, 100 of its mutants, drawn by --seed
    ./scripts/mutation.sh --coverage                                  # the branch coverage by the same tests

The changes are mutmut's, with two more: a statement is left out, a condition is negated. Properties and tables are changed
too, which `mutmut run` leaves alone; texts for people are not. One false value (None, False, 0, "") is not replaced by
another, since no code here distinguishes them. Each mutant has a process of its own, forked from one that has
imported the tests' packages: that takes a second, and nothing on the disk is changed. Mutants that no test can notice are in
`scripts/equivalent_mutants.txt`, with the reason. Ends with status 1 if any other survives.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import importlib.machinery
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import CodeRange, WhitespaceInclusivePositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
CPU_S = 60  # limit for a mutant's tests: beyond it, the mutant has an endless loop
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
            *(f"tests/csd_engine/protocol/test_{one}.py" for one in "fields printable protocol allow_list keys".split()),
            "-k", "not command_line and not imports_no_engine",
        ),  # fmt: skip
        ("numpy", "zmq.auth", "PIL.Image"),
    ),
    "states": Group(
        ("ddlp/schema.py", "ddlp/sampling/state_schema.py"),
        ("tests/ddlp/test_schema.py", "tests/ddlp/sampling/test_state_schema.py"),
        ("numpy", "torch"),
    ),
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
        self.mutations[before:] = [one for one in self.mutations[before:] if not _still_false(one)]
        if isinstance(node, cst.If):
            condition = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            self.mutations.append(Mutation(node.test, cst.UnaryOperation(cst.Not(), condition), None))
        for one in self.mutations[len(self.spans) :]:
            self.spans.append(self.get_metadata(WhitespaceInclusivePositionProvider, one.original_node))


def _still_false(mutation: Mutation) -> bool:
    """Return True if the change puts None in the place of False or 0, or an empty text in the place of None."""
    nodes = [getattr(node, "value", None) for node in (mutation.original_node, mutation.mutated_node)]
    kinds = (cst.Name, cst.Integer, cst.Float, cst.SimpleString)
    return all(isinstance(node, kinds) and node.value in ("None", "False", "0", "0.0", '""') for node in nodes)


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
        silent = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silent, descriptor)
        usual = importlib.machinery.SourceFileLoader.get_code
        try:
            code = compile(mutant, os.path.abspath(path), "exec", dont_inherit=True)
        except SyntaxError:
            os._exit(NO_PYTHON >> 8)

        def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
            return code if name == module else usual(loader, name)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]
        used_s = int(sum(os.times()[:2]))
        resource.setrlimit(resource.RLIMIT_CPU, (used_s + CPU_S, used_s + CPU_S))
        memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        status = run_pytest("-x", "-q", *tests)
    finally:
        os._exit(status)


def run_pytest(*arguments: str) -> int:
    """Run pytest, with the same examples of each property each time."""
    import pytest
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutation", deadline=None, derandomize=True, database=None, phases=phases)
    settings.load_profile("mutation")
    # What a failing test's error says is not read: to prepare it takes longer than the tests.
    quick = ("--assert=plain", "--tb=no", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "no:anyio")
    return int(pytest.main([*quick, *arguments]))


def prepare(group: Group, files: list[str]) -> None:
    """Import what the tests import, but not the files. Check that the tests pass without a change."""
    for package in ("pytest", "hypothesis", "_hypothesis_pytestplugin", "pytest_rerunfailures", *group.packages):
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
        for mutant in tried:
            status = outcome(module_of(path), path, mutant, group.tests)
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
