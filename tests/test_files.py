"""A file is there whole, or it is what it was before."""

import pytest
from data_helpers import everything_under

from hermetic.files import write_text


def test_a_written_file_holds_the_text_as_utf_8_and_nothing_lies_beside_it(tmp_path):
    write_text(tmp_path / "report.html", "größer ⌀\n")
    assert (tmp_path / "report.html").read_bytes() == "größer ⌀\n".encode()
    assert everything_under(tmp_path) == ["report.html"]


def test_a_written_file_can_be_read_by_everyone(tmp_path):
    write_text(tmp_path / "report.html", "text")
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o644


def test_an_old_file_is_replaced(tmp_path):
    (tmp_path / "report.html").write_text("a much longer text that was there before")
    write_text(tmp_path / "report.html", "new")
    assert (tmp_path / "report.html").read_text() == "new"


def test_an_error_in_the_middle_leaves_the_old_file_and_no_other(tmp_path):
    (tmp_path / "report.html").write_text("old")
    half_of_it_cannot_be_encoded = "x" * 100_000 + "\ud800"
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "report.html", half_of_it_cannot_be_encoded)
    assert (tmp_path / "report.html").read_text() == "old"
    assert everything_under(tmp_path) == ["report.html"]


def test_an_error_while_taking_the_place_leaves_no_other_file(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "report.html", "text")
    assert everything_under(tmp_path) == ["report.html"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nope" / "report.html", "text")
    assert everything_under(tmp_path) == []
