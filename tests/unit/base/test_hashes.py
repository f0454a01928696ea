"""Java's and murmur2's hashes against vectors from Kafka's own classes (9.1)."""

import pytest

from coterie.base.hashes import coordinator_partition, java_hash, java_hash_order, murmur2, to_positive

MURMUR2 = [
    (b"", 275646681, 3, 31),
    (b"a", -1563381124, 4, 24),
    (b"21", -973932308, 0, 40),
    (b"abc", 479470107, 3, 7),
    (b"foobar", -790332482, 0, 16),
    (b"a-little-bit-long-string", -985981536, 2, 12),
    (b"a-little-bit-longer-string", -1486304829, 5, 19),
    ("clé".encode(), 1419575574, 0, 24),
]
JAVA = [
    ("", 0, 0),
    ("test", 3556498, 48),
    ("my-group", -1906497762, 12),
    ("group1", -1237460590, 40),
    ("console-consumer-12345", 158455506, 6),
    ("polygenelubricants", -2147483648, 0),
    ("groupe-é", 506365602, 2),
    ("\U0001f600", 1772899, 49),
]


@pytest.mark.parametrize(("data", "digest", "of_six", "of_fifty"), MURMUR2)
def test_murmur2_is_kafkas(data, digest, of_six, of_fifty):
    """PT-3."""
    assert murmur2(data) == digest
    assert (to_positive(digest) % 6, to_positive(digest) % 50) == (of_six, of_fifty)


@pytest.mark.parametrize(("text", "digest", "partition"), JAVA)
def test_java_hash_and_the_coordinators_partition_are_kafkas(text, digest, partition):
    assert java_hash(text) == digest
    assert coordinator_partition(text, partition_count=50) == partition


def test_to_positive_drops_the_sign_bit_and_is_not_abs():
    assert to_positive(-1) == 2**31 - 1
    assert to_positive(-(2**31)) == 0


def test_a_java_hash_map_iterates_by_bucket():
    # 'a' hashes to 97 and 'q' to 113: both in bucket 1 of 16. 'b' is in bucket 2.
    assert java_hash_order(["b", "q", "a"]) == ["q", "a", "b"]


def test_a_java_hash_map_of_more_than_twelve_names_has_more_buckets():
    names = [chr(ord("a") + number) for number in range(13)]

    assert java_hash_order(["q", *names[:11]])[:2] == ["q", "a"]
    assert java_hash_order(["q", *names])[0] == "a"


def test_a_name_given_twice_keeps_its_first_place():
    assert java_hash_order(["q", "a", "q"]) == ["q", "a"]
