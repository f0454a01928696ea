"""The root of Coterie's exceptions; docs/errors.md draws the whole tree and says of each what to do.

CoterieError
├── Corrupt      bytes that are not what they claim to be
└── Refused      Kafka said no, at a face that raises (inside the core a refusal is a value)
    └── RefusedBy    the same for a code that has no class of its own

Our own mistakes are asserts, never one of these.
"""

from typing import ClassVar

from coterie.base.codes import ADVICE, ADVICE_BESIDE_REASON, Code


class CoterieError(Exception):
    """The root of everything that Coterie raises on purpose."""


class Corrupt(CoterieError):
    """Bytes that do not say what they should. Hostile input raises this and nothing else."""

    def __init__(self, what: str, *, at: int | None = None, expected: str = "") -> None:
        where = "" if at is None else f" at byte {at}"
        hope = f", expected {expected}" if expected else ""
        super().__init__(f"{what}{where}{hope}")
        self.what, self.at, self.expected = what, at, expected


class Refused(CoterieError):
    """A request was refused with a Kafka error code. `slug` names its heading in docs/errors.md."""

    code: ClassVar[Code] = Code.UNKNOWN_SERVER_ERROR
    slug: ClassVar[str] = "refused"


class RefusedBy(Refused):
    """A refusal whose code is known only when it happens; its slug is the code's name in kebab case. The
    message ends with what to do, where there is something: it goes along with the `reason_given` in it, if
    that is what the broker has said.
    """

    def __init__(self, code: Code, message: str = "", *, reason_given: bool = False) -> None:
        said = f"{code.name}: {message}" if message else code.name
        advice = ADVICE.get(code)
        if reason_given:
            advice = ADVICE_BESIDE_REASON.get(code, advice)
        super().__init__(f"{said.rstrip('.')}; {advice}" if advice else said)
        # The class variables are the rule; here the instance overrides them on purpose.
        self.code = code  # type: ignore[misc]
        self.slug = code.name.lower().replace("_", "-")  # type: ignore[misc]
