"""What a broker's log says of the others, from one image to the next."""

from __future__ import annotations

from uuid import UUID

from coterie.broker.cluster.applying import RESTORED, News, broker_news
from coterie.broker.cluster.changes import (
    Change,
    LeaveCluster,
    RegisterBroker,
    StartLeaving,
    UnregisterBroker,
)
from coterie.broker.cluster.image import BrokerState, Delta, Endpoint, Image


def registered(broker_id: int, port: int, *, replaces: int = 0) -> RegisterBroker:
    """Return the registration of a broker at a port of this machine."""
    at = (Endpoint("PLAINTEXT", "127.0.0.1", port),)
    return RegisterBroker(broker_id, UUID(int=port), replaces, listeners=at)


def image_after(*changes: Change) -> Image:
    """Return the image that changes make."""
    image = Image()
    for change in changes:
        delta = change.rows(image, 1)
        assert isinstance(delta, Delta)
        image = image.after(delta)
    return image


def said(before: Image, after: Image, *, me: int = 3) -> list[str]:
    """Return the texts of a broker's news, none of which warns."""
    found = [*broker_news(before, after, me)]
    assert not any(one.warns for one in found)
    return [one.text for one in found]


def restored(image: Image, version: int) -> Image:
    """Return what `coterie store restored` makes of an image."""
    fenced = [row._replace(state=BrokerState.FENCED, version=version) for row in image.brokers.values()]
    return image.after(Delta(above=image.version, version=version, brokers=fenced))


def test_each_broker_that_comes_goes_or_is_removed_has_a_line() -> None:
    both = (registered(1, 9092), registered(2, 9093))
    gone = (*both, LeaveCluster(2, 2))
    removed = (*gone, UnregisterBroker(2, 2))

    assert said(Image(), image_after(*both)) == [
        "broker 1 is there, at 127.0.0.1:9092",
        "broker 2 is there, at 127.0.0.1:9093",
    ]
    assert said(image_after(*both), image_after(*gone)) == ["broker 2 is gone"]
    assert said(image_after(*gone), image_after(*removed)) == ["broker 2 is removed from the cluster"]


def test_a_planned_departure_is_told_of_in_other_words_than_a_death() -> None:
    both = (registered(1, 9092), registered(2, 9093))
    leaving = (*both, StartLeaving(2, 2))
    left = (*leaving, LeaveCluster(2, 2))

    assert said(image_after(*both), image_after(*leaving)) == ["broker 2 is leaving"]
    assert said(image_after(*leaving), image_after(*left)) == ["broker 2 has left"]


def test_whose_place_a_process_takes_is_said_where_that_was_not_found_dead_and_is_elsewhere() -> None:
    first, anothers = registered(1, 9092), registered(1, 9093, replaces=1)
    died = LeaveCluster(1, 1)

    def after(*changes: Change) -> list[str]:
        return said(image_after(first, *changes[:-1]), image_after(first, *changes))

    assert after(anothers) == [
        "broker 1 is there, at 127.0.0.1:9093, in the place of the process at 127.0.0.1:9092"
    ]
    assert after(registered(1, 9092, replaces=1)) == ["broker 1 is there, at 127.0.0.1:9092"]
    assert after(died, anothers) == ["broker 1 is there, at 127.0.0.1:9093"]


def test_a_broker_that_starts_says_nothing_of_those_that_were_removed_before() -> None:
    removed = image_after(registered(1, 9092), LeaveCluster(1, 1), UnregisterBroker(1, 1))

    assert said(Image(), removed) == []


def test_two_brokers_at_one_address_are_named() -> None:
    before = image_after(registered(1, 9092))
    after = image_after(registered(1, 9092), registered(2, 9092))

    there, both = broker_news(before, after, 1)

    assert there == News("broker 2 is there, at 127.0.0.1:9092")
    assert both.text.startswith("broker 2 is at the address of broker 1, and clients find only one of them")
    assert both.warns


def test_a_broker_at_the_address_of_one_that_is_gone_is_as_any_other() -> None:
    before = (registered(1, 9092), LeaveCluster(1, 1))

    news = said(image_after(*before), image_after(*before, registered(2, 9092)))

    assert news == ["broker 2 is there, at 127.0.0.1:9092"]


def test_brokers_that_begin_anew_after_a_restore_are_not_said_to_be_gone() -> None:
    """Found by a newcomer: each was, by all, and by itself."""
    both = image_after(registered(1, 9092), registered(2, 9093))
    anew = registered(1, 9092, replaces=1)

    after = restored(both, 1_000)
    row = anew.rows(after, 1_001)
    assert isinstance(row, Delta)

    assert [*broker_news(both, after, 2)] == [News(RESTORED, warns=True)]
    assert said(after, after.after(row), me=2) == ["broker 1 is there, at 127.0.0.1:9092"]


def test_a_broker_says_of_itself_that_it_leads_nothing_any_more_and_not_that_it_is_gone() -> None:
    both = image_after(registered(1, 9092), registered(2, 9093))
    taken_over = image_after(registered(1, 9092), registered(2, 9093), LeaveCluster(2, 2))

    assert said(both, taken_over, me=2) == []
