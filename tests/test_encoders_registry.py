"""Encoder registry: rows, plugins, folders and unknown names."""

import json
import os
import re
import subprocess
import sys
import textwrap
import warnings
from copy import deepcopy

import pytest
import torch

from msdscore.encoders import registry
from msdscore.encoders.registry import (
    EncoderRow,
    PluginWarning,
    find_row,
    list_encoders,
    load_encoder,
    register_encoder,
)
from msdscore.errors import ConfigError, UnknownNameError
from msdscore.registry import resolve
from msdscore_torch import backbone
from msdscore_torch.backbone import place

TOY = "msdscore.encoders.toy:load_toy"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Return a function that installs a package with one entry point."""

    def install(name, body, target):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[msdscore.encoders]\n{name} = {name}:{target}\n")
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(body))

    monkeypatch.syspath_prepend(tmp_path)
    return install


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(registry, "ENCODERS", deepcopy(registry.ENCODERS))


def test_rows_are_complete_and_resolve():
    rows = list_encoders()
    assert {"toy", "clip-b32", "clip-b16", "clip-l14", "clip-l14-336", "clip-h14", "clip-bigg14"} <= {
        row.name for row in rows
    }
    for row in rows:
        assert callable(resolve(row.loader, row.name))
        assert row.licence != "unknown"
        assert row.trained_on != "unknown"
        assert row.family in ("toy", "mini") or (row.source and row.parameters and row.context)


@pytest.mark.parametrize(
    ("name", "words"),
    [("blip-itm-base", "COCO"), ("remoteclip-l14", "RSICD"), ("biomedclip", "ROCOv2"), ("llava-1.5-7b", "COCO")],
)
def test_rows_note_benchmark_images_in_the_training_data(name, words):
    assert words in find_row(name).warning


def test_backbones_of_the_paper_have_short_names(tmp_path):
    names = re.findall(
        r"\S+",
        "clip-l14 clip-h14 clip-bigg14 longclip-l tinyclip-40m mobileclip-s1 siglip-so400m siglip2-so400m "
        "siglip2-so400m-naflex blip-itm-base biomedclip remoteclip-l14 llava-1.5-7b llava-onevision-7b llava-critic-7b "
        "qwen2.5-vl-7b",
    )
    code = (
        "import sys; from msdscore import load_encoder; from msdscore.errors import WeightsError\n"
        "for name in sys.argv[1:]:\n"
        "    try: load_encoder(name, device='cpu')\n"
        "    except WeightsError as error: print(error)\n"
    )
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}  # read when the hub's library is imported
    done = subprocess.run([sys.executable, "-c", code, *names], env=offline, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(names), done.stdout
    assert all("offline mode" in line and ": hf download " in line for line in lines)


def test_a_folder_loads_by_its_family(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    row = find_row(str(tmp_path))
    assert (row.family, row.source) == ("clip", str(tmp_path))


def test_unknown_model_type_gets_a_suggestion(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clap"}))
    with pytest.raises(UnknownNameError, match="'clap'.*'clip'"):
        load_encoder(str(tmp_path))


def test_a_registered_encoder_loads_with_its_own_options():
    register_encoder(EncoderRow(name="mine", loader=TOY, family="toy"))
    assert load_encoder("mine").name == "mine"
    register_encoder(EncoderRow(name="odd", loader=TOY, family="toy", options={"size": 3}))
    with pytest.raises(ConfigError, match="'odd' has no options, got size"):
        load_encoder("odd")


def test_duplicate_name_is_rejected():
    with pytest.raises(ConfigError, match="an encoder named 'toy' exists"):
        register_encoder(EncoderRow(name="toy", loader="other:thing", family="other"))


def test_registering_the_same_row_twice_is_harmless():
    row = EncoderRow(name="mine", loader=TOY, family="toy")
    register_encoder(row)
    register_encoder(row)
    assert [item.name for item in list_encoders()].count("mine") == 1


@pytest.mark.parametrize("loader", ["no_such_module:Thing", "msdscore.encoders.toy:Nothing", "nocolon"])
def test_loader_that_cannot_be_imported_is_reported(loader):
    register_encoder(EncoderRow(name="mine", loader=loader, family="x"))
    with pytest.raises(ConfigError, match=f"'{loader}' of encoder 'mine'"):
        load_encoder("mine")


BODY = f"""
from msdscore.encoders.registry import EncoderRow
ROW = EncoderRow(name="from-plugin", loader="{TOY}", family="toy")
SAME = EncoderRow(name="toy", loader="evil:load", family="toy")
def rows():
    yield ROW
    yield EncoderRow(name="second", loader="{TOY}", family="toy")
