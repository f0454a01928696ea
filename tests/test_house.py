"""The rules of the house, read from the source: who may import whom, what is pure, how long a function may
be.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from trees import tree_of

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

# docs/architecture.md draws this; a package that is not listed here may not be imported by any other. A name
# with a dot is one module of a package.
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "wire": {"base"},
    "security": {"base"},
    "assign": {"base", "wire"},
    "arrow": {"base", "wire"},
    "storage": {"base", "wire"},
    "coordinator": {"base", "wire", "assign"},
    "client": {"base", "wire", "assign", "security"},
    "story": {"base", "wire", "coordinator", "storage", "client"},
    "broker": {
        "base",
        "wire",
        "assign",
        "coordinator",
        "storage",
        "security",
        "story.model",
        "story.recorder",
        "story.topic",
    },
    "history": {
        "base",
        "wire",
        "story.clock",
        "story.cost",
        "story.drawing",
        "story.model",
        "story.order",
    },
    "simulate": {
        "base",
        "wire",
        "assign",
        "coordinator",
        "storage",
        "story.drawing",
        "story.model",
        "story.topic",
        "broker",
        "client",
        "history",
    },
    "spark": {"base", "wire", "history", "arrow", "assign", "storage", "security", "client", "simulate"},
    "testing": {"base"},
    "cli": {"base"},
    "cli.assign.trial": {"base", "wire", "assign"},  # which the command imports when it runs
}
MAY_IMPORT_LAZILY: dict[str, set[str]] = {
    "client": {"arrow"},
    "broker": {"arrow"},
    "cli": set(MAY_IMPORT),  # inside the commands: `coterie serve` must not pay for the others
}
MAY_IMPORT["swarm"] = set(MAY_IMPORT) - {"spark", "cli", "testing", "arrow"}
PURE = (
    "base",
    "wire",
    "assign",
    "coordinator",
    "simulate",
    "swarm",
    "broker/api",
    "broker/cluster",
    "broker/clustered.py",
    "broker/config",
    "broker/fastpath",
    "broker/hosting.py",
    "broker/interbroker/__init__.py",
    "broker/interbroker/connection.py",
    "broker/interbroker/lives.py",
    "broker/interbroker/markers.py",
    "broker/interbroker/partitions.py",
    "broker/interbroker/sender.py",
    "broker/net/connection.py",
    "broker/net/context.py",
    "broker/net/gated.py",
    "broker/net/large.py",
    "broker/net/peers.py",
    "broker/net/transport.py",
    "broker/node.py",
    "broker/processes/changes.py",
    "broker/processes/moving.py",
    "broker/processes/settings.py",
    "broker/processes/supervision.py",
    "broker/refusal.py",
    "broker/repeats.py",
    "broker/runtime/cleaner.py",
    "broker/runtime/clock.py",
    "broker/runtime/groups.py",
    "broker/runtime/leadership.py",
    "broker/runtime/markers.py",
    "broker/runtime/pieces.py",
    "broker/runtime/purgatory.py",
    "broker/runtime/replica_manager.py",
    "broker/runtime/transactions.py",
    "broker/topics/agreement.py",
    "broker/topics/catalog.py",
    "broker/topics/kafka_metadata.py",
    "broker/topics/cluster_topics.py",
    "broker/topics/former_kafka.py",
    "broker/topics/manager.py",
    "broker/topics/producer_ids.py",
    "broker/topics/proposals.py",
    "broker/topics/registry.py",
    "broker/topics/topic.py",
    "history",
    "security",
    "storage/remote",
    "story/clock.py",
    "story/cost.py",
    "story/drawing.py",
    "story/model.py",
    "story/order.py",
    "story/recorder.py",
    "story/topic.py",
    "client/admin/messages.py",
    "client/admin/resets.py",
    "client/consumer/columnar.py",
    "client/consumer/fetch_session.py",
    "client/consumer/fetch_state.py",
    "client/consumer/listener.py",
    "client/consumer/records.py",
    "client/errors.py",
    "client/member/__init__.py",
    "client/member/backoff.py",
    "client/member/callbacks.py",
    "client/member/exchanges.py",
    "client/member/leader.py",
    "client/member/machine.py",
    "client/member/reactions.py",
    "client/member/requests.py",
    "client/member/settings.py",
    "client/member/state.py",
    "client/net/messages.py",
    "client/producer/accumulator.py",
    "client/producer/batcher.py",
    "client/producer/errors.py",
    "client/producer/messages.py",
    "client/producer/partition_queue.py",
    "client/producer/partitioner.py",
    "client/producer/settings.py",
    "client/producer/transaction_state.py",
    "client/settings.py",
    "spark/source/offsets.py",
    "spark/source/options.py",
    "spark/source/group/protocol.py",
)
IMPURE_MODULES = {
    "asyncio",
    "socket",
    "time",
    "random",
    "os",
    "threading",
    "subprocess",
    "selectors",
    "uvloop",
}
THIRD_PARTY: dict[str, set[str]] = {
    "asyncpg": {"storage"},
    "kio": {"wire"},
    "cramjam": {"wire"},
    "crc32c": {"wire", "storage"},
    "numpy": {"arrow", "spark"},
    "pyarrow": {"arrow", "spark"},
    "numba": {"arrow"},
    "deltalake": {"spark"},
    "llvmlite": {"arrow"},
    "prometheus_client": {"spark"},
    "fastavro": {"spark"},
    "pyruhvro": {"spark"},
    "google": {"spark"},
    "grpc_tools": {"spark"},
    "ptars": {"spark"},
    "jsonschema_rs": {"spark"},
    "pyspark": {"spark", "pyspark_coterie"},
    "uvloop": {"broker", "client"},
    "click": {"cli"},
    "rich": {"cli"},
    "re2": {"base"},
    "cryptography": {"security"},
    "pytest": {"testing"},
    "typing_extensions": set(),
}
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600
FOLDER_MODULES_MAX = 15
# Folders of one kind of thing: tests are found by what they try, benches by what they measure.
FOLDERS_OF_ONE_KIND = {"bench", "bench/claims", "tests/clients", "tests/property", "tests/spark"}
FOLDERS_OF_ONE_KIND |= {"tests/unit/broker", "tests/unit/client", "tests/unit/storage"}
# Words that a reader of Kafka's own code does not look for, or that meant several things: in no name that
# these packages give. docs/glossary.md has what is said instead.
WORDS_REFUSED = {"alike", "bell", "complaint", "doubts", "flying", "intake", "intakes"}
WORDS_REFUSED |= {"lived", "nobody", "nowhere", "nudge", "owed", "paid", "quick", "seats", "stir", "stumble"}
WORDS_REFUSED |= {"tedious", "told", "understood"}
# The packages whose names, and whose docstrings, are in order. One a line: each is added by itself.
WORDS_IN_ORDER = (
    "arrow",
    "assign",
    "base",
    "broker",
    "cli",
    "client",
    "coordinator",
    "history",
    "security",
    "simulate",
    "spark",
    "storage",
    "story",
    "wire",
)
DOCSTRINGS_IN_ORDER = (
    "arrow",
    "assign",
    "base",
    "broker",
    "cli",
    "client",
    "coordinator",
    "history",
    "security",
    "simulate",
    "spark",
    "storage",
    "story",
    "swarm",
    "testing",
    "wire",
)
# "Return what a value says" says that something comes back, and not what.
NO_NOUN = re.compile(r"(Return|Yield) (what|how|where|who|whom|whose|when|that|those|which|it)\b")
# What an assert may call.
STATES_ONLY = {"all", "any", "isinstance", "len", "map", "set", "sum", "type", "keys", "values", "items"}
STATES_ONLY |= {"fields", "is_dataclass"}
STATES_ONLY |= {"_current", "_is_known_elsewhere", "is_packed", "mark", "problem_of"}  # ours; each only looks


@cache
def modules() -> list[Path]:
    return sorted([*SOURCE.rglob("*.py"), *(ROOT / "swarm").rglob("*.py")])


def modules_of(package: str) -> list[Path]:
    """Return the modules of a package of ours, or of a folder beside `src/`."""
    inside = SOURCE / "coterie" / package
    return sorted((inside if inside.is_dir() else ROOT / package).rglob("*.py"))


def place_of(path: Path) -> str:
    """Return where a module stands, as the lists above name it."""
    return str(path.relative_to(SOURCE if path.is_relative_to(SOURCE) else ROOT))


def package_of(path: Path) -> str:
    parts = Path(place_of(path)).parts
    return parts[0] if parts[0] != "coterie" else (parts[1] if len(parts) > 2 else "coterie")


@cache
def imports_of(path: Path) -> tuple[tuple[str, bool], ...]:
    """Return each module that `path` imports at run time, and whether only inside a function."""
    return tuple(_walk(tree_of(path), lazily=False))


def _walk(node: ast.AST, *, lazily: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import(names=names):
                yield from ((name.name, lazily) for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module, lazily
            case ast.ImportFrom(level=level):
                assert level == 0, "imports are absolute here"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _walk(child, lazily=True)
            case _:
                yield from _walk(child, lazily=lazily)


# One test for a rule, which names every place that breaks it: a test for each rule and module would be 3,000,
# and pytest takes longer over a test than a rule over a module.
def test_a_module_imports_only_what_its_package_may():
    assert [f"{place_of(path)} imports {module}" for path in modules() for module in not_allowed(path)] == []


def not_allowed(path: Path) -> Iterator[str]:
    """Yield each of our modules that one imports and may not."""
    package = package_of(path)
    for module, lazily in imports_of(path):
        if not module.startswith("coterie.") or package in ("coterie", "pyspark_coterie"):
            continue
        _, other, *rest = module.split(".")
        names = {other, ".".join([other, *rest[:1]])}
        here = place_of(path).removeprefix("coterie/").removesuffix(".py").replace("/", ".")
        allowed = MAY_IMPORT.get(here, MAY_IMPORT[package]) | (
            MAY_IMPORT_LAZILY.get(package, set()) if lazily else set()
        )
        if other != package and not names & allowed:
            yield module


# Whoever stands on the left knows none of those on the right, not even as a type: a part gets what it uses.
UNKNOWN_TO: dict[str, set[str]] = {
    part: {"coterie.broker.node"}
    for part in (
        "broker/api",
        "broker/cluster",
        "broker/config",
        "broker/fastpath",
        "broker/interbroker",
        "broker/runtime",
        "broker/topics",
    )
} | {"coordinator": {"coterie.broker"}, "story": {"coterie.broker.node"}, "storage": {"coterie.broker"}}


@pytest.mark.parametrize("part", UNKNOWN_TO)
def test_a_part_of_the_broker_does_not_know_the_whole(part: str):
    paths = modules_of(part)
    knowing = {
        f"{place_of(path)} imports {named}"
        for path in paths
        for named in names_imported(tree_of(path))
        for unknown in UNKNOWN_TO[part]
        if f"{named}.".startswith(f"{unknown}.")
    }

    assert paths
    assert knowing == set()


def names_imported(tree: ast.AST) -> Iterator[str]:
    """Yield each module and each name of a module that is imported anywhere, also for types alone."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{one.name}" for one in names)


