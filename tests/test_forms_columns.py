"""The table of columns, and forms of other packages: one file with a class, and a row of the registry."""

import importlib
import json
import math
import sys
from dataclasses import dataclass
from textwrap import dedent

import pyarrow.parquet as pq
import pytest
from PIL import Image

from command_line import invoke
from msdscore import Paper, Scorer, register_form
from msdscore.errors import ConfigError, UnknownNameError
from msdscore.forms import registry
from msdscore.forms.base import Form
from msdscore.forms.registry import COLUMNS, columns_logged, columns_shown, number_columns

FOREIGN = '''
    """Nearest patches: the mean over the tokens of the cosine with the nearest patch."""

    from dataclasses import dataclass

    import numpy as np

    from msdscore.core.arrays import float64, take_rows, to_numpy
    from msdscore.core.mixture import FitSettings, Mixture
    from msdscore.forms.base import Column, Form, PointTerms, units_of


    @dataclass(frozen=True)
    class Cosines:
        nearest: np.ndarray  # pairs by tokens
        image_mixtures: Mixture


    @dataclass(frozen=True, kw_only=True)
    class Nearest(Form):
        name = "MSD-N"
        table = (Column("nearest", "nearest", "mean cosine of a token with its nearest patch", ".3f", shown=16),)

        weight: float = 0.5
        temperature: float = 0.2

        @property
        def image_fit(self):
            return FitSettings(components=3, kappa=20.0)

        def facts(self, bank=None):
            return {"form": "nearest", "w": str(self.weight)}

        def terms(self, sides, bank):
            patches = take_rows(sides.images.points, sides.image_of)
            tokens = take_rows(sides.texts.points, sides.text_of)
            cosines = np.where(take_rows(sides.images.mask, sides.image_of)[:, None, :], tokens @ patches.mT, -1.0)
            return Cosines(cosines.max(axis=2), sides.fit(sides.images, self.image_fit))

        def numbers(self, measured):
            sizes = [len(layout.spans) for layout in measured.tokens]
            similarity = float64(measured.similarity)
            nearest = np.array([float64(row)[:size].mean() for row, size in zip(measured.terms.nearest, sizes)])
            return {"similarity": similarity, "nearest": nearest, "msd": similarity + self.weight * nearest}

        def units(self, measured, pair):
            values, words = measured.terms.nearest[pair], self.words(measured, pair)
            facts, count = {}, len(measured.tokens[pair].spans)
            for number, word in enumerate(words):
                if word.tokens:
                    total = float(values[list(word.tokens)].sum())
                    facts[number] = {"gap": -total / len(word.tokens), "term": self.weight * total / count}
            return units_of(words, facts)

        def point_terms(self, measured, pair, patches, tokens):
            count = int(to_numpy(tokens).sum())
            support = -self.weight * float64(measured.terms.nearest[pair])[:count] / count
            return PointTerms(np.zeros(int(to_numpy(patches).sum())), support, 0.0, np.full(count, 1 / count))


    FORM = Nearest()
'''
CAPTIONS = ["a red square", "a blue dog"]


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    (tmp_path / "nearest_patch.py").write_text(dedent(FOREIGN), encoding="utf-8")
    for name in ("red", "blue"):
        Image.new("RGB", (64, 64), name).save(tmp_path / f"{name}.png")
    rows = [{"image": "red.png", "caption": text} for text in CAPTIONS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_used", dict(registry._used))  # other tests do not know these forms
    yield tmp_path
    sys.modules.pop("nearest_patch", None)


def test_positions_are_distinct():
    for name in ("shown", "logged"):
        positions = [getattr(column, name) for column in COLUMNS.values() if getattr(column, name)]
        assert len(positions) == len(set(positions))
    assert (columns_shown()[:3], columns_logged()[:2]) == (("ref_msd", "soft_msd", "msd"), ("msd", "match"))


def test_every_number_of_the_table_is_one_of_a_score():
    score = Scorer("toy").score(Image.new("RGB", (64, 64), "red"), "a red square")
    assert all(isinstance(getattr(score, name), float | int) for name in number_columns(tuple(COLUMNS)))


def test_form_of_another_file_is_used_by_every_door(foreign):
    scorer = Scorer("toy", "nearest_patch:FORM")
    assert scorer.signature.startswith("msd-n|enc:toy@1|form:nearest|w:0.5|")
    scores = scorer.rank("red.png", CAPTIONS)
    assert scores.best == "a red square"
    assert scores[0].nearest == pytest.approx((scores[0].msd - scores[0].similarity) / 0.5)
    assert "MSD-N" in str(scores[0])
    assert "nearest" in str(scores)
    (row,) = scorer.stream([("red.png", "a red square")])
    assert row.nearest == pytest.approx(scores[0].nearest)

    assert (
        "nearest" in invoke("score", "red.png", "a red square", "-e", "toy", "--form", "nearest_patch:Nearest").output
    )
    invoke(
        "score", "rows.jsonl", "-e", "toy", "--form", "nearest_patch:FORM", "-o", "scores.parquet", "--worst-words", "1"
    )
    table = pq.read_table("scores.parquet")
    assert table["nearest"].to_pylist() == pytest.approx([score.nearest for score in scores])
    assert math.isfinite(table["msd"][0].as_py())
    assert [words[0] for words in table["worst_words"].to_pylist()] == [
        scorer.explain("red.png", text).ranked[0].text for text in CAPTIONS
    ]


def test_form_of_another_file_is_explained_and_reported(foreign):
    scorer = Scorer("toy", "nearest_patch:FORM")
    both = scorer.explain("red.png", CAPTIONS)
    words = sum(unit.term for unit in both[0].words if unit.term is not None)
    assert words == pytest.approx(both[0].score.msd - both[0].score.similarity, abs=1e-6)
    assert both[0].to_dict()["score"]["nearest"] == both[0].score.nearest
    assert "least supported" in str(both[1])
    for suffix in (".png", ".html", ".json"):
        both.save(foreign / f"why{suffix}")
    scorer.score_file("rows.jsonl", "scores.parquet")
    invoke("report", "scores.parquet", "-e", "toy", "--form", "nearest_patch:FORM", "-o", "report.html")
    page = (foreign / "report.html").read_text(encoding="utf-8")
    assert '"nearest"' in page
    assert "Worst captions" in page


def test_form_of_another_package_has_a_name(foreign):
    folder = foreign / "nearest_patch-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: nearest-patch\nVersion: 1\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text("[msdscore.forms]\nnearest = nearest_patch:rows\n", encoding="utf-8")
    source = dedent(FOREIGN) + (
        "\n\ndef rows():\n    from msdscore.forms.registry import FormRow\n\n    return FormRow('nearest', FORM)\n"
    )
    (foreign / "nearest_patch.py").write_text(source, encoding="utf-8")
    importlib.invalidate_caches()
    assert Scorer("toy", "nearest").signature.startswith("msd-n|")


def test_columns_of_two_forms_cannot_have_two_meanings():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Doubled(Paper):
        table = (Paper.table[0]._replace(meaning="something else"),)

    with pytest.raises(ConfigError, match="coverage"):
        register_form("doubled", Doubled())
    with pytest.raises(UnknownNameError, match="evidnce"):
        Scorer("toy", "evidnce")


def test_form_without_a_method_cannot_be_built():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Incomplete(Paper):
        numbers = Form.numbers

    with pytest.raises(TypeError, match="numbers"):
        Incomplete()
