"""Locating weights: folders, the hub cache, and errors."""

import json
import os
import subprocess
import sys
import threading
import time
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import pytest

from msdscore.encoders import checkpoints
from msdscore.encoders.checkpoints import locate
from msdscore.errors import WeightsError, install_line
from msdscore_torch.hub import fetch_error, find_checkpoint, find_config, find_file, wanted_files

NAME = "some-org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path):
    """Create the files that are needed to locate weights; loading is tested elsewhere."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "clip"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    return folder


def in_fresh_process(code, **environment):
    """huggingface_hub reads its environment when it is imported."""
    lines = [
        "from msdscore.errors import MSDScoreError",
        "from msdscore.encoders.registry import load_encoder",
        "from msdscore_torch.hub import find_checkpoint, find_config, find_file, find_settings",
        "try:",
        f"    {code}",
        "except MSDScoreError as error:",
        "    print(type(error).__name__, error)",
    ]
    command = [sys.executable, "-W", "error", "-c", "\n".join(lines)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.strip()


def cache_of(home, files, commit=COMMIT):
    """Write a cache in the layout of huggingface_hub."""
    repository = home / "hub" / "models--some-org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name, content in files.items():
        (snapshot / name).write_text(content)
    return snapshot


def test_folder_is_a_checkpoint(folder):
    found = find_checkpoint(str(folder), needs=[("tokenizer.json", "vocab.json")])
    assert found.folder == folder
    assert len(found.mark) == 8
    assert find_config(str(folder)).model_type() == "clip"
    assert found.signed(str(folder)) == f"model@{found.mark}"
    assert found.signed("clip-mine") == f"clip-mine@{found.mark}"


def test_hash_includes_tuned_parts_and_settings_but_not_the_bank(folder):
    first = find_checkpoint(str(folder)).mark
    (folder / "bank.safetensors").write_bytes(b"background")
    assert find_checkpoint(str(folder)).mark == first
    (folder / "trunk.safetensors").write_bytes(b"tuned")
    second = find_checkpoint(str(folder)).mark
    (folder / "trunk.safetensors").write_bytes(b"other")
    third = find_checkpoint(str(folder)).mark
    (folder / "tokenizer.json").write_text("{ }")
    assert len({first, second, third, find_checkpoint(str(folder)).mark}) == 4


@pytest.fixture
def large(folder, tmp_path, monkeypatch):
    """Write weights of 17 blocks, larger than the limit for full hashing, with a modification time in the past."""
    monkeypatch.setenv("MSDSCORE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(checkpoints, "WHOLE_UP_TO", 1 << 16)
    monkeypatch.setattr(checkpoints, "BLOCK", 1 << 16)
    now = time.time()
    monkeypatch.setattr(checkpoints.time, "time", lambda: now + 60)
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(range(256)) * 4096 + b"end")
    return weights


def flip_in_place(path, place=300_000):
    """Flip one bit, and restore size and modification time."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_flipped_bit_changes_the_hash(folder, large, monkeypatch):
    first = find_checkpoint(str(folder)).mark
    assert find_checkpoint(str(folder)).mark == first
    flip_in_place(large)
    second = find_checkpoint(str(folder)).mark
    monkeypatch.setattr(checkpoints, "WHOLE_UP_TO", 1 << 30)
    assert find_checkpoint(str(folder)).mark == second
    marks = {first, second}
    for place in (5, 400_000, 900_000, large.stat().st_size - 1):
        flip_in_place(large, place=place)
        marks.add(find_checkpoint(str(folder)).mark)
    assert len(marks) == 6


def test_sampled_blocks_detect_changes_without_new_timestamps(large, monkeypatch):
    """Disk corruption, or a file system without change times: the stored record matches the current file status."""
    first = checkpoints.file_sha256(large)
    flip_in_place(large)
    (record,) = (Path(os.environ["MSDSCORE_HOME"]) / "hashes").iterdir()
    kept, now = json.loads(record.read_text()), large.stat()
    kept["state"][2:5] = now.st_mtime_ns, now.st_ctime_ns, now.st_ino
    record.write_text(json.dumps(kept))
    monkeypatch.setattr(checkpoints, "SAMPLED", 0)
    assert checkpoints.file_sha256(large) == first
    with checkpoints.loading(verify=True):
        assert checkpoints.file_sha256(large) != first
    record.write_text(json.dumps(kept))
    monkeypatch.setattr(checkpoints, "SAMPLED", 32)
    assert checkpoints.file_sha256(large) != first


def test_large_weights_are_fully_hashed_once_until_they_change(large, monkeypatch):
    fresh = checkpoints.file_sha256(large)
    (record,) = (Path(os.environ["MSDSCORE_HOME"]) / "hashes").iterdir()
    record.write_text(record.read_text().replace(fresh, "recorded"))
    assert checkpoints.file_sha256(large) == "recorded"  # and not read again
    large.write_bytes(large.read_bytes()[::-1])
    assert checkpoints.file_sha256(large) not in (fresh, "recorded")
    record.write_text("damaged")
    assert len({checkpoints.file_sha256(large), checkpoints.file_sha256(large)}) == 1
    # A recently written file may change again without a new timestamp.
    monkeypatch.setattr(checkpoints.time, "time", lambda: large.stat().st_ctime)
    record.unlink()
    checkpoints.file_sha256(large)
    assert not record.exists()


