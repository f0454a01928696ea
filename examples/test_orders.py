"""Test a service against a real broker: `pytest examples/test_orders.py`. Coterie brings the fixtures."""

from coterie.client import BlockingConsumer, BlockingProducer


def test_what_is_sent_is_read(coterie_broker):
    with BlockingProducer(bootstrap_servers=coterie_broker.bootstrap) as producer:
        producer.send("orders", b"one")
    with BlockingConsumer(
        "orders",
        bootstrap_servers=coterie_broker.bootstrap,
        group_id="billing",
        auto_offset_reset="earliest",
    ) as consumer:
        assert consumer.getone(timeout_ms=10_000).value == b"one"


def test_a_service_outlives_its_broker(coterie_broker):
    with BlockingProducer(bootstrap_servers=coterie_broker.bootstrap) as producer:
        producer.send("orders", b"before")
        producer.flush()
        coterie_broker.kill()
        coterie_broker.restart()
        producer.send("orders", b"after")
