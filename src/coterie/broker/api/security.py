"""What is asked about users, rights and tokens, of a broker that has none of them set: SASL, ACLs, delegation
tokens, SCRAM credentials. Codes and messages are those of Apache Kafka 4.3.1 without an authorizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.broker.net.context import Context, Hangup
from coterie.broker.refusal import Refusal, sayable
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.runtime.pieces import Pieces

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
CREATE_TOKEN, RENEW_TOKEN, EXPIRE_TOKEN, DESCRIBE_TOKEN = 38, 39, 40, 41
DESCRIBE_SCRAM, ALTER_SCRAM = 50, 51

ANONYMOUS = ("User", "ANONYMOUS")
EPOCH = datetime.fromtimestamp(0, UTC)
UNKNOWN = 0  # of a kind of resource, pattern, operation or permission
ITERATIONS_LEAST_BY_MECHANISM = {1: 4096, 2: 4096}  # SCRAM-SHA-256, SCRAM-SHA-512
ITERATIONS_MOST = 16_384


# -- SASL, on a listener without it


def sasl_handshake(ctx: Context, request: Any) -> Any:
    """Answer that this is not the time for it: nobody has to say who it is here (SA-3)."""
    return build(response_type(SASL_HANDSHAKE, ctx.version), error_code=Code.ILLEGAL_SASL_STATE)


def sasl_authenticate(ctx: Context, request: Any) -> Any:
    """Answer the same (SA-5)."""
    return build(
        response_type(SASL_AUTHENTICATE, ctx.version),
        error_code=Code.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )


# -- ACLs


def describe_acls(ctx: Context, request: Any) -> Any:
    """Answer that nobody looks at rights here."""
    kinds = (request.resource_type_filter, request.pattern_type_filter)
    _check_known((*kinds, request.operation, request.permission_type))
    return build(
        response_type(DESCRIBE_ACLS, ctx.version),
        error_code=Code.SECURITY_DISABLED,
        error_message="No Authorizer is configured on the broker",
        resources=(),
    )


def create_acls(ctx: Context, request: Any) -> Pieces[Any]:
    """Answer the same of each that is to be."""
    for one in request.creations:
        kinds = (one.resource_type, one.resource_pattern_type)
        _check_known((*kinds, one.operation, one.permission_type))
        yield None
    result = build(
        entity("create_acls", ctx.version, "AclCreationResult", "response"),
        error_code=Code.SECURITY_DISABLED,
        error_message="No Authorizer is configured.",
    )
    return build(response_type(CREATE_ACLS, ctx.version), results=(result,) * len(request.creations))


def delete_acls(ctx: Context, request: Any) -> Pieces[Any]:
    """Answer the same of each filter."""
    for one in request.filters:
        kinds = (one.resource_type_filter, one.pattern_type_filter)
        _check_known((*kinds, one.operation, one.permission_type))
        yield None
    result = build(
        entity("delete_acls", ctx.version, "DeleteAclsFilterResult", "response"),
        error_code=Code.SECURITY_DISABLED,
        error_message="No Authorizer is configured.",
        matching_acls=(),
    )
    return build(response_type(DELETE_ACLS, ctx.version), filter_results=(result,) * len(request.filters))


def _check_known(kinds: Iterable[int]) -> None:
    if UNKNOWN in kinds:
        raise Hangup("named an ACL of an unknown kind")


# -- delegation tokens: who has not said who it is gets none (DT-1)


def create_token(ctx: Context, request: Any) -> Any:
    """Answer that nobody gets a token here."""
    owner = (
        getattr(request, "owner_principal_type", None),
        getattr(request, "owner_principal_name", None),
    )
    owner_type, owner_name = owner if owner[1] else ANONYMOUS
    requester_type, requester_name = ANONYMOUS
    return build(
        response_type(CREATE_TOKEN, ctx.version),
        error_code=Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        principal_type=owner_type or "",
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=EPOCH,
        expiry_timestamp=EPOCH,
        max_timestamp=EPOCH,
        token_id="",
        hmac=b"",
    )


def renew_or_expire_token(ctx: Context, request: Any) -> Any:
    """Answer the same."""
    code = Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return build(response_type(ctx.api_key, ctx.version), error_code=code, expiry_timestamp=EPOCH)


def describe_tokens(ctx: Context, request: Any) -> Any:
    """Answer the same."""
    code = Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return build(response_type(DESCRIBE_TOKEN, ctx.version), error_code=code, tokens=())


# -- SCRAM credentials, which nobody has


def describe_scram(ctx: Context, request: Any) -> Pieces[Any]:
    """Answer that there are none, user by user."""
    result_type = entity(
        "describe_user_scram_credentials", ctx.version, "DescribeUserScramCredentialsResult", "response"
    )
    times: dict[str, int] = {}
    for user in request.users or ():
        times[user.name] = times.get(user.name, 0) + 1
        yield None
    results = []
    for name, count in times.items():
        code = Code.RESOURCE_NOT_FOUND if count == 1 else Code.DUPLICATE_RESOURCE
        text = (
            f"Attempt to describe a user credential that does not exist: {name}"
            if count == 1
            else f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
        results.append(
            build(result_type, user=name, error_code=code, error_message=sayable(text), credential_infos=())
        )
        yield None
    return build(
        response_type(DESCRIBE_SCRAM, ctx.version),
        error_code=Code.NONE,
        error_message="",
        results=tuple(results),
    )


def alter_scram(ctx: Context, request: Any) -> Pieces[Any]:
    """Answer why nothing is altered: there is nothing to delete, and nothing can be kept."""
    refusals: dict[str, Refusal] = {}
    for one in request.deletions:
        refusals.setdefault(one.name, _refuse_deletion(one))
        yield None
    for one in request.upsertions:
        refusals.setdefault(one.name, _refuse_upsertion(one))
        yield None
    result_type = entity(
        "alter_user_scram_credentials", ctx.version, "AlterUserScramCredentialsResult", "response"
    )
    results = []
    for name, refusal in refusals.items():
        results.append(build(result_type, user=name, error_code=refusal.code, error_message=refusal.message))
        yield None
    return build(response_type(ALTER_SCRAM, ctx.version), results=tuple(results))


def _refuse_deletion(one: Any) -> Refusal:
    refusal = _refuse_user(one)
    text = "Attempt to delete a user credential that does not exist"
    return refusal or Refusal(Code.RESOURCE_NOT_FOUND, text)


def _refuse_upsertion(one: Any) -> Refusal:
    refusal = _refuse_user(one)
    if refusal is not None:
        return refusal
    if one.iterations < ITERATIONS_LEAST_BY_MECHANISM[one.mechanism]:
        return Refusal(Code.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if one.iterations > ITERATIONS_MOST:
        return Refusal(Code.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    return Refusal(Code.UNSUPPORTED_VERSION, "Users are not kept in this version of Coterie")


def _refuse_user(one: Any) -> Refusal | None:
    if not one.name:
        return Refusal(Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if one.mechanism not in ITERATIONS_LEAST_BY_MECHANISM:
        return Refusal(Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return None


HANDLERS = {
    SASL_HANDSHAKE: sasl_handshake,
    SASL_AUTHENTICATE: sasl_authenticate,
    DESCRIBE_ACLS: describe_acls,
    CREATE_ACLS: create_acls,
    DELETE_ACLS: delete_acls,
    CREATE_TOKEN: create_token,
    RENEW_TOKEN: renew_or_expire_token,
    EXPIRE_TOKEN: renew_or_expire_token,
    DESCRIBE_TOKEN: describe_tokens,
    DESCRIBE_SCRAM: describe_scram,
    ALTER_SCRAM: alter_scram,
}
