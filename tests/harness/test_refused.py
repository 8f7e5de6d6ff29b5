"""Lists of refused tests: how a line is read, and what it names."""

from tests.harness.refused import Refused, refused_tests


def test_a_line_has_the_reason_above_it(tmp_path):
    path = tmp_path / "refused.txt"
    path.write_text(
        "# What the list is.\n\n# One.\na/test_b::test_c\n*::test_d\n\n# Two.\na/test_e::test_f\n"
    )

    assert refused_tests(path) == [
        ("a/test_b::test_c", "One."),
        ("*::test_d", "One."),
        ("a/test_e::test_f", "Two."),
    ]


def test_a_star_is_any_text_and_a_bracket_is_itself():
    line = Refused("a/test_b::*::test_c[*-True]", "")

    assert line.names("a/test_b::Case::test_c[1-2-True]")
    assert not line.names("a/test_b::Case::test_c1")
    assert not line.names("a/test_b::Case::test_c[1-2-True]x")


def test_a_line_is_about_the_files_of_its_first_part():
    line = Refused("*_map::*::test_c", "")

    assert line.is_about("sql/tests/test_arrow_map")
    assert not line.is_about("sql/tests/test_arrow_udf")
