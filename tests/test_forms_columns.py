"""The one table of columns agrees with the fields of a score and with the documentation."""

from dataclasses import dataclass, fields

import pytest

from msdscore.explain.look import PRESENTATIONS
from msdscore.forms.base import Form
from msdscore.forms.columns import COLUMNS, LOGGED, SHOWN, TABLE, numbers
from msdscore.forms.paper import Paper
from msdscore.forms.registry import FORMS
from msdscore.scoring.results import Score


def test_every_number_of_the_table_is_a_field_of_a_score():
    described = {"caption", "signature", "columns", "candidates", "warnings", "error", "doubtful", "verdict_at"}
    assert [field.name for field in fields(Score) if field.name not in described] == list(numbers(tuple(COLUMNS)))


def test_positions_are_distinct():
    for name in ("shown", "logged"):
        positions = sorted(getattr(column, name) for column in TABLE if getattr(column, name))
        assert positions == list(range(1, len(positions) + 1))
    assert (SHOWN[:3], LOGGED[:2]) == (("ref_msd", "soft_msd", "msd"), ("msd", "match"))


def test_forms_have_columns_and_a_presentation():
    groups = {form.group for form in FORMS}
    assert groups == set(PRESENTATIONS) == {column.group for column in TABLE} - {"shared", "references"}


def test_form_without_a_method_cannot_be_built():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Incomplete(Paper):
        numbers = Form.numbers

    with pytest.raises(TypeError, match="numbers"):
        Incomplete()
