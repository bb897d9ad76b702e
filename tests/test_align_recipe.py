"""Recipes: loading, validation, changes and TOML round trips."""

import tomllib
from dataclasses import replace

import pytest

from align_data import recipe
from msdscore.errors import ConfigError, InputError, UnknownNameError
from msdscore_lab.align.recipe import Recipe, dump_recipe, list_recipes, load_recipe
from msdscore_torch.aligned.towers import read_spec
from train_mini.recipe import MiniRecipe, load_mini


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipes_survive_a_round_trip(name):
    loaded = load_recipe(Recipe, name)
    assert loaded.name == name
    assert read_spec(Recipe, tomllib.loads(dump_recipe(loaded))) == loaded


def test_recipe_mini_is_only_available_in_its_trainer():
    mini = load_mini()
    assert read_spec(MiniRecipe, tomllib.loads(dump_recipe(mini))) == mini
    with pytest.raises(UnknownNameError, match="'mini'.*paper, paper-llama"):
        load_recipe(Recipe, "mini")
    with pytest.raises(UnknownNameError, match="'loss.evidence'"):
        load_recipe(Recipe, "paper", changes=["loss.evidence=1"])


def test_paper_llama_uses_text_tokens_of_the_language_model():
    llama, paper = load_recipe(Recipe, "paper-llama"), load_recipe(Recipe, "paper")
    assert (llama.text.kind, llama.text.source) == ("embeddings", paper.lm.source)
    assert (llama.heads.image.kind, llama.heads.text.kind, llama.lm.prefix) == ("linear", "none", "head")
    assert (llama.image, llama.loss, llama.train) == (paper.image, paper.loss, paper.train)
    assert replace(llama.lm, prefix="linear") == paper.lm


def test_paper_recipe_has_the_settings_of_the_paper():
    paper = load_recipe(Recipe, "paper")
    assert (paper.image.source, paper.text.source) == ("clip-l14", "clip-l14")
    assert (paper.heads.image.kind, paper.heads.text.kind, paper.heads.pool) == ("linear", "linear", "mean")
    assert paper.loss.contrastive == paper.loss.reconstruction == 1.0
    assert "llama-7b" in paper.lm.source


def test_changes_are_parsed_as_toml_values_or_texts():
    changed = load_mini(changes=["train.steps=100", "heads.image.kind=attention", "text.levels=[0, 6]", "train.lr=1"])
    assert changed.train.steps == 100
    assert changed.heads.image.kind == "attention"
    assert changed.text.levels == (0, 6)
    assert changed.train.lr == 1.0


def test_quotes_and_unicode_survive_a_round_trip(tmp_path):
    odd = recipe(description='says "ü\\\n" \x7f')
    path = tmp_path / "odd.toml"
    path.write_text(dump_recipe(odd), encoding="utf-8")
    assert load_recipe(Recipe, path) == odd


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ("train.step=5", UnknownNameError, r"'train.step'.*'train.steps'"),
        ("train.steps=many", ConfigError, r"train.steps .*got 'many'"),
        ("train.lr=-1", ConfigError, r"train: epochs and lr"),
        ("loss.reconstruction=1", ConfigError, r"set lm.source"),
        (
            "heads.image.kind=cubic",
            UnknownNameError,
            r"heads.image: .*'cubic'.*mlp",
        ),
        ("image.kind=jpeg", UnknownNameError, r"image: .*'jpeg'"),
        ("heads.pool=model", ConfigError, r"heads.pool 'model' needs"),
        ("steps", ConfigError, r"expected a change .*got 'steps'"),
        ("name.x=1", ConfigError, r"'name.x' .*'name'"),
        ("heads.image=3", ConfigError, r"heads.image .*got 3"),
    ],
)
def test_invalid_changes_are_rejected(change, kind, message, tmp_path):
    small = tmp_path / "small.toml"
    small.write_text(dump_recipe(recipe(image={"kind": "mini", "source": "lite2"})), encoding="utf-8")
    with pytest.raises(kind, match=message) as caught:
        load_recipe(Recipe, small, changes=[change])
    assert "\n" not in str(caught.value)


def test_unknown_recipes_and_invalid_files_are_rejected(tmp_path):
    with pytest.raises(UnknownNameError, match="'papr'.*'paper'"):
        load_recipe(Recipe, "papr")
    with pytest.raises(InputError, match="'none.toml'"):
        load_recipe(Recipe, "none.toml")
    (tmp_path / "bad.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(InputError, match="not valid TOML"):
        load_recipe(Recipe, tmp_path / "bad.toml")
    (tmp_path / "short.toml").write_text('name = "x"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="'image' and 'text'"):
        load_recipe(Recipe, tmp_path / "short.toml")
