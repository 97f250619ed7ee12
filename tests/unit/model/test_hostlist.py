import pytest

from healer.model.hostlist import compact, expand


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
def test_invalid_or_oversized_hostlist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        expand(text)


@pytest.mark.parametrize("text", ["n[0001-1250]," * 6000 + "n1", f"n[{'1-9999,' * 600}1]", "n[1-9]" * 16])
def test_a_list_of_many_lists_is_no_way_to_fill_the_memory(text: str) -> None:
    with pytest.raises(ValueError, match="more than 100000"):
        expand(text)


def test_brackets_without_end_are_no_list() -> None:
    with pytest.raises(ValueError, match="brackets"):
        expand("n[1]" * 5000)


def test_a_comma_in_brackets_separates_numbers_and_any_other_one_names() -> None:
    assert expand("a[1,3-4]b[5,6], c ,d[!x,y],") == [
        "a1b5", "a1b6", "a3b5", "a3b6", "a4b5", "a4b6", "c", "d[!x,y]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["gpu0001", "gpu0003", "gpu0002", "gpu0007"], "gpu[0001-0003,0007]"),
        (["gpu0009", "gpu0010", "cpu1", "login"], "cpu1,gpu[0009-0010],login"),
        (["a-1", "a-01"], "a-01,a-1"),
        ([], ""),
    ],
)
def test_names_become_a_hostlist(names: list[str], text: str) -> None:
    assert compact(names) == text
    assert not names or sorted(expand(text)) == sorted(names)
