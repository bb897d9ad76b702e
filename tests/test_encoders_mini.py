"""The default encoder `mini`: backbones equal timm and transformers, files are verified, vectors are valid."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from msdscore import Evidence, Scorer, load_encoder, threads
from msdscore.encoders import mini
from msdscore.encoders.banks import content_digest
from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.checkpoints import locate
from msdscore.encoders.mini import FUSED_GRAPHS, GRAPHS, OnnxEncoder
from msdscore.encoders.registry import find_row
from msdscore.errors import ConfigError, MissingExtraError, WeightsError
from msdscore.text.words import STOP_WORDS
from msdscore_torch.aligned import lite2
from msdscore_torch.aligned.lite2 import load_lite2
from msdscore_torch.aligned.minilm import base_file, load_minilm
from msdscore_torch.tensors import read_tensors, widened
from test_scoring import make_image

pytest.importorskip("msdscore_mini", reason="needs the weights of mini")


@cache
def encoder(runtime="auto"):
    return load_encoder("mini", device="cpu", runtime=runtime)


def base_lite2():
    return load_lite2(widened(read_tensors([base_file(lite2.BASE)])))


def test_fused_convolutions_equal_separate_calls(monkeypatch):
    network = base_lite2()
    pixels = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        fused = network(pixels)
        monkeypatch.setattr(lite2, "_fused", lambda: None)
        apart = network(pixels)
    # Identical bits on most machines, but torch may select other kernels. Features are up to 6.
    assert all(torch.allclose(one, other, atol=2e-4) for one, other in zip(fused, apart, strict=True))
    with torch.enable_grad():
        learning = network(pixels)
    assert all(torch.allclose(one, other, atol=2e-4) for one, other in zip(learning, apart, strict=True))


def test_lite2_equals_timm_on_the_same_weights():
    timm = pytest.importorskip("timm", reason="needs timm to compare with")
    from export_mini import fold_lite2

    torch.manual_seed(0)
    theirs = timm.create_model("tf_efficientnet_lite2", pretrained=False)
    theirs.train()(torch.randn(8, 3, 96, 96))  # statistics of batch norms other than 0 and 1
    pixels = torch.randn(2, 3, 96, 128)
    renamed = {f"other.{name}": tensor for name, tensor in theirs.state_dict().items()}
    with torch.no_grad():
        expected = theirs.eval().forward_features(pixels)
        for state in (theirs.state_dict(), renamed):  # by name, or by order
            # Folding a batch norm changes rounding; features are up to 6.
            assert torch.allclose(load_lite2(fold_lite2(state))(pixels)[2], expected, atol=2e-4)


def test_minilm_equals_transformers_on_the_same_weights():
    from transformers import BertConfig, BertModel

    from export_mini import rename_bert

    torch.manual_seed(0)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    theirs = BertModel(BertConfig(**shape), add_pooling_layer=False).eval()
    ours = load_minilm(rename_bert(theirs.state_dict())).eval()
    ids = torch.randint(1000, 20000, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    with torch.no_grad():
        states = theirs(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        for mine, other in zip(ours(ids, mask), states, strict=True):
            assert torch.allclose(mine[mask], other[mask], atol=2e-5)


LONG = "A dog runs along the beach while the sun goes down behind the hills. " * 60
TEXTS = [
    "a dog",
    "",
    "the",
    "two young men in red shirts play football",
    LONG,
    "ein Hund 🐕 läuft",
    "犬が走る",
    "xqzvbn",
]


def test_onnx_runtime_and_torch_compute_the_same_vectors():
    ours, theirs = encoder(), encoder("torch")
    assert isinstance(ours, OnnxEncoder)
    assert not isinstance(theirs, OnnxEncoder)
    assert ours.signature == theirs.signature
    images = [make_image(number, (90, 60 + number)) for number in range(3)]
    batches = [(prepare_and_encode(ours, images), prepare_and_encode(theirs, images))]
    batches.append((ours.encode_texts(TEXTS), theirs.encode_texts(TEXTS)))
    for batch, other in batches:
        assert batch.points.dtype == np.float32
        assert np.allclose(batch.points, other.points.numpy(), atol=1e-5)
        assert np.allclose(batch.pooled, other.pooled.numpy(), atol=1e-5)
        assert np.array_equal(batch.mask, other.mask.numpy())
        assert batch.filled == other.filled
    for one, other in zip(batches[0][0].layout, batches[0][1].layout, strict=True):
        assert np.array_equal(one.boxes, other.boxes)
    assert batches[1][0].layout == batches[1][1].layout
    assert np.allclose(ours.encode_sentences(TEXTS), theirs.encode_sentences(TEXTS).numpy(), atol=1e-5)


@pytest.mark.parametrize("options", [{"long_text": "cut"}, {"jpeg": "reduced"}])
def test_options_are_the_same_on_both_runtimes(options):
    ours, theirs = (load_encoder("mini", device="cpu", runtime=runtime, **options) for runtime in ("onnx", "torch"))
    assert ours.signature == theirs.signature
    assert ours.preprocessing.reduced == theirs.preprocessing.reduced
    assert ours.encode_texts([LONG]).layout == theirs.encode_texts([LONG]).layout


def test_other_devices_dtypes_and_options_need_torch(monkeypatch):
    with pytest.raises(ConfigError, match="runtime='onnx' needs device='cpu'"):
        load_encoder("mini", device="cpu", dtype="bfloat16", runtime="onnx")
    with pytest.raises(ConfigError, match="tensorflow"):
        load_encoder("mini", runtime="tensorflow")
    real = mini.find_spec
    monkeypatch.setattr(mini, "find_spec", lambda name: None if name == "msdscore_torch" else real(name))
    assert isinstance(load_encoder("mini", device="cpu"), OnnxEncoder)
    for options in ({"device": "cuda"}, {"device": "cpu", "dtype": "bfloat16"}, {"runtime": "torch"}):
        with pytest.raises(MissingExtraError, match=r"\[torch\]"):
            load_encoder("mini", **options)


def test_number_of_threads_can_be_changed_between_calls():
    with threads.restored():
        threads.use(2)
        encoder = load_encoder("mini")
        vectors = []
        for count in (2, 1, 2):
            threads.use(count)
            vectors.append(encoder.encode_texts(["a red square on a table"]).pooled)
    np.testing.assert_allclose(vectors[1], vectors[0], atol=1e-6)
    np.testing.assert_array_equal(vectors[2], vectors[0])


def test_encoder_can_be_pickled():
    expected = encoder().encode_texts(TEXTS)
    assert np.array_equal(pickle.loads(pickle.dumps(encoder())).encode_texts(TEXTS).points, expected.points)


FORKED = """
import os, sys
import numpy as np
from PIL import Image
from msdscore import load_encoder
from msdscore.encoders.base import prepare_and_encode
encoder, texts, image = load_encoder("mini", device="cpu"), ["a dog", "two cats"], Image.new("RGB", (64, 64), "red")
before = encoder.encode_texts(texts).points, prepare_and_encode(encoder, [image]).points
child = os.fork()
if not child:
    after = encoder.encode_texts(texts).points, prepare_and_encode(encoder, [image]).points
    sys.exit(0 if all(map(np.array_equal, before, after)) else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or ("torch" in sys.modules))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_computes_and_exits_and_torch_is_not_imported():
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    assert subprocess.run([sys.executable, "-c", FORKED], timeout=120, check=False, env=environment).returncode == 0


