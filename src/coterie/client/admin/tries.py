"""What is known of the tries of a change. Pure."""

from types import TracebackType
from typing import Self

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.client.errors import ClientTimeout, Disconnected


class Tries:
    """The tries of one change, each within `with`: it may be done though nobody said so."""

    def __init__(self) -> None:
        self.uncertain = False
        """Whether a try before this one may have been carried out."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unanswered = isinstance(error, Disconnected | ClientTimeout)
        late = isinstance(error, RefusedBy) and error.code is Code.REQUEST_TIMED_OUT
        self.uncertain = self.uncertain or unanswered or late
