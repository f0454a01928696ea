"""The table of APIs against what Apache Kafka 4.3.1 answered, and against kio."""

import pytest

from coterie.wire.api.apis import APIS, ApiKey
from coterie.wire.api.entities import request_type, response_type

ADVERTISED = """
0 0 13; 1 4 18; 2 1 11; 3 0 13; 8 2 10; 9 1 10; 10 0 6; 11 0 9; 12 0 4; 13 0 5; 14 0 5; 15 0 6; 16 0 5;
17 0 1; 18 0 4; 19 2 7; 20 1 6; 21 0 2; 22 0 5; 23 2 4; 24 0 5; 25 0 4; 26 0 5; 27 1 2; 28 0 5; 29 1 3;
30 1 3; 31 1 3; 32 1 4; 33 0 2; 34 1 2; 35 1 5; 36 0 2; 37 0 3; 38 1 3; 39 1 2; 40 1 2; 41 1 3; 42 0 2;
43 0 2; 44 0 1; 45 0 1; 46 0 0; 47 0 0; 48 0 1; 49 0 1; 50 0 0; 51 0 0; 55 0 2; 57 0 2; 60 0 2; 61 0 0;
64 0 0; 65 0 0; 66 0 2; 68 0 1; 69 0 1; 74 0 1; 75 0 0; 76 1 1; 77 1 1; 78 1 2; 79 1 2; 80 0 1; 81 0 0;
83 0 0; 84 0 0; 85 0 1; 86 0 0; 87 0 1; 88 0 0; 89 0 0; 90 0 1; 91 0 0; 92 0 0
"""


def test_the_ranges_are_those_that_kafka_advertises():
    ranges = {tuple(map(int, row.split())) for row in ADVERTISED.split(";")}

    assert {(api.key, api.least, api.most) for api in APIS.values()} == ranges


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.title)
def test_every_version_that_is_served_has_its_entities(api):
    for version in (api.served_from, api.most):
        request, response = request_type(api.key, version), response_type(api.key, version)

        assert (request.__api_key__, request.__version__) == (api.key, version)
        assert (response.__api_key__, response.__version__) == (api.key, version)
        assert request.__flexible__ == api.is_flexible(version)


def test_an_api_says_what_it_serves():
    produce = APIS[ApiKey.PRODUCE]

    assert [produce.serves(version) for version in (2, 3, 13, 14)] == [False, True, True, False]
    assert not APIS[ApiKey.SASL_HANDSHAKE].is_flexible(100)
