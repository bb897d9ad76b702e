"""What hostile files must not do: run code, pass as other weights, or reach what they should not."""

import ast
import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import msdscore
from msdscore.encoders.loading.hashing import SUMS, verify_sums, write_sums
from msdscore.errors import MSDScoreError, WeightsError

SOURCE = Path(msdscore.__file__).parent
WEIGHTS = SOURCE / "encoders" / "mini" / "weights"


class Bomb:
    """Leaves a file behind wherever it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


def bomb(path, trace):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps({"weights": Bomb(trace)}))
    return path


def test_the_bomb_works(tmp_path):
    pickle.loads(bomb(tmp_path / "bomb", tmp_path / "trace").read_bytes())
    assert (tmp_path / "trace").exists()


def planted(tmp_path, trace):
    """Every reader of files that might hold a pickle, with one in the place of the file."""
    from msdscore.encoders.loading.banks import read_bank
    from msdscore.encoders.loading.tensors import read_tensors
    from msdscore.encoders.registry import load_encoder
    from msdscore.io.images import open_image
    from msdscore.io.inputs.rows import open_rows

    aligned = tmp_path / "aligned"
    shutil.copytree(WEIGHTS, aligned)
    (aligned / SUMS).unlink(missing_ok=True)
    bomb(aligned / "model.safetensors", trace)
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([Bomb(trace)], dtype=object), allow_pickle=True)
    yield "encoder folder", lambda: load_encoder(str(aligned), device="cpu")
    for suffix in (".safetensors", ".bin", ".pt", ".pth"):
        path = bomb(tmp_path / f"weights{suffix}", trace)
        yield f"weights{suffix}", lambda path=path: read_tensors([path])
    zipped = tmp_path / "zipped.bin"
    torch.save({"weight": Bomb(trace)}, zipped)
    yield "torch.save", lambda: read_tensors([zipped])
    yield "bank", lambda: read_bank(bomb(tmp_path / "bank.safetensors", trace))
    yield "picture", lambda: open_image(bomb(tmp_path / "picture.jpg", trace))
    for suffix in (".parquet", ".jsonl", ".json", ".csv", ".pkl", ".npy"):
        path = bomb(tmp_path / f"rows{suffix}", trace)
        yield f"rows{suffix}", lambda path=path: list(open_rows(path).read())
    yield "npy of objects", lambda: list(open_rows(objects).read())


def test_a_planted_pickle_is_never_loaded(tmp_path):
    trace, tried = tmp_path / "trace", []
    for name, read in planted(tmp_path, trace):
        with suppress(MSDScoreError):  # a malformed line of a file of rows is a row with an error
            read()
        assert not trace.exists(), name
        tried.append(name)
    assert len(tried) == 15


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}


def test_no_module_unpickles_or_runs_code_of_a_checkpoint():
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert not names & {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}, path
        for name, words in calls(tree):
            if name == "torch.load":
                assert words.get("weights_only") == "True", path
            assert words.get("trust_remote_code", "False") == "False", path
            assert words.get("allow_pickle", "False") == "False", path
            assert name not in {"eval", "exec", "os.system", "pickle.load", "pickle.loads"}, path
            assert words.get("shell", "False") == "False", path


def test_shipped_weights_are_those_of_their_list():
    verify_sums(WEIGHTS)
    listed = {line.split("  ")[1] for line in (WEIGHTS / SUMS).read_text().splitlines()}
    assert listed == {path.name for path in WEIGHTS.iterdir()} - {SUMS}


@pytest.mark.parametrize("how", ["changed", "missing"])
def test_damaged_weights_are_refused(tmp_path, how):
    folder = tmp_path / "mini"
    shutil.copytree(WEIGHTS, folder)
    path = folder / "trunk.safetensors"
    if how == "changed":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1  # one bit of one weight: the file still loads
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(WeightsError, match=rf"trunk.safetensors: is {'damaged' if how == 'changed' else 'missing'} \("):
        verify_sums(folder)
    from msdscore.encoders.registry import load_encoder

    with pytest.raises(WeightsError, match="trunk.safetensors: is "):
        load_encoder(str(folder), device="cpu")


def test_a_list_names_files_of_its_own_folder_alone(tmp_path):
    (tmp_path / "one").write_text("1")
    write_sums(tmp_path)
    verify_sums(tmp_path)
    (tmp_path / SUMS).write_text((tmp_path / SUMS).read_text().replace("one", "../../etc/passwd"))
    with pytest.raises(WeightsError, match="passwd: is missing"):
        verify_sums(tmp_path)
