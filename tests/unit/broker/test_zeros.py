"""Requests in which numbers are 0, texts empty, ids all zeros: a broker of several answers each of them."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.broker.api import served_apis
from coterie.broker.net.context import Hangup
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import decode_request, encode_request, read_request_header
from coterie.wire.api.entities import build, request_type
from coterie.wire.api.layout import FieldPlan, plan_of
from unit.broker.cluster_rig import Asked, ClusterRig
from unit.broker.rig import a_context

SERVED = sorted(served_apis(alone=False, replicas_are_moved=True))
ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "bool": False, "float64": 0.0}
HUNG_UP_ON = {0, 29, 30, 31}  # a Produce that wants no answer, and ACLs of kinds that there are not


def zeros(cls: type) -> Any:
    """Return an entity with one item in each list, and null where that may be."""
    return build(cls, **{field.name: value_of(field) for field in plan_of(cls)})


def value_of(field: FieldPlan) -> Any:
    if field.entity is not None:
        value = zeros(field.entity)
    elif field.kind == "uuid" or (field.nullable and not field.is_array):
        value = None
    else:
        value = ZEROS.get(field.kind, 0)
    return (value,) if field.is_array else value


@pytest.mark.parametrize("api_key", SERVED)
def test_a_broker_of_several_answers_a_request_of_zeros(api_key: int):
    """Found by strangers: an OffsetFetch by the id of no topic has ended its connection with a traceback."""
    rig, api = ClusterRig(), APIS[api_key]
    for version in range(api.served_from, api.most + 1):
        frame = encode_request(1, "stranger", zeros(request_type(api_key, version)))[4:]
        request = decode_request(read_request_header(frame), frame)
        asked = Asked()
        context, handler = a_context(api_key, version, send=asked.take), rig.node.handlers[api_key, version]
        assert handler is not None
        try:
            asked.take(context, handler(context, request))
        except Hangup:
            assert api_key in HUNG_UP_ON
        else:
            assert asked.answer is not None, f"version {version}"
