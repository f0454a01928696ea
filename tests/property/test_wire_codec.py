"""Our writers and readers over the entities of every version that is served."""

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_entities import corner_classes, entities, served_classes

from coterie.base.errors import Corrupt
from coterie.wire.api.codec import decode, encode
from coterie.wire.api.layout import plan_of
from coterie.wire.varints import uvarint
from examples import drawn

SERVED, CORNERS = served_classes(), corner_classes()
FEW = settings(max_examples=drawn(4), deadline=None, suppress_health_check=list(HealthCheck))


def title(cls: type) -> str:
    return f"{cls.__name__}-{cls.__version__}"


EVERY_CLASS = pytest.mark.parametrize("cls", SERVED, ids=title)
EVERY_CORNER = pytest.mark.parametrize("cls", CORNERS, ids=title)

# What hostile bytes like to say: null, the longest lengths, the shortest ones.
POISONS = (
    b"\xff\xff\xff\xff\x0f",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xff\xff\xff",
    b"\0\0\0\0",
)


def kio_bytes(entity: object) -> bytes:
    from kio.serial import entity_writer

    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


@EVERY_CLASS
@FEW
@given(data=st.data())
def test_an_entity_is_written_as_kio_writes_it_and_read_back(cls, data):
    entity = data.draw(entities(cls))

    written = encode(entity)

    assert written == kio_bytes(entity)
    assert decode(cls, written) == entity
    assert decode(cls, b"before" + written + b"after", 6) == entity


@EVERY_CORNER
@FEW
@given(data=st.data())
def test_an_entity_that_is_cut_anywhere_is_corrupt(cls, data):
    written = encode(data.draw(entities(cls)))

    for length in range(len(written)) if len(written) < 64 else (0, 1, len(written) // 2, len(written) - 1):
        with pytest.raises(Corrupt):
            decode(cls, written[:length])


@EVERY_CORNER
@FEW
@given(data=st.data())
def test_damaged_bytes_are_read_or_are_corrupt_and_nothing_else(cls, data):
    """A reader that trusted a length would abort the process here, not fail the test."""
    written = encode(data.draw(entities(cls)))
    at = data.draw(st.integers(0, len(written)))
    poison = data.draw(st.sampled_from(POISONS) | st.binary(min_size=1, max_size=4))

    for damaged in (
        written[:at] + poison + written[at + len(poison) :],
        written[:at] + poison + written[at:],
        poison + written,
        data.draw(st.binary(max_size=40)),
    ):
        try:
            decode(cls, damaged)
        except Corrupt:
            continue


@pytest.mark.parametrize(
    "cls",
    [cls for cls in CORNERS if plan_of(cls).flexible and not plan_of(cls).tagged],
    ids=title,
)
@FEW
@given(data=st.data())
def test_a_tagged_field_that_nobody_knows_is_ignored(cls, data):
    entity = data.draw(entities(cls))
    tag, value = data.draw(st.integers(10, 2**31 - 1)), data.draw(st.binary(max_size=200))
    written = encode(entity)
    assert written.endswith(b"\0")

    newer = written[:-1] + b"\x01" + uvarint(tag) + uvarint(len(value)) + value

    assert decode(cls, newer) == entity
