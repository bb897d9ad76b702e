"""Mutation testing of the metric: the fraction of small code changes that no test detects.

    python perf/mutations.py trace -o traced            # once: which lines each test runs (fast tests)
    python perf/mutations.py run traced --count 200     # mutate random lines, run the tests that cover each

A mutant survives if every test that runs its line still passes, or if no test runs its file. Some survivors are
equivalent to the original, so the fraction is an upper bound.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "msdscore"
# `__main__` and data files contain no logic.
LEFT_OUT = ("__main__.py", "version.py")
TESTS_PER_MUTANT = 100
SECONDS_PER_MUTANT = 150

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin", "zeros": "ones"}


# -- trace ----------------------------------------------------------------------------------------------------------


class Tracer:
    """Pytest plugin that stores the executed lines of the package and the duration of every passing test."""

    def __init__(self, folder: Path) -> None:
        """Write into `folder`, one file per process."""
        self.lines: set[tuple[str, int]] = set()
        self.file = (folder / f"{os.getpid()}.jsonl").open("a")
        self.prefix = str(PACKAGE)

    def _call(self, frame, event, argument):
        return self._line if frame.f_code.co_filename.startswith(self.prefix) else None

    def _line(self, frame, event, argument):
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def pytest_runtest_setup(self, item) -> None:
        self.lines = set()
        sys.settrace(self._call)
        threading.settrace(self._call)

    def pytest_runtest_makereport(self, item, call) -> None:
        if call.when == "call" and call.excinfo is None:
            by_file: dict[str, list[int]] = defaultdict(list)
            for name, number in tuple(self.lines):  # other threads may still add lines
                by_file[str(Path(name).relative_to(SOURCE))].append(number)
            row = {"test": item.nodeid, "seconds": call.duration, "lines": by_file}
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()


def pytest_configure(config) -> None:
    """Register the tracer when this file is loaded with `-p mutations`."""
    if folder := os.environ.get("MUTATIONS_TRACE"):
        config.pluginmanager.register(Tracer(Path(folder)))


def trace(folder: Path, processes: int) -> None:
    """Run the fast tests once with the tracer."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = _environment(ROOT, MUTATIONS_TRACE=str(folder.resolve()))
    command = [sys.executable, "-m", "pytest", "-p", "mutations", "-n", str(processes), "-m", "not slow"]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)


