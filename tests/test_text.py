"""Text from strangers, in tables and for terminals."""

import csv

import pytest

from qcn.terminal.text import csv_cell, csv_line

FORMULAS = ['=HYPERLINK("http://x";"y")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "-", "-1a"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula_and_all_are_read_back(text: str) -> None:
    for cell in (text, f"'{text}", f"''{text}"):
        (row,) = csv.reader([csv_line([cell, "b"])])
        assert row[0] == f"'{cell}" and csv_cell(row[0]) == cell


@pytest.mark.parametrize(
    "cell", ["a.png", "'tis.png", "a=b", "", " =1", "-3", "-0.25", "+1e-05", 3, -0.5, -1e-30, True]
)
def test_numbers_and_other_text_stay_as_they_are(cell: object) -> None:
    assert csv_line([cell, "b"]) == f"{cell},b\r\n" and csv_cell(str(cell)) == str(cell)
