"""How much code there is: tokens, without comments, docstrings, blank lines and line ends, folder by folder.

`python -m bench.tokens [ROOT]` prints them for the checkout at ROOT (this one unless told), largest folder
first; two checkouts compared say what a change saved. The swarm is no part of `src/` and not counted.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def tokens_of(path: Path) -> int:
    """Return the number of tokens of code in a module."""
    docstrings = set(_docstring_lines(ast.parse(path.read_text())))
    with path.open("rb") as source:
        return sum(
            token.type not in NO_CODE and token.start[0] not in docstrings
            for token in tokenize.tokenize(source.readline)
        )


def _docstring_lines(tree: ast.AST) -> set[int]:
    """Return the lines on which a docstring stands, an attribute's below it among them."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


def main() -> None:
    """Print the tokens of each folder, and of all."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1])
    source = root / "src" / "coterie"
    folders: Counter[str] = Counter()
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).parts
        folders[parts[0] if len(parts) > 1 else "."] += tokens_of(path)
    for folder, tokens in folders.most_common():
        print(f"{tokens:>9,} {folder}")
    print(f"{sum(folders.values()):>9,} all")


if __name__ == "__main__":
    main()