@pytest.mark.parametrize(("exported", "fused"), list(zip(GRAPHS, FUSED_GRAPHS, strict=True)))
def test_fused_graphs_compute_the_vectors_of_the_exported_ones(exported, fused):
    from export_mini import compare

    folder = Path(locate("package:msdscore_mini"))
    compare(folder / exported, folder / fused)


@pytest.mark.parametrize(("exported", "fused"), list(zip(GRAPHS, FUSED_GRAPHS, strict=True)))
def test_fused_graphs_are_derived_from_the_exported_ones(exported, fused):
    pytest.importorskip("onnx", reason="needs onnx to change graphs")
    from fuse_mini import fused as derive

    folder = Path(locate("package:msdscore_mini"))
    assert derive(folder / exported) == (folder / fused).read_bytes()


def test_graphs_are_opened_when_they_are_needed(tmp_path):
    code = "import sys; from msdscore import Scorer; Scorer(device='cpu'); print('onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    shutil.copytree(locate("package:msdscore_mini"), tmp_path / "mini")
    copied = load_encoder(str(tmp_path / "mini"), device="cpu")
    (tmp_path / "mini" / FUSED_GRAPHS[0]).unlink()
    assert np.array_equal(copied.encode_texts(TEXTS).pooled, encoder().encode_texts(TEXTS).pooled)
    with pytest.raises(WeightsError, match=r"image\.fused\.onnx: cannot be loaded"):
        prepare_and_encode(copied, [make_image()])


