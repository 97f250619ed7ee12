import pytest

from healer.hostlist import expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[0001-0003,0020]", ["gpu0001", "gpu0002", "gpu0003", "gpu0020"]),
        ("a[1-2]b[8-9]", ["a1b8", "a1b9", "a2b8", "a2b9"]),
        ("a[1,2],b", ["a1", "a2", "b"]),
        ("gpu[9-11]", ["gpu9", "gpu10", "gpu11"]),
        ("gpu[01-02]*", ["gpu01*", "gpu02*"]),
        ("gpu[ab]?", ["gpu[ab]?"]),
        ("feature:x", ["feature:x"]),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["", "gpu[]x[5-1]", "gpu[1-]", "gpu[1--2]", "gpu[0-999999]", "a[1-999]b[1-999]"]
)
def test_what_cannot_be_expanded(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        expand(text)
