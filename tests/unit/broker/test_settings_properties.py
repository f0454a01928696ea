"""Java's properties files. The cases were written by java.util.Properties of OpenJDK 17."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.config.properties import PropertiesError, read_properties

AS_JAVA = [
    ("a=b", {"a": "b"}),
    ("a:b", {"a": "b"}),
    ("a b", {"a": "b"}),
    ("a = b ", {"a": "b "}),
    ("  a=b", {"a": "b"}),
    ("a\\=b=c", {"a=b": "c"}),
    ("a\\ b=c", {"a b": "c"}),
    ("a=b\\\n   c", {"a": "bc"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    ("# x\\\na=b", {"a": "b"}),
    ("! c\na=b", {"a": "b"}),
    ("a", {"a": ""}),
    ("a=", {"a": ""}),
    ("=b", {"": "b"}),
    ("a==b", {"a": "=b"}),
    ("a= =b", {"a": "=b"}),
    ("a:=b", {"a": "=b"}),
    ("a\t=\tb", {"a": "b"}),
    ("a=\\u00e9", {"a": "\u00e9"}),
    ("a=\\t\\n\\q", {"a": "\t\nq"}),
    ("a=b\\", {"a": "b"}),
    ("a=1\na=2", {"a": "2"}),
    ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
    ("\\\n a=b", {"a": "b"}),
    ("a=b\\\n#c", {"a": "b#c"}),
    ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    ("\f a=b", {"a": "b"}),
    ("a=\\ b", {"a": " b"}),
    ("a\\:b : c", {"a:b": "c"}),
    ("a=b # c", {"a": "b # c"}),
    ("  \\\n  a=b", {"a": "b"}),
    ("\\\n# x\na=b", {"a": "b"}),
    ("a=b\n\\\n\nc=d", {"a": "b", "c": "d"}),
    ("a=\\ud83d\\ude00", {"a": "\U0001f600"}),
    ("", {}),
]


@pytest.mark.parametrize(("text", "settings"), AS_JAVA)
def test_a_file_is_read_as_java_reads_it(text: str, settings: dict[str, str]):
    assert read_properties(text) == settings


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "a=\\ud83d"])
def test_a_malformed_escape_is_refused_with_its_line(text: str):
    with pytest.raises(PropertiesError, match="line 2"):
        read_properties("x=y\n" + text)


def escaped(text: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _utf16(text))


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


@given(st.dictionaries(st.text(), st.text()))
def test_whatever_is_escaped_comes_back(settings: dict[str, str]):
    text = "\n".join(f"{escaped(name)}={escaped(value)}" for name, value in settings.items())

    assert read_properties(text) == settings


@given(st.text())
def test_any_text_is_read_or_refused(text: str):
    with suppress(PropertiesError):
        read_properties(text)