def test_a_third_party_package_is_imported_only_where_it_belongs():
    ours = {*sys.stdlib_module_names, "coterie", "pyspark_coterie", "swarm"}

    assert not [
        f"{place_of(path)} imports {module}"
        for path in modules()
        for module, _ in imports_of(path)
        if (top := module.split(".")[0]) not in ours and package_of(path) not in THIRD_PARTY.get(top, set())
    ]


def test_the_driver_of_a_database_is_known_where_its_sessions_are_alone():
    knowing = {
        str(path.parent.relative_to(SOURCE))
        for path in modules()
        if any(named.split(".")[0] == "asyncpg" for named in names_imported(tree_of(path)))
    }

    assert knowing == {"coterie/storage/postgres"}


@pytest.mark.parametrize("place", PURE)
def test_what_is_pure_knows_no_clock_socket_thread_or_chance(place: str):
    root = ROOT / place if place == "swarm" else SOURCE / "coterie" / place
    paths = [root] if root.suffix else sorted(root.rglob("*.py"))
    assert all(path.is_file() for path in paths)
    assert paths

    for path in paths:
        seeded = {"random"} if package_of(path) in ("simulate", "swarm") else set()
        impure = {module.split(".")[0] for module, _ in imports_of(path)} & (IMPURE_MODULES - seeded)
        assert not impure, f"{path} imports {impure}"


