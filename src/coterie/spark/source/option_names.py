"""The options of the source, and the columns that they name. Spark asks for those before it reads. Pure."""

from typing import Final

from coterie.spark.options import BadOption, Options, OptionTable

SOURCE_OPTIONS: Final = OptionTable.of(__spec__)

# The columns there are, in their order.
COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "source",
    "deadLetter",
)


def columns_of(options: Options) -> tuple[str, ...]:
    """Return the columns that a query gets."""
    asked = {
        "headers": options["includeHeaders"],
        "source": options["includeSource"],
        "deadLetter": options["deadLetterColumn"],
    }
    text = options.text("columns")
    if text is None:
        return tuple(name for name in COLUMNS if asked.get(name, True))
    known = {name.lower(): name for name in COLUMNS}
    named = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in known]
    if unknown or not named or len(named) != len(set(named)):
        raise BadOption(f"option columns must name each at most once, of {', '.join(COLUMNS)}; not {text!r}")
    columns = [known[name] for name in named]
    if "deadLetter" in columns and not asked["deadLetter"]:
        raise BadOption("option columns has deadLetter: set deadLetterColumn=true")
    return (*columns, *(name for name, wanted in asked.items() if wanted and name not in columns))
