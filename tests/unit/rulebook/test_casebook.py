from pathlib import Path

from healer.rulebook.cases.casebook import CaseBook


def test_cases_are_counted_by_rule_however_they_name_it(tmp_path: Path) -> None:
    folder = tmp_path / "cases"
    folder.mkdir()
    (folder / "a.yaml").write_text(
        "- name: one\n  expect: [{rule: hot}, {rule: hot}]\n"
        "- name: two\n  expect:\n    fires: {rule: hot, within: 2m}\n"
        "- name: three\n  rule: cold\n  expect: []\n",
        encoding="utf-8",
    )
    (folder / "broken.yaml").write_text("- {", encoding="utf-8")
    book = CaseBook(tmp_path)
    assert book() == {"hot": 2, "cold": 1}
    (folder / "a.yaml").write_text("- {name: one, rule: cold}\n", encoding="utf-8")
    assert book() == {"cold": 1}


def test_a_site_without_cases_has_none(tmp_path: Path) -> None:
    assert CaseBook(tmp_path)() == {}


def test_a_link_that_leads_nowhere_does_not_end_the_page_of_the_rules(tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "a.yaml").write_text("- {name: one, rule: cold}\n", encoding="utf-8")
    (tmp_path / "cases" / "b.yaml").symlink_to("away.yaml")
    assert CaseBook(tmp_path)() == {"cold": 1}
