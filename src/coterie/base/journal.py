"""A journal of changes that are not known to last, and the way back.

Whoever changes state through it can have every change since a mark rolled back, newest first: nobody writes
an inverse by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableMapping, MutableSet
from typing import Any, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# What puts the old value back, and its arguments: an object and a field of it, a mapping and a key of it.
Entry: TypeAlias = tuple[Callable[[Any, Any, Any], object], Any, Any, Any]

ABSENT: Any = object()


class Journal:
    """The changes since the last that is settled: of each what was changed, where, and the old value."""

    __slots__ = ("_entries", "_settled")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._settled = 0

    # -- changing

    def set(self, target: object, **fields: Any) -> None:
        """Set attributes of an object."""
        entries = self._entries
        for field, value in fields.items():
            entries.append((setattr, target, field, getattr(target, field)))
            setattr(target, field, value)

    def set_all(self, targets: Collection[object], **fields: Any) -> None:
        """Set attributes of several objects alike."""
        for field, value in fields.items():
            self._entries += [(setattr, target, field, getattr(target, field)) for target in targets]
            for target in targets:
                setattr(target, field, value)

    def put(self, mapping: MutableMapping[K, V], key: K, value: V) -> V:
        """Set a key of a mapping, and return what it has now."""
        self._entries.append((_put_back, mapping, key, mapping.get(key, ABSENT)))
        mapping[key] = value
        return value

    def drop(self, mapping: MutableMapping[K, V], key: K) -> V:
        """Remove a key from a mapping, and return what it had. Rolled back, it comes last."""
        old = mapping.pop(key)
        self._entries.append((_put_back, mapping, key, old))
        return old

    def discard(self, elements: MutableSet[K], element: K) -> None:
        """Remove an element from a set, if it is there."""
        if element in elements:
            elements.discard(element)
            self._entries.append((_add_back, elements, element, None))

    def add(self, restore: Callable[[Any, Any, Any], object], target: Any, key: Any, old: Any) -> None:
        """Have `restore(target, key, old)` called when a change that is made elsewhere is rolled back."""
        self._entries.append((restore, target, key, old))

    # -- the way back

    def mark(self) -> int:
        """Return the place in the journal at which everything so far has been changed."""
        return self._settled + len(self._entries)

    @property
    def settled(self) -> int:
        """The place up to which everything lasts."""
        return self._settled

    def settle(self, mark: int) -> None:
        """Forget the way back behind the mark: what came before it lasts."""
        assert self._settled <= mark <= self.mark()
        del self._entries[: mark - self._settled]
        self._settled = mark

    def forget(self, mark: int) -> None:
        """Forget how to roll back what came after the mark; what came before it still can be."""
        assert self._settled <= mark <= self.mark()
        del self._entries[mark - self._settled :]

    def roll_back(self, mark: int) -> None:
        """Put back, newest first, what has been changed since the mark."""
        assert self._settled <= mark <= self.mark()
        entries, keep = self._entries, mark - self._settled
        while len(entries) > keep:
            restore, target, key, old = entries.pop()
            restore(target, key, old)


def _put_back(mapping: MutableMapping[Any, Any], key: Any, old: Any) -> None:
    if old is ABSENT:
        del mapping[key]
    else:
        mapping[key] = old


def _add_back(elements: MutableSet[Any], element: Any, _: None) -> None:
    elements.add(element)
