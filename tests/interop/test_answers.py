"""What is asked about things that are not set is answered as Apache Kafka 4.3.1 answered it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from interop.answers.__main__ import RECORDED, comparable
from interop.answers.questions import ASKED, TOPICS, questions
from interop.live.line import NoAnswer

from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import (
    decode_response,
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
    response_type,
)
from unit.broker.rig import Rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("answers"), node_id=1)
    for name, partitions in TOPICS.items():
        rig.node.topic_manager.create_topic(name, partitions=partitions)
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def recorded() -> dict[int, dict[tuple[int, str], Any]]:
    """By API, then version and question: what Apache Kafka answered."""
    found: dict[int, dict[tuple[int, str], Any]] = {}
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        found.setdefault(one["api"], {})[one["version"], one["question"]] = one["answer"]
    return found


def answer(rig: Rig, key: int, request: Any) -> Any:
    """Return what a new connection is answered, as the record has it."""
    client = rig.client()
    client.connection.data_received(encode_request(1, "answers", request))
    rig.settle()
    if client.line.closed:
        return comparable(NoAnswer("the connection was closed"))
    frame = response_type(key, int(type(request).__version__))
    return comparable(decode_response(frame, client.line.written[4:])[1])


@pytest.mark.parametrize("key", ASKED, ids=lambda key: APIS[key].title)
def test_questions_about_what_is_not_set_are_answered_as_by_apache_kafka(
    rig: Rig, recorded: dict[int, dict[tuple[int, str], Any]], key: int
):
    for request in questions(key):
        kafkas = recorded[key][int(type(request).__version__), repr(request)]
        assert json.loads(json.dumps(answer(rig, key, request))) == kafkas, request


def test_what_cannot_be_kept_is_refused_and_said_so(rig: Rig):
    """Quotas and users: Apache Kafka keeps them. An answer that all is well would be a lie."""
    api, version = "alter_client_quotas", 1
    entry = build(
        entity(api, version, "EntryData"),
        entity=(build(entity(api, version, "EntityData"), entity_type="user", entity_name="bob"),),
        ops=(build(entity(api, version, "OpData"), key="producer_byte_rate", value=1e6, remove=False),),
    )
    api = "alter_user_scram_credentials"
    user = build(
        entity(api, 0, "ScramCredentialUpsertion"),
        name="bob", mechanism=1, iterations=4_096, salt=b"s", salted_password=b"p",
    )  # fmt: skip

    quota = answer(rig, 49, build(request_type(49, version), entries=(entry,), validate_only=False))
    added = answer(rig, 51, build(request_type(51, 0), deletions=(), upsertions=(user,)))

    for one in (*quota["entries"], *added["results"]):
        assert one["error_code"] == 35
        assert "not kept" in one["error_message"]