def broken():
    raise RuntimeError("no luck today")
"""


@pytest.mark.parametrize("target", ["ROW", "rows"])
def test_a_plugin_adds_rows(plugin, target):
    plugin("goodplug_" + target.lower(), BODY, target)
    assert load_encoder("from-plugin").name == "from-plugin"
    assert ("second" in [row.name for row in list_encoders()]) == (target == "rows")


def test_broken_plugin_is_ignored_with_a_warning(plugin):
    plugin("brokenplug", BODY, "broken")
    plugin("wrongplug", "ROW = 3", "ROW")
    plugin("fineplug", BODY, "ROW")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names = [row.name for row in list_encoders()]
    assert "from-plugin" in names
    assert "clip-l14" in names
    assert sorted(str(item.message) for item in caught) == [
        "encoder plugin 'brokenplug' (brokenplug:broken) is ignored: RuntimeError: no luck today",
        "encoder plugin 'wrongplug' (wrongplug:ROW) is ignored: TypeError: expected EncoderRow objects, got int",
    ]


def test_built_in_encoders_load_without_importing_plugins(plugin):
    plugin("brokenplug2", BODY, "broken")
    assert load_encoder("toy").name == "toy"


def test_plugin_cannot_replace_a_built_in_encoder(plugin):
    plugin("greedyplug", BODY, "SAME")
    with pytest.warns(PluginWarning, match="'toy' is ignored"):
        rows = {row.name: row for row in list_encoders()}
    assert rows["toy"].loader == TOY


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("clip-vit-base-patch32", "clip-b32"),
        ("clip_vit_large_patch14_336", "clip-l14-336"),
        ("ViT-B/32", "clip-b32"),
        ("ViT-L/14@336", "clip-l14-336"),
        ("siglip-so400m-patch14-384", "siglip-so400m"),
        ("Qwen2.5-VL-7B", "qwen2.5-vl-7b"),
        ("blip-itm-base-coco", "blip-itm-base"),
        ("clip-vit-base-patch23", "clip-b32"),
    ],
)
def test_other_names_suggest_the_short_name(name, meant):
    with pytest.raises(UnknownNameError, match=f"'{re.escape(name)}'.*'{re.escape(meant)}'"):
        find_row(name)


@pytest.mark.parametrize("device", ["mps", "xla", "meta", "xpu", "cuda:99"])
def test_unavailable_device_is_rejected(device):
    if (device == "mps" and torch.backends.mps.is_available()) or (device == "xpu" and torch.xpu.is_available()):
        pytest.skip("this machine has the device")
    with pytest.raises(ConfigError, match=f"device '{device}' is not"):
        place(device, "auto")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_on_an_unsupported_cpu_is_rejected(dtype, monkeypatch):
    monkeypatch.setattr(backbone, "cpu_computes", lambda dtype: dtype == torch.float32)
    with pytest.raises(ConfigError, match=f"no instructions for {dtype}"):
        load_encoder("mini", device="cpu", dtype=dtype)
    assert place("cpu", "auto").dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("os:system", "cannot be called without command"),
        ("os:getcwd", "got str"),
        ("builtins:dict", "got <class 'dict'>"),
    ],
)
def test_imported_names_that_are_no_encoders_are_rejected(name, problem):
    with pytest.raises(ConfigError, match=f"{name}: .*{problem}"):
        load_encoder(name)