def _environment(root: Path, **more: str) -> dict[str, str]:
    paths = [str(root / "src"), str(root / "tools"), str(root / "perf"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", **more}


def read_trace(folder: Path) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Return tests by (file, line), each with its number of lines; tests with fewer lines are more specific."""
    covering: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
    for file in sorted(folder.glob("*.jsonl")):
        for text in file.read_text().splitlines():
            row = json.loads(text)
            lines = [(name, number) for name, numbers in row["lines"].items() for number in numbers]
            for line in lines:
                covering[line].append((len(lines), row["test"]))
    return covering


# -- mutants --------------------------------------------------------------------------------------------------------


def sites(tree: ast.Module) -> list[tuple[ast.AST, int, str, object]]:
    """Return all mutation sites of a module: node, line, description and replacement."""
    results: list[tuple[ast.AST, int, str, object]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        # Annotations, error messages and decorators are not logic; module constants only run at import.
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
            return
        if inside:
            results.extend(_changes(node))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
                continue
            if name == "keywords" and getattr(getattr(node, "func", None), "id", "") == "zip":
                continue  # strict= is an assertion
            within = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, within)

    visit(tree, False)
    return results


def _changes(node: ast.AST) -> list[tuple[ast.AST, int, str, object]]:
    line = getattr(node, "lineno", 0)
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in COMPARED:
            return [(node, line, "comparison", COMPARED[type(op)])]
        case ast.BinOp(op=op, left=left) if type(op) in COMPUTED and not isinstance(left, ast.Constant | ast.JoinedStr):
            return [(node, line, "operator", COMPUTED[type(op)])]
        case ast.BoolOp(op=op):
            return [(node, line, "and/or", ast.Or if isinstance(op, ast.And) else ast.And)]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return [(node, line, "sign", None)]
        case ast.Constant(value=bool() as value):
            return [(node, line, "constant", not value)]
        case ast.Constant(value=int() | float() as value):
            return [(node, line, "constant", value + 1 if value in (0, 1, -1) else value * 2)]
        case ast.If() | ast.IfExp():
            return [(node, line, "condition", True), (node, line, "condition", False)]
        case ast.Call(func=ast.Name(id=name)) if name in CALLED:
            return [(node, line, "call", CALLED[name])]
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return [(node, line, "deleted", None)]
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return [(node, line, "return None", None)]
        case ast.Subscript(slice=ast.Slice(lower=ast.expr())):
            return [(node, line, "slice", None)]
    return []


def mutated(text: str, index: int) -> tuple[str, int, str]:
    """Return the module with its `index`-th site changed, the line and a description."""
    tree = copy.deepcopy(ast.parse(text))
    node, line, kind, change = sites(tree)[index]
    before = ast.unparse(node)
    match kind:
        case "comparison":
            node.ops[0] = change()
        case "operator" | "and/or":
            node.op = change()
        case "constant":
            node.value = change
        case "condition":
            node.test = ast.Constant(value=change)
        case "call":
            node.func.id = change
        case "return None":
            node.value = ast.Constant(value=None)
        case "slice":
            node.slice.lower = None
    if kind in ("deleted", "sign"):
        replacement = ast.Pass() if kind == "deleted" else node.operand
        tree = _Replace(node, replacement).visit(tree)
        after = ast.unparse(replacement)
    else:
        after = ast.unparse(node)
    return ast.unparse(ast.fix_missing_locations(tree)), line, f"{kind}: {_short(before)}  ->  {_short(after)}"


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, ast.copy_location(new, old)

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _short(code: str) -> str:
    return " ".join(code.split())[:90]


def drawn(count: int, seed: int, only: str) -> list[tuple[str, int]]:
    """Return random pairs (file, index of the site), uniformly over all sites."""
    names = [str(file.relative_to(SOURCE)) for file in sorted(PACKAGE.rglob("*.py"))]
    names = [name for name in names if only in name and not any(part in name for part in LEFT_OUT)]
    every = [(name, index) for name in names for index in range(len(sites(ast.parse((SOURCE / name).read_text()))))]
    return random.Random(seed).sample(every, min(count, len(every)))


def tests_for(covering: dict, name: str, line: int) -> list[str]:
    """Return the tests that run a line: the most specific ones, and the most specific of each test file."""
    rows = covering.get((name, line))
    if not rows:  # no test runs it in-process; tests of modules that start it as a subprocess may
        module = name.removesuffix(".py").replace("/", ".")
        near = {name, *(file for file in {file for file, _ in covering} if module in (SOURCE / file).read_text())}
        rows = [row for (file, _), tests in covering.items() if file in near for row in tests]
    rows = sorted(set(rows))
    first_of_file = {test.split("::")[0]: test for _, test in reversed(rows)}
    ordered = dict.fromkeys([test for _, test in rows[: TESTS_PER_MUTANT // 2]] + list(first_of_file.values()))
    ordered |= dict.fromkeys(test for _, test in rows)
    return list(ordered)[:TESTS_PER_MUTANT]


def judge(name: str, index: int, covering: dict) -> dict[str, object]:
    """Run the covering tests of one mutant in a copy of the package."""
    text, line, change = mutated((SOURCE / name).read_text(), index)
    tests = tests_for(covering, name, line)
    row: dict[str, object] = {"file": name, "line": line, "index": index, "what": change, "tests": len(tests)}
    if not tests:
        return {**row, "outcome": "not covered"}
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        copied = Path(folder) / "copy"
        # Everything except the mutated file is linked, because weights are large.
        left_out = shutil.ignore_patterns("__pycache__", "build", ".*")
        shutil.copytree(ROOT, copied, copy_function=os.link, ignore=left_out)
        target = copied / "src" / name
        target.unlink()
        target.write_text(text)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        environment = _environment(copied, PYTHONDONTWRITEBYTECODE="1")
        try:
            done = subprocess.run(
                command, cwd=copied, env=environment, capture_output=True, text=True, timeout=SECONDS_PER_MUTANT
            )
        except subprocess.TimeoutExpired:
            return {**row, "outcome": "killed", "by": "time"}
    if done.returncode == 0:
        return {**row, "outcome": "survived"}
    if done.returncode in (4, 5):  # nothing was run
        return {**row, "outcome": "not run", "by": done.stdout[-300:]}
    failed = [words for words in done.stdout.splitlines() if words.startswith(("FAILED", "ERROR"))]
    return {**row, "outcome": "killed", "by": failed[0][:160] if failed else done.stdout[-200:]}


def run(folder: Path, count: int, seed: int, processes: int, only: str) -> None:
    """Test `count` mutants and print the fraction that survives."""
    (ROOT / "build").mkdir(exist_ok=True)
    covering = read_trace(folder)
    mutants = drawn(count, seed, only)
    rows = []
    with ThreadPoolExecutor(processes) as pool, (folder / f"mutants-{seed}.json").open("w") as out:
        for row in pool.map(lambda mutant: judge(mutant[0], mutant[1], covering), mutants):
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            if row["outcome"] != "killed":
                print(f"{row['outcome']}: {row['file']}:{row['line']} ({row['tests']} tests) {row['what']}", flush=True)
    lived = [row for row in rows if row["outcome"] != "killed"]
    print(f"{len(lived)} of {len(rows)} mutants survive ({100 * len(lived) / max(1, len(rows)):.1f} %)")


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    first = parts.add_parser("trace")
    first.add_argument("-o", "--output", type=Path, default=Path("build/traced"))
    second = parts.add_parser("run")
    second.add_argument("traced", type=Path)
    second.add_argument("--count", type=int, default=200)
    second.add_argument("--seed", type=int, default=0)
    second.add_argument("--only", default="", help="Part of the path of the files to mutate.")
    for part in (first, second):
        part.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if args.part == "trace":
        trace(args.output, args.processes)
    else:
        run(args.traced, args.count, args.seed, args.processes, args.only)


if __name__ == "__main__":
    main()
