"""House rules that neither the linter nor the type checker knows, as functions over one file.

A rule takes a `Source` and yields complaints; it opens no files. Which rule applies to which part
of the tree is said in tests/test_tidy.py, where every rule is also shown to catch an offender.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath

MAX_FUNCTION_LINES = 50

# What the core may import. Everything here is a pure function of its arguments; what is not listed
# is refused, so that a new import is a decision and not an accident.
CORE_IMPORTS = frozenset(
    {
        "__future__",
        "abc",
        "base64",
        "bisect",
        "collections",
        "cronsim",  # calculates with datetimes it is given
        "dataclasses",
        "datetime",  # as a notation; its clocks are refused below
        "difflib",  # pure: which name comes nearest to a wrong one
        "decimal",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "hmac",
        "itertools",
        "json",
        "math",
        "msgspec",
        "operator",
        "re",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
        "unicodedata",
        "uuid",  # as a notation; its generators are refused below
        "zoneinfo",  # a table of offsets
    }
)
CORE_OWN_MODULES = ("tenure.core", "tenure.errors")

SESSION_REFUSED_IMPORTS = frozenset(
    [
        "asyncio",
        "concurrent",
        "logging",
        "os",
        "queue",
        "random",
        "selectors",
        "signal",
        "socket",
        "subprocess",
        "threading",
        "time",
    ]
)

# Names that reach for a clock, for chance or for the world, wherever they come from. `hash` and
# `id` are among them because they differ from process to process.
CORE_REFUSED_CALLS = frozenset({"__import__", "breakpoint", "hash", "id", "input", "open", "print"})
CORE_REFUSED_NAMES = frozenset(
    {
        "getnode",
        "monotonic",
        "monotonic_ns",
        "now",
        "perf_counter",
        "sleep",
        "time_ns",
        "today",
        "urandom",
        "utcnow",
        "uuid1",
        "uuid4",
        "uuid6",
        "uuid7",
    }
)

UNSAFE_MODULES = frozenset({"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "yaml"})
UNSAFE_CALLS = frozenset({"eval", "exec"})

_OPENS_WITH_TEXT = re.compile(r'"""[^"\s]')
_UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
_NOQA = re.compile(r"#\s*(ruff:\s*)?noqa\b", re.IGNORECASE)
_NOQA_WITH_REASON = re.compile(r"#\s*noqa: [A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)* - \S+ \S+")
_IGNORE = re.compile(r"#\s*type:\s*ignore")
_IGNORE_WITH_REASON = re.compile(r"#\s*type: ignore\[[a-z0-9, -]+\]\s+# (noqa: .* - )?\S+ \S+")


class Source:
    """One Python file: where it is, what it says, and its syntax tree."""

    def __init__(self, path: PurePosixPath, text: str) -> None:
        self.path = path
        self.text = text

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def comments(self) -> list[tokenize.TokenInfo]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [token for token in tokens if token.type == tokenize.COMMENT]

    def imports(self) -> Iterator[tuple[int, str, str | None]]:
        """Every import as line, module and, for `from … import`, the imported name."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name, None
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield node.lineno, "." * node.level + (node.module or ""), alias.name

    def called_names(self) -> Iterator[tuple[int, str]]:
        """Calls of plain names, such as `open(…)`, but not of methods, such as `file.open(…)`."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node.lineno, node.func.id


# --- Shape -------------------------------------------------------------------------------------


def opens_with_a_docstring(source: Source) -> Iterator[str]:
    # Nearly all do, and to parse all tests takes a second.
    if not _OPENS_WITH_TEXT.match(source.text) and not ast.get_docstring(source.tree):
        yield "1: say in a docstring what this module is for and what it refuses to do"


def functions_fit_a_screen(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _length_without_docstring(node)
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"


def _length_without_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = _last_line(node) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        lines -= _last_line(node.body[0]) - node.body[0].lineno + 1
    return lines


def _last_line(node: ast.stmt) -> int:
    assert node.end_lineno is not None, "the parser always sets it"
    return node.end_lineno


# --- Comments ----------------------------------------------------------------------------------


def exceptions_to_tools_carry_code_and_reason(source: Source) -> Iterator[str]:
    # Most files have none, and to find the comments of all takes seconds.
    if not (_NOQA.search(source.text) or _IGNORE.search(source.text)):
        return
    for comment in source.comments:
        text = comment.string
        if _NOQA.search(text) and not _NOQA_WITH_REASON.search(text):
            yield f"{comment.start[0]}: write it as `# noqa: RULE - the reason`"
        if _IGNORE.search(text) and not _IGNORE_WITH_REASON.search(text):
            yield f"{comment.start[0]}: write it as `# type: ignore[code]  # the reason`"


def nothing_is_left_for_later(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        if found := _UNFINISHED.search(line):
            yield f"{number}: {found[0]}: do it, or write down why not in an ADR"


# --- Effects -----------------------------------------------------------------------------------


def nothing_is_printed(source: Source) -> Iterator[str]:
    for line, name in source.called_names():
        if name == "print":
            yield f"{line}: print() belongs to the command line"


def nothing_unsafe_is_loaded(source: Source) -> Iterator[str]:
    for line, module, _ in source.imports():
        if module.split(".")[0] in UNSAFE_MODULES:
            yield f"{line}: {module} can run what it reads; use msgspec or json"
    for line, name in source.called_names():
        if name in UNSAFE_CALLS:
            yield f"{line}: {name}() runs text as code"


def sql_is_not_built_from_strings(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"execute", "executemany", "executescript", "copy"}
            and node.args
            and _is_built(node.args[0])
        ):
            yield f"{node.lineno}: SQL lives in .sql files and takes parameters"


def _is_built(argument: ast.expr) -> bool:
    """An f-string, `"…" % x`, `"…" + x` or `"…".format(x)`; not psycopg's `SQL("…").format(x)`."""
    match argument:
        case ast.JoinedStr() | ast.BinOp(op=ast.Mod() | ast.Add()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="format")):
            return True
        case _:
            return False


_COUNTED_NOUN = re.compile(
    r"^ (?:[a-z-]+ )?(?:jobs|events|attempts|workers|queues|kinds|flows|schedules|letters|groups"
    r"|tokens|requests|files|bytes|acks|scenarios|obligations|renewals|failures)\b"
)


def counts_have_a_singular(source: Source) -> Iterator[str]:
    """`f"{count} jobs"` says "1 jobs". A limit in capitals is never one, and what comes after "no"
    is not a count."""
    for node in source.nodes:
        if not isinstance(node, ast.JoinedStr):
            continue
        before = ""
        for value, text in pairwise(node.values):
            if isinstance(value, ast.Constant):
                before = str(value.value)
            elif isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                is_count = not ast.unparse(value.value).isupper() and not before.endswith("no ")
                if is_count and _COUNTED_NOUN.match(str(text.value)):
                    yield f"{node.lineno}: `counted` of core.counting knows the singular"


# --- The core ----------------------------------------------------------------------------------


def core_imports_are_pure(source: Source) -> Iterator[str]:
    for line, module, name in source.imports():
        is_own = module.startswith(".") or any(
            module == own or module.startswith(f"{own}.") for own in CORE_OWN_MODULES
        )
        if not is_own and module.split(".")[0] not in CORE_IMPORTS:
            yield f"{line}: the core does not import {module}"
        if name in CORE_REFUSED_NAMES:
            yield f"{line}: the core has no clock and no chance of its own: {name}"


def session_does_no_io(source: Source) -> Iterator[str]:
    """A worker's session is driven by tests and simulators: events in, actions out."""
    for line, module, _ in source.imports():
        if module.split(".")[0] in SESSION_REFUSED_IMPORTS:
            yield f"{line}: a worker's session has no input and output: {module}"


def core_calls_are_pure(source: Source) -> Iterator[str]:
    for line, name in source.called_names():
        if name in CORE_REFUSED_CALLS:
            yield f"{line}: the core does not call {name}()"
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name in CORE_REFUSED_NAMES:
                yield f"{node.lineno}: the core has no clock and no chance of its own: .{name}()"
            case _:
                pass
