"""The documents say what the code does: every Python block in them runs, and gives what is written there.

The blocks of a document run in order, in one namespace. In a block

    expression  # -> value         the expression has this value (numbers up to rounding), or this text
    statement  # raises SomeError  the statement raises this error

and what a block prints, or the message of the error that it raises, is the ``text`` block that follows it.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tempo as tp
import tempo.program

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARKED = re.compile(r"# (->|raises) (.*)$")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int  # of the document, where the text starts


def blocks_of(document: str) -> list[Block]:
    return [
        Block(match[1], match[2], document.count("\n", 0, match.start(2)) + 1) for match in FENCED.finditer(document)
    ]


def run_block(block: Block, file: str, names: dict[str, Any]) -> str:
    """Run a block and check its marked lines; what it printed, or the message of the error it raised."""
    # With the document's own line numbers, errors show the line of the document.
    tree = ast.parse("\n" * (block.line - 1) + block.text, file)
    lines = ("\n" * (block.line - 1) + block.text).splitlines()
    marks = {n for n, line in enumerate(lines, 1) if MARKED.search(line)}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for statement in tree.body:
            assert statement.end_lineno is not None
            mark = MARKED.search(lines[statement.end_lineno - 1])
            marks.discard(statement.end_lineno)
            if mark is None:
                exec(compile(ast.Module([statement], []), file, "exec"), names)
            elif mark[1] == "raises":
                with pytest.raises(getattr(tp.errors, mark[2])) as raised:
                    exec(compile(ast.Module([statement], []), file, "exec"), names)
                print(f"{type(raised.value).__name__}: {raised.value}")
            else:
                assert isinstance(statement, ast.Expr), f"{file}:{statement.lineno}: only expressions have values"
                value = eval(compile(ast.Expression(statement.value), file, "eval"), names)
                check_value(value, mark[2], f"{file}:{statement.lineno}")
    assert not marks, f"{file}: marks inside of statements, in lines {sorted(marks)}"
    return printed.getvalue()


def check_value(value: Any, written: str, where: str) -> None:
    try:
        expected = ast.literal_eval(written)
        numbers = np.asarray(expected).dtype.kind in "biuf"
    except (SyntaxError, ValueError):
        expected, numbers = written, False
    if numbers:
        assert np.shape(value) == np.shape(expected), where
        np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-3, atol=1e-6, err_msg=where)
    else:
        assert normal(str(value)) == normal(str(expected)), where


def normal(text: str) -> str:
    """Text without what differs from run to run: the numbers in made-up names, and where a line stands."""
    seen: dict[str, int] = {}
    text = re.sub(r"(?<=[a-z][_'])\d+\b", lambda m: str(seen.setdefault(m[0], len(seen))), text)
    return re.sub(r"[\w./-]+\.(py|md):\d+: ", "FILE: ", text).strip()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_do_what_they_say(path: Path) -> None:
    blocks = blocks_of(path.read_text())
    names: dict[str, Any] = {"__name__": path.stem}
    for block, following in itertools.zip_longest(blocks, blocks[1:]):
        if block.language == "python":
            printed = run_block(block, str(path), names)
            if printed:
                assert following is not None and following.language == "text", f"line {block.line} prints:\n{printed}"
                assert normal(printed) == normal(following.text)


def test_marks_are_checked() -> None:
    with pytest.raises(AssertionError):
        run_block(Block("python", "1 + 1  # -> 3\n", 1), "example", {})
    with pytest.raises(AssertionError):
        run_block(Block("python", "if True:\n    1 + 1  # -> 3\n    pass\n", 1), "example", {})
    with pytest.raises(pytest.fail.Exception):
        run_block(Block("python", "1 + 1  # raises ShapeError\n", 1), "example", {})


def test_every_function_is_listed() -> None:
    listed = set(re.findall(r"`(\w+)", (ROOT / "docs" / "language.md").read_text()))
    assert set(tp.__all__) - listed == set(), "these are missing in docs/language.md"


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text()):
            document = path.parent / target if target else path
            assert document.exists(), f"{path.name} links to {target}"
            assert not anchor or anchor in anchors(document), f"{path.name} links to {target}#{anchor}"


def anchors(document: Path) -> set[str]:
    """What the headings of a document are called in links, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_all_that_is_public_has_a_docstring() -> None:
    public = [getattr(owner, name) for owner in (tp, tp.nn, tp.optim) for name in owner.__all__]
    made = [thing for thing in public if inspect.isclass(thing) or inspect.isfunction(thing)]
    methods = [thing for owner in (tp.Program, tp.RecurrentTensor) for n, thing in vars(owner).items() if n[0] != "_"]
    described = [thing for thing in methods if inspect.isfunction(thing) or isinstance(thing, property)]
    assert [thing for thing in (*made, *described) if not thing.__doc__] == []


def test_docstrings() -> None:
    result = doctest.testmod(tempo.program)
    assert result.attempted > 0
    assert result.failed == 0
