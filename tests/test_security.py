"""Untrusted files must not run code, replace weights, or access other files."""

import ast
import pickle
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch

import msdscore
from command_line import invoke
from hostile import Bomb
from msdscore.encoders.checkpoints import CHECKS, SUMS, loading, verify_sums, write_sums
from msdscore.errors import MSDScoreError, WeightsError
from tar_shards import tar_of

SOURCE = Path(msdscore.__file__).parent
WEIGHTS = Path(pytest.importorskip("msdscore_mini", reason="needs the weights of mini").__file__).parent


def bomb(path, trace):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps({"weights": Bomb(trace)}))
    return path


def test_pickle_bomb_runs_if_unpickled(tmp_path):
    pickle.loads(bomb(tmp_path / "bomb", tmp_path / "trace").read_bytes())
    assert (tmp_path / "trace").exists()


def planted(tmp_path, trace):
    """Yield every reader of files that could contain a pickle, with a pickle bomb as the file."""
    from msdscore.encoders.banks import read_bank
    from msdscore.encoders.registry import load_encoder
    from msdscore.io.images import open_image
    from msdscore.rows.files import open_rows
    from msdscore_torch.tensors import read_tensors

    aligned = shutil.copytree(WEIGHTS, tmp_path / "aligned")
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


def test_pickles_are_never_loaded(tmp_path):
    trace, tried = tmp_path / "trace", []
    for name, read in planted(tmp_path, trace):
        with suppress(MSDScoreError):  # a malformed line is a failed row
            read()
        assert not trace.exists(), name
        tried.append(name)
    assert len(tried) == 15


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}


def test_source_has_no_unsafe_loading():
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


def test_shipped_weights_match_their_manifest():
    verify_sums(WEIGHTS)
    listed = {line.split("  ")[1] for line in (WEIGHTS / SUMS).read_text().splitlines()}
    assert listed >= {
        path.name for path in WEIGHTS.iterdir() if path.suffix in (".safetensors", ".onnx", ".txt", ".json")
    } - {"meta.json"}


@pytest.mark.parametrize("how", ["changed", "missing"])
def test_damaged_weights_are_rejected(tmp_path, how):
    folder = shutil.copytree(WEIGHTS, tmp_path / "mini")
    path = folder / "trunk-1.safetensors"
    if how == "changed":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1  # one bit of one weight; the file is still loadable
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(
        WeightsError, match=rf"trunk-1.safetensors: is {'damaged' if how == 'changed' else 'missing'} \("
    ):
        verify_sums(folder)
    from msdscore.encoders.registry import load_encoder

    with pytest.raises(WeightsError, match="trunk-1.safetensors: is "):
        load_encoder(str(folder), device="cpu")


def test_list_of_checksums_saves_hashing_but_not_the_check(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    write_sums(tmp_path)
    sums, checks = ((tmp_path / name).read_text() for name in (SUMS, CHECKS))
    path.write_bytes(b"Weights")
    with pytest.raises(WeightsError, match="is damaged"):
        verify_sums(tmp_path)
    # A list that was changed together with the file is trusted, except by `verify`.
    crc = f"{crc32(b'Weights'):08x}"
    (tmp_path / CHECKS).write_text(crc + checks[8:])
    verify_sums(tmp_path)
    with loading(verify=True), pytest.raises(WeightsError, match="is damaged"):
        verify_sums(tmp_path)
    # One digit of a digest, in one of the lists.
    path.write_bytes(b"weights")
    (tmp_path / CHECKS).write_text(checks)
    (tmp_path / SUMS).write_text(("0" if sums[0] != "0" else "1") + sums[1:])
    with pytest.raises(WeightsError, match="is damaged"):
        verify_sums(tmp_path)


def test_manifest_rejects_files_of_other_folders(tmp_path):
    (tmp_path / "one").write_text("1")
    write_sums(tmp_path)
    verify_sums(tmp_path)
    (tmp_path / SUMS).write_text((tmp_path / SUMS).read_text().replace("one", "../../etc/passwd"))
    with pytest.raises(WeightsError, match="passwd: is missing"):
        verify_sums(tmp_path)


def score_shard_of(folder, members, links=()):
    """Score an untrusted tar with the command, into a folder next to it."""
    (folder / "in").mkdir()
    shard = tar_of(folder / "in" / "00000.tar", *members.items())
    with tarfile.open(shard, "a") as archive:
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    invoke("score", str(shard), "-o", str(folder / "out"), "-e", "toy")
    return folder / "out"


def test_tar_members_cannot_escape(tmp_path):
    (tmp_path / "secret.txt").write_text("a secret caption")
    members = {"../../evil.jpg": b"x", "../../evil.txt": b"a caption", "/etc/evil.txt": b"x"}
    out = score_shard_of(tmp_path, members, links=[("a.txt", str(tmp_path / "secret.txt"))])
    made = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert made <= {"in", "out", "secret.txt"}
    assert not Path("/etc/evil.txt").exists()
    assert not (tmp_path.parent / "evil.txt").exists()
    assert b"a secret caption" not in b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())


@pytest.mark.parametrize("place", ["secret.txt", "../secret.txt", "http://127.0.0.1:9/a.png", "file:///etc/hostname"])
def test_rows_do_not_reveal_other_files(tmp_path, place):
    import json

    (tmp_path / "rows").mkdir()
    for folder in (tmp_path, tmp_path / "rows"):
        (folder / "secret.txt").write_text("the secret text")
    (tmp_path / "rows" / "rows.jsonl").write_text(json.dumps({"image": place, "caption": "a dog"}))
    words = ["score", str(tmp_path / "rows" / "rows.jsonl"), "-o", str(tmp_path / "out.jsonl"), "-e", "toy"]
    assert invoke(*words).exit_code == 3
    written = (tmp_path / "out.jsonl").read_text()
    assert json.loads(written)["error"]
    assert "the secret text" not in written
