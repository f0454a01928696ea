"""DescribeClientQuotas, AlterClientQuotas: there are none, and none can be set."""

from __future__ import annotations

from typing import Any

from coterie.base.codes import Code
from coterie.broker.net.context import Context
from coterie.broker.refusal import Refusal
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, gathered, mapped
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
EXACT, DEFAULT, SPECIFIED = 0, 1, 2  # how a filter's component matches
IP = "ip"
OF_CLIENTS = frozenset({"producer_byte_rate", "consumer_byte_rate", "request_percentage"})
KEYS = {  # what can be limited, by whose it is
    "user": OF_CLIENTS | {"controller_mutation_rate"},
    "client-id": OF_CLIENTS | {"controller_mutation_rate"},
    IP: frozenset({"connection_creation_rate"}),
}


def describe_quotas(ctx: Context, request: Any) -> Pieces[Any]:
    """Answer with no quotas, or why the filter makes no sense."""
    seen: set[str] = set()
    refusal = None
    for component in request.components:
        refusal = _refuse_component(component, seen)
        if refusal is not None:
            break
        seen.add(component.entity_type)
        yield None
    if refusal is None and IP in seen and len(seen) > 1:
        text = "IP filter component should not be used with user or clientId filter component."
        refusal = _invalid(f"Invalid entity filter component combination. {text}")
    return build(
        response_type(DESCRIBE_QUOTAS, ctx.version),
        error_code=refusal.code if refusal else Code.NONE,
        error_message=refusal.message if refusal else "",
        entries=None if refusal else (),
    )


def _invalid(text: str) -> Refusal:
    return Refusal(Code.INVALID_REQUEST, text)


def _refuse_component(one: Any, seen: set[str]) -> Refusal | None:
    kind = one.entity_type
    if not kind:
        return _invalid("Invalid empty entity type.")
    if kind in seen:
        return _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in KEYS:
        return Refusal(Code.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
    if one.match_type == EXACT:
        text = "Request specified MATCH_TYPE_EXACT, but set match string to null."
        return None if one.match is not None else _invalid(text)
    names = {DEFAULT: "MATCH_TYPE_DEFAULT", SPECIFIED: "MATCH_TYPE_SPECIFIED"}
    if one.match_type not in names:
        return _invalid(f"Unknown match type {one.match_type}")
    text = f"Request specified {names[one.match_type]}, but also specified a match string."
    return None if one.match is None else _invalid(text)


def alter_quotas(ctx: Context, request: Any) -> Pieces[Any]:
    """Answer entry by entry: nothing to remove is no fault, and nothing can be set."""
    entry_type = entity("alter_client_quotas", ctx.version, "EntryData", "response")
    entity_type = entity("alter_client_quotas", ctx.version, "EntityData", "response")
    entries = []
    for entry in request.entries:
        refusal = yield from _refuse_entry(entry)
        whose = yield from gathered(
            build(entity_type, entity_type=one.entity_type, entity_name=one.entity_name)
            for one in entry.entity
        )
        code, text = (refusal.code, refusal.message) if refusal else (Code.NONE, None)
        entries.append(build(entry_type, error_code=code, error_message=text, entity=tuple(whose)))
        yield None
    return build(response_type(ALTER_QUOTAS, ctx.version), entries=tuple(entries))


def _refuse_entry(entry: Any) -> Pieces[Refusal | None]:
    if not entry.entity:
        return _invalid("Invalid empty client quota entity")
    kinds = yield from mapped((one.entity_type, None) for one in entry.entity)
    strange = next((kind for kind in kinds if kind not in KEYS), None)
    if strange is not None:
        return _invalid(f"Unhandled client quota entity type: {strange}")
    if IP in kinds and len(kinds) > 1:
        return _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"  # sic
        )
    known = frozenset[str]().union(*(KEYS[kind] for kind in kinds))
    for place, op in enumerate(entry.ops):
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
        if op.key not in known:
            return _invalid(f"Invalid configuration key {op.key}")
        if not op.remove:
            if not op.value > 0:
                return _invalid(f"Quota {op.key} must be greater than 0")
            return Refusal(Code.UNSUPPORTED_VERSION, "Quotas are not kept in this version of Coterie")
    return None


HANDLERS = {DESCRIBE_QUOTAS: describe_quotas, ALTER_QUOTAS: alter_quotas}