def test_listed_digest_of_the_bank_is_that_of_its_content(tmp_path):
    shutil.copytree(locate("package:msdscore_mini"), tmp_path / "mini")
    bank = load_encoder(str(tmp_path / "mini"), device="cpu").bank
    assert bank.digest == content_digest(bank)
    assert replace(bank, match=None).digest == ""
    meta = tmp_path / "mini" / "meta.json"
    meta.write_text(meta.read_text().replace(bank.digest, "00000000"))
    with pytest.raises(WeightsError, match=r"meta\.json: is damaged"):
        load_encoder(str(tmp_path / "mini"), device="cpu")


def test_graphs_that_are_not_listed_are_not_used(tmp_path):
    shutil.copytree(locate("package:msdscore_mini"), tmp_path / "own", ignore=shutil.ignore_patterns("SHA256SUMS"))
    assert not isinstance(load_encoder(str(tmp_path / "own"), device="cpu"), OnnxEncoder)


def test_vectors_do_not_depend_on_batch_and_padding():
    captions = ["a dog", "two young men in red shirts play football on a wide green field", "the"]
    together = encoder().encode_texts(captions)
    for row, caption in enumerate(captions):
        alone = encoder().encode_texts([caption])
        assert np.allclose(together.points[row][together.mask[row]], alone.points[0][alone.mask[0]], atol=1e-6)
        assert np.allclose(together.pooled[row], alone.pooled[0], atol=1e-6)
    images = [make_image(number, (50, 80)) for number in range(6)]
    every = prepare_and_encode(encoder(), images)
    for number, image in enumerate(images):  # images are independent of their batch bit by bit
        alone = prepare_and_encode(encoder(), [image])
        assert np.array_equal(every.points[number], alone.points[0])
        assert np.array_equal(every.pooled[number], alone.pooled[0])


def test_the_default_scorer_is_calibrated_and_signed():
    scorer = Scorer()
    assert scorer.encoder.name == "mini"
    assert scorer.form == Evidence()
    assert "enc:mini@" in scorer.signature
    assert "|form:evidence|" in scorer.signature
    assert "|bank:" in scorer.signature
    assert "bank:" not in Scorer("mini", "short").signature


def test_photographs_of_the_demo_show_what_their_lines_say():
    from msdscore.report.demo import KINDS, best_first, show

    for photograph, explained in show(Scorer()):
        kinds = [kind for kind, _ in best_first(explained)]
        assert kinds[0] == "good", photograph.name
        assert kinds[-1] == "wrong", photograph.name
        invented = explained[KINDS.index("invents")].score
        missed = invented.headline.endswith("no word stands out") and invented.verdict == "on topic"
        assert missed == photograph.line.startswith("A miss"), photograph.name
        for word in ("pizza", "laptop", "hat", "dog", "bus"):
            assert word not in photograph.line or word in invented.doubtful


