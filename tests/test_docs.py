"""The pages tell of the program as it is: drawings are current, functions that are named exist, links lead
somewhere, words that mean several things are told apart.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import defaultdict
from pathlib import Path

import pytest

from trees import tree_of

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "coterie"
NAMED = re.compile(r"`([a-z_/]+\.py):([A-Za-z_][\w.]*)`")
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
WALKS = ("life-of-a-joingroup.md", "life-of-a-record.md")
IN_ORDER = ("assign", "client", "cli", "spark", "storage")
RATE = re.compile(r"(?<![\w.-])\d[\d,.]*(?:/s| (?:µs|us|us/MB|MB/s|microseconds)| (?:\w+ )?a second)(?!\w)")
AMOUNT = re.compile(r"(?<![\w.-])\d[\d,.]* ?(?:ms|s|min|minutes|hours|KB|MB|GB|x|times|%)(?![\w.=/-])")
OF_A_MEASUREMENT = re.compile(
    r"[Mm]easured|[Mm]edian|\bload \d|\bcores\b|\bCPU\b|\bquiet\b|by turns|(?:busy|loaded) machine|\d pairs"
)
MADE_BY = re.compile(r"python -m \w|make (?:bench|run|interop)|interop/run|\btests/[\w/]+\.py|\bbench/\w")
MADE_ON = re.compile(r"20\d\d-\d\d-\d\d(?!T)")
RUN = re.compile(r"python -m ([a-z_][\w.]*)")
INSTALLED = {"asyncio", "coterie", "pip", "pytest", "venv"}
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def names_in(node: ast.AST, before: str = "") -> set[str]:
    """Return the qualified names of the functions, classes and methods of a module."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found |= {before + child.name} | names_in(child, f"{before}{child.name}.")
    return found


def test_the_drawing_of_who_imports_whom_is_current():
    """`python scripts/imports.py --write` draws it."""
    path = ROOT / "scripts" / "imports.py"
    spec = importlib.util.spec_from_file_location("imports", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")

    assert script.drawn(page) == page


def sections(text: str) -> list[str]:
    """Return what stands between the headings of a page, without programs and what they print."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.split(r"^#+ .*$", outside.replace("by\nhand", "by hand"), flags=re.MULTILINE)


def is_measured(paragraph: str) -> bool:
    """Return whether a paragraph, or a table, has a figure that somebody must have measured."""
    return bool(RATE.search(paragraph) or (OF_A_MEASUREMENT.search(paragraph) and AMOUNT.search(paragraph)))


@pytest.mark.parametrize("page", PAGES[:-1], ids=lambda path: path.name)
def test_what_was_measured_is_told_with_what_measured_it_and_the_date(page: Path):
    """In the same section. A decision tells of its day, and may have measured by hand."""
    untold = []
    for section in sections(page.read_text(encoding="utf-8")):
        by = MADE_BY.search(section) or ("by hand" in section and page.parent.name == "decisions")
        if not (by and MADE_ON.search(section)):
            untold += [one.strip() for one in section.split("\n\n") if is_measured(one)]

    assert untold == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_module_that_a_page_has_run_is_there(page: Path):
    named = {*RUN.findall(page.read_text(encoding="utf-8"))}
    places = [ROOT, ROOT / "tests", ROOT / "src"]

    assert {
        name
        for name in named - INSTALLED
        if not any((place / name.replace(".", "/")).with_suffix(".py").is_file() for place in places)
        and not any((place / name.replace(".", "/") / "__main__.py").is_file() for place in places)
    } == set()


@pytest.mark.parametrize("page", WALKS)
def test_every_function_that_a_walk_through_the_source_names_exists(page: str):
    named = NAMED.findall((DOCS / page).read_text(encoding="utf-8"))

    assert named
    assert [
        f"{path}:{name}"
        for path, name in named
        if not (SOURCE / path).is_file() or name not in names_in(tree_of(SOURCE / path))
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_to_one(page: Path):
    links = LINK.findall(page.read_text(encoding="utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_no_two_decisions_have_one_number_and_each_title_has_that_of_its_file():
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    titles = [page.read_text(encoding="utf-8").partition(".")[0] for page in pages]

    assert len({*numbers}) == len(numbers)
    assert titles == [f"# {number}" for number in numbers]


def test_every_class_name_of_several_modules_is_told_apart_in_the_glossary():
    """What it means in which package; a name that is new there has to be added, or another one found. Of the
    packages whose words are in order.
    """
    places: dict[str, set[Path]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(path.relative_to(SOURCE))
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8")
    told_apart = set(re.findall(r"^\| `(\w+)` \|", glossary, re.MULTILINE))
    several = {
        name
        for name, paths in places.items()
        if len(paths) > 1 and any(path.parts[0] in IN_ORDER for path in paths)
    }

    assert several
    assert several - told_apart == set()