def test_one_load_hashes_a_file_once(folder):
    with checkpoints.loading():
        first = find_checkpoint(str(folder)).mark
        flip_in_place(folder / "model.safetensors")
        assert find_checkpoint(str(folder)).mark == first
    assert find_checkpoint(str(folder)).mark != first


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_hub_files_are_verified(tmp_path, name):
    snapshot = cache_of(tmp_path, {})
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    for file, content in (("config.json", b'{"model_type": "clip"}'), ("model.safetensors", b"weights")):
        git = b"blob %d\0" % len(content) + content
        blob = blobs / (sha256(content) if file.endswith("tensors") else sha1(git)).hexdigest()
        blob.write_bytes(content)
        (snapshot / file).symlink_to(blob)
    code = f"print(find_checkpoint({NAME!r}).mark)"
    assert in_fresh_process(code, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1") == COMMIT[:8]
    flip_in_place((snapshot / name).resolve(), place=3)
    found = in_fresh_process(code, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert found.startswith("WeightsError")
    assert f"{name}: is damaged (its content differs from the hub's); delete and download it again" in found


def test_unwritable_home_is_ignored(folder, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MSDSCORE_HOME", str(tmp_path / "file"))
    os.utime(folder / "model.safetensors", ns=(10**18, 10**18))
    assert len(find_checkpoint(str(folder)).mark) == 8


def test_shards_are_found_by_their_index(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsError, match="no complete model.safetensors"):
        find_checkpoint(str(folder))
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"x")
    assert len(find_checkpoint(str(folder)).weight_files()) == 2


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_folder_is_rejected(folder, name):
    (folder / name).unlink()
    with pytest.raises(WeightsError, match=f"has no .*{name}"):
        find_checkpoint(str(folder), needs=[("tokenizer.json",)])


def test_invalid_config_is_rejected(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="config.json .*cannot be read"):
        find_config(str(folder)).model_type()
    (folder / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match="has no model_type"):
        find_config(str(folder)).model_type()
    (folder / "config.json").write_text("[]")
    with pytest.raises(WeightsError, match="config.json .*a JSON object"):
        find_config(str(folder)).model_type()


def test_missing_path_is_rejected():
    with pytest.raises(WeightsError, match="folder './no/where'"):
        find_checkpoint("./no/where")


def test_unreachable_hub_is_a_one_line_error(tmp_path):
    """Connections to port 9 are refused, which is the same error as without a network."""
    line = in_fresh_process(
        f"find_checkpoint('{NAME}', revision='v1')",
        HF_ENDPOINT="http://127.0.0.1:9",
        HF_HOME=str(tmp_path),
        HF_HUB_OFFLINE="0",
        NO_PROXY="127.0.0.1",
    )
    assert line.startswith(f"WeightsError weights of '{NAME}' are not in the Hugging Face cache and the hub cannot")
    assert line.endswith(f"hf download {NAME} --revision v1, or pass a local folder")


def test_cached_weights_load_offline_with_the_commit_in_the_signature(tmp_path):
    cache_of(tmp_path, {"config.json": "{}", "model.safetensors": "x"})
    line = in_fresh_process(
        f"found = find_checkpoint('{NAME}'); print(found.signed('short'), found.folder.name)",
        HF_HUB_OFFLINE="1",
        HF_HOME=str(tmp_path),
    )
    assert line == f"short@01234567 {COMMIT}"


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that is needed to download a model."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(self.path.partition("?")[0])
        if path.startswith(f"/api/models/{NAME}/tree/"):
            tree = [{"type": "file", "path": n, "size": len(c), "oid": n} for n, c in self.files.items()]
            self.answer(json.dumps(tree).encode())
        elif path.startswith(f"/api/models/{NAME}"):
            siblings = [{"rfilename": name} for name in self.files]
            self.answer(json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith(f"/{NAME}/resolve/"):
            name = path.partition("/resolve/")[2].partition("/")[2]
            self.asked.append(name)
            self.answer(self.files[name], etag=name)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def answer(self, body, etag="none"):
        self.send_response(200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


FILES = {
    "config.json": b'{"model_type": "clip"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"unsafe",
    "onnx/config.json": b"{}",
}


@pytest.fixture
def hub(tmp_path):
    Hub.asked.clear()
    Hub.files = FILES
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
        }
        server.shutdown()


def test_weights_are_downloaded_once_without_pickles(hub):
    code = f"c = find_checkpoint('{NAME}'); print(c.mark, *sorted(p.name for p in c.folder.iterdir()))"
    assert in_fresh_process(code, **hub) == "01234567 config.json model.safetensors tokenizer.json"
    assert in_fresh_process(code, **{**hub, "HF_HUB_OFFLINE": "1"}).startswith("01234567")


def test_family_is_determined_before_weights_are_downloaded(hub):
    assert in_fresh_process(f"print(find_config('{NAME}').model_type())", **hub) == "clip"
    assert set(Hub.asked) == {"config.json"}


def test_open_clip_config_determines_the_family(hub):
    Hub.files = {"open_clip_config.json": b"{}", "open_clip_model.safetensors": b"weights"}
    assert in_fresh_process(f"print(find_config('{NAME}').model_type())", **hub) == "open_clip"
    assert set(Hub.asked) == {"open_clip_config.json"}
    line = in_fresh_process(f"find_checkpoint('{NAME}')", **hub)
    assert line == f"WeightsError '{NAME}' has no config.json: it is not a model that msdscore can read"


def test_safest_weights_file_is_downloaded(hub):
    Hub.files = {"b.bin": b"weights", "c.pt": b"weights", "notes.txt": b"large"}
    code = f"c = find_file('{NAME}', 'a.safetensors', 'b.bin', 'c.pt'); print(c.mark, c.weight_files()[0].name)"
    assert in_fresh_process(code, **hub) == "01234567 b.bin"
    assert set(Hub.asked) == {"b.bin"}
    assert in_fresh_process(code, **{**hub, "HF_HUB_OFFLINE": "1"}) == "01234567 b.bin"
    line = in_fresh_process(f"find_file('{NAME}', 'x.pt')", **hub)
    assert line == f"WeightsError '{NAME}' has no x.pt: it is not a model that msdscore can read"


def test_settings_are_downloaded_without_weights(hub):
    code = f"print(*sorted(p.name for p in find_settings('{NAME}').folder.iterdir()))"
    assert in_fresh_process(code, **hub) == "config.json tokenizer.json"


def test_hash_of_a_single_file_ignores_other_files(folder):
    first = find_file(str(folder), "none.pt", "model.safetensors").mark
    (folder / "tokenizer.json").write_text("{ }")
    assert find_file(str(folder), "model.safetensors").mark == first
    with pytest.raises(WeightsError, match="has no none.pt"):
        find_file(str(folder), "none.pt")


def test_weights_of_an_installed_package(tmp_path, monkeypatch):
    package = tmp_path / "site" / "tiny_weights_package"
    package.mkdir(parents=True)
    (package / "a.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert locate("package:tiny_weights_package/a.bin") == str(package / "a.bin")
    with pytest.raises(WeightsError, match="_package' has no 'b.bin'"):
        locate("package:tiny_weights_package/b.bin")
    with pytest.raises(WeightsError, match=f"'no-such-package'.*{install_line('no-such-package')}"):
        locate("package:no_such_package/a.bin")
    assert locate("a.bin", base=package) == str(package / "a.bin")
    assert [locate(name, base=package) for name in ("org/model", "")] == ["org/model", ""]


def test_transformers_config_next_to_open_clip_config_is_ignored(folder):
    (folder / "config.json").write_text('{"architecture": "vit_base"}')
    (folder / "open_clip_config.json").write_text("{}")
    assert find_config(str(folder)).model_type() == "open_clip"
    (folder / "config.json").write_text('{"model_type": "clip"}')
    assert find_config(str(folder)).model_type() == "clip"


def test_model_missing_on_the_hub_is_rejected(hub):
    line = in_fresh_process("load_encoder('some-org/other')", **hub)
    assert line == (
        "WeightsError 'some-org/other' is not on the hub, or is private; check the name or run: hf auth login"
    )


def test_only_top_level_files_and_the_safest_weights_are_downloaded():
    files = ["config.json", "merges.txt", "pytorch_model.bin", "tf_model.h5", "onnx/config.json", "run.py"]
    assert wanted_files(files) == ["config.json", "merges.txt", "pytorch_model.bin"]
    assert wanted_files([*files, "model.safetensors"]) == ["config.json", "merges.txt", "model.safetensors"]
    parts = ["model.safetensors", "trunk-0.safetensors", "trunk-1.safetensors", "bank.safetensors"]
    assert wanted_files([*files, *parts]) == [
        "config.json",
        "merges.txt",
        *parts,
    ]  # an aligned encoder has more than heads
    shards = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert wanted_files([*files, *shards]) == ["config.json", "merges.txt", *shards]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("GatedRepoError", "'a/b' is gated"),
        ("RevisionNotFoundError", "'a/b' has no revision 'v9'"),
        ("RepositoryNotFoundError", "'a/b' is not on the hub"),
        ("ReadTimeout", r"cannot be reached \(ReadTimeout"),
    ],
)
def test_hub_errors_are_reported(kind, message):
    with pytest.raises(WeightsError, match=message):
        raise fetch_error("a/b", "v9", type(kind, (Exception,), {})())