def test_folder_with_other_heads_has_another_signature(tmp_path):
    shutil.copytree(locate(find_row("mini").source), tmp_path / "heads", ignore=shutil.ignore_patterns("SHA256SUMS"))
    config = json.loads((tmp_path / "heads" / "config.json").read_text())
    config["text"]["words"] = "all"
    (tmp_path / "heads" / "config.json").write_text(json.dumps(config))
    other = load_encoder(str(tmp_path / "heads"))
    assert other.signature.startswith("heads@")
    assert other.signature.split("@")[1][:8] != encoder().signature.split("@")[1][:8]
    assert len(other.encode_texts(["a dog"]).layout[0].spans) == 2
    assert np.array_equal(other.bank.images.means, encoder().bank.images.means)


def test_stop_words_are_unchanged():
    """Another list would change the vectors without changing the signature."""
    spelled = " ".join(sorted(STOP_WORDS))
    assert sha256(spelled.encode()).hexdigest()[:8] == "89ca4ee8"


def test_tuned_stages_replace_the_frozen_ones(tmp_path):
    shutil.copytree(locate(find_row("mini").source), tmp_path / "tuned", ignore=shutil.ignore_patterns("SHA256SUMS"))
    head = base_lite2().head
    save_file({"head.weight": (head.weight * 1.5).half()}, tmp_path / "tuned" / "tower.safetensors")
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    config["image"]["branches"][1] = "tower.safetensors"
    (tmp_path / "tuned" / "config.json").write_text(json.dumps(config))
    tuned = load_encoder(str(tmp_path / "tuned"), device="cpu")
    image_vectors = [prepare_and_encode(one, [make_image()]).points for one in (tuned, encoder())]
    assert not np.allclose(*image_vectors, atol=1e-3)
    save_file({"head.weight": torch.zeros(3)}, tmp_path / "tuned" / "tower.safetensors")
    with pytest.raises(WeightsError, match="EfficientNet-Lite2"):
        load_encoder(str(tmp_path / "tuned"), device="cpu")


def test_unsupported_options_are_rejected():
    with pytest.raises(ConfigError, match="cannot be compiled"):
        load_encoder("mini", compile="inductor")
    with pytest.raises(ConfigError, match="has no revisions"):
        load_encoder("mini", revision="main")


def test_no_images_and_no_captions_are_rejected():
    with pytest.raises(ConfigError, match="one image .*got none"):
        encoder().encode_images([])
    with pytest.raises(ConfigError, match="one caption .*got none"):
        encoder().encode_texts([])


def test_grey_and_tiny_images_work():
    for sample in (Image.new("L", (300, 20), 128).convert("RGB"), Image.new("RGB", (1, 1))):
        assert np.isfinite(prepare_and_encode(encoder(), [sample]).points).all()


def test_local_folder_named_mini_does_not_shadow_the_encoder(tmp_path, monkeypatch):
    (tmp_path / "mini").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_encoder("mini").signature == encoder().signature


@pytest.mark.parametrize(("shape", "stride", "padding"), [((3, 32, 3), 2, 0), ((8, 16, 1), 1, 0), ((3, 5, 3), 1, 1)])
def test_convolutions_without_plans_equal_those_of_torch(shape, stride, padding):
    layer, x = lite2.Convolution(shape, stride=stride), torch.randn(2, shape[0], 21, 17)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    with torch.no_grad():
        expected = torch.nn.functional.conv2d(x, layer.weight, layer.bias, stride, padding)
        torch.testing.assert_close(layer.unplanned(x, padding), expected, rtol=1e-5, atol=1e-5)


def test_images_may_be_resized_by_the_tower():
    usual, there = (load_encoder("mini", device="cpu", resize=how) for how in ("pillow", "device"))
    image = make_image()
    assert there.prepare(image).pixels.shape[1:] == image.size[::-1]
    one, other = (prepare_and_encode(encoder, [image, image.resize((99, 60))]) for encoder in (usual, there))
    assert "resize:device" in there.signature
    assert (torch.as_tensor(one.points) * torch.as_tensor(other.points)).sum(dim=-1).min() > 0.98