def test_the_simulators_import_only_what_is_pure_of_broker_and_client():
    pure = {place.removesuffix(".py") for place in PURE}
    for path in modules():
        if package_of(path) not in ("simulate", "swarm"):
            continue
        for module, _ in imports_of(path):
            place = module.removeprefix("coterie.").replace(".", "/")
            is_package = (SOURCE / "coterie" / place).is_dir()
            if place.startswith(("broker/", "client/")) and not (is_package and "/member" not in place):
                known = {place, place.rpartition("/")[0], f"{place}/__init__"}
                assert known & pure, f"{path.name} imports {module}"


def test_chance_is_only_where_it_can_be_seeded():
    for path in modules():
        if any(module.split(".")[0] == "random" for module, _ in imports_of(path)):
            assert package_of(path) in ("simulate", "swarm", "storage", "client", "cli"), path


def test_no_function_is_longer_than_the_wall():
    assert not [
        f"{place_of(path)}:{node.lineno} {node.name} has {lines} lines"
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def test_no_file_is_longer_than_ten_of_the_longest_functions():
    assert not [
        f"{place_of(path)} has {lines} lines"
        for path in modules()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    ]


def test_no_folder_has_more_modules_than_are_seen_at_a_glance():
    modules_in: dict[str, int] = {}
    for root in (SOURCE, *(ROOT / name for name in ("swarm", "pipeline", "bench", "interop", "tests"))):
        for path in root.rglob("*.py"):
            place = str(path.parent.relative_to(ROOT))
            modules_in[place] = modules_in.get(place, 0) + (path.name != "__init__.py")

    crowded = {place for place, count in modules_in.items() if count > FOLDER_MODULES_MAX}

    assert crowded == FOLDERS_OF_ONE_KIND


def names_given(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of what a module defines, assigns to, or takes as an argument."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


@pytest.mark.parametrize("package", [*WORDS_IN_ORDER, "pipeline"])
def test_names_are_words_that_a_reader_would_look_for(package: str):
    refused = [
        f"{place_of(path)}:{line} {name}"
        for path in modules_of(package)
        for line, name in names_given(tree_of(path))
        if words_of(name) & WORDS_REFUSED
    ]

    assert refused == []


@pytest.mark.parametrize("package", [*DOCSTRINGS_IN_ORDER, "pipeline"])
def test_a_docstring_begins_with_the_noun_that_comes_back(package: str):
    riddles = [
        f"{place_of(path)}:{node.lineno} {text.splitlines()[0]}"
        for path in modules_of(package)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (text := ast.get_docstring(node)) and NO_NOUN.match(text)
    ]

    assert riddles == []


def test_the_words_of_a_name_are_found_however_it_is_written():
    assert words_of("_told_NOBODYSeats2") == {"told", "nobody", "seats"}
    assert words_of("HTTPLane") == {"http", "lane"}


def test_an_assert_states_and_does_nothing():
    """Under `python -O` it is not there: so it may call only what is known to change nothing, and look at no
    property of its own object that does more than return something.
    """
    assert [f"{place_of(path)}:{deed}" for path in modules() for deed in deeds_in_asserts(path)] == []


def deeds_in_asserts(path: Path) -> Iterator[str]:
    """Yield the line and the deed of each assert of a module that may do something."""
    for owner, node in _asserts(tree_of(path), None):
        acting = set() if owner is None else set(_acting_properties(owner))
        for part in ast.walk(node.test):
            match part:
                case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                    if called not in STATES_ONLY:
                        yield f"{node.lineno} {ast.unparse(node)} calls {called}"
                case ast.Call() | ast.Await() | ast.NamedExpr() | ast.Yield() | ast.YieldFrom():
                    yield f"{node.lineno} {ast.unparse(node)} acts"
                case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in acting:
                    yield f"{node.lineno} {ast.unparse(node)} makes {name}"


def _asserts(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[tuple[ast.ClassDef | None, ast.Assert]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert):
            yield owner, child
        yield from _asserts(child, child if isinstance(child, ast.ClassDef) else owner)


def _acting_properties(owner: ast.ClassDef) -> Iterator[str]:
    """Yield the properties of a class that make what they return, or do more than return it."""
    for node in owner.body:
        if isinstance(node, ast.FunctionDef):
            decorators = {ast.unparse(one) for one in node.decorator_list}
            body = [one for one in node.body if not isinstance(one, ast.Expr)]
            plain = all(isinstance(one, ast.Return | ast.Assign) for one in body)
            if "cached_property" in decorators or ("property" in decorators and not plain):
                yield node.name


def test_every_module_says_what_belongs_in_it():
    assert [place_of(path) for path in modules() if not ast.get_docstring(tree_of(path))] == []


def _exports(tree: ast.Module) -> set[str] | None:
    """Return the names in a module's `__all__`, None where it has none."""
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id="__all__")], value=ast.List(elts=items) | ast.Tuple(elts=items)
            ):
                return {ast.literal_eval(item) for item in items}
    return None


def test_every_exported_name_exists():
    for path in modules():
        tree = tree_of(path)
        assert (_exports(tree) or set()) <= set(_top_level_names(tree)), path


def test_only_the_face_of_a_package_lists_what_it_exports():
    assert not [
        place_of(path)
        for path in modules()
        if path.name != "__init__.py" and _exports(tree_of(path)) is not None
    ]


def _top_level_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((alias.asname or alias.name) for alias in names)
