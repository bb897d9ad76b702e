"""Rewards: TRL's interface, one encoding per image, logged words, the service, and a GRPO step."""

import base64
import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from PIL import Image

from counting import CountingEncoder
from msdscore import ConfigError, RunError, Scorer, ScorerSpec, UnknownNameError
from msdscore_torch.integrations.trl import MSDReward, RemoteReward, msd_reward

RED, BLUE = (Image.new("RGB", (64, 64), colour) for colour in ("red", "blue"))
CAPTIONS = ["a red square", "a blue square", "a red square and a green circle"]
ONE_STEP = {  # settings of TRL's trainer
    "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 4, "max_steps": 1,
    "report_to": [], "use_cpu": True, "bf16": False, "logging_steps": 1, "save_strategy": "no",
    "log_completions": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def neutral() -> Scorer:
    return Scorer.from_spec(ScorerSpec(encoder="toy", changes={"gate": "fixed"}))


def test_reward_by_ref_msd_uses_the_column_references(neutral):
    people = [["a red box"], ["a blue box", "a lake"], ["a red thing"]]
    reward = MSDReward("toy", by="ref_msd", guard=0)
    found = reward(completions=CAPTIONS, images=[RED] * 3, references=people)
    assert found == MSDReward("toy", guard=0)(completions=CAPTIONS, images=[RED] * 3, references=people)
    plain = MSDReward("toy", by="msd", guard=0)(completions=CAPTIONS, images=[RED] * 3, references=people)
    assert plain == [neutral.score(RED, text).msd for text in CAPTIONS]
    assert found == pytest.approx(
        [neutral.score(RED, text, own).ref_msd for text, own in zip(CAPTIONS, people, strict=True)]
    )
    remote = RemoteReward(url="http://localhost", by="ref_msd")
    for each in (reward, remote):
        with pytest.raises(ConfigError, match="needs a column 'references'"):
            each(completions=CAPTIONS, images=[RED] * 3)


@pytest.mark.parametrize(
    "given",
    [
        {"image": [RED, BLUE]},
        {"images": [[RED], [BLUE]]},
        {"images": None, "image": [RED, BLUE]},
    ],
    ids=["image", "images", "images is None"],
)
def test_columns_of_images(given, neutral):
    found = MSDReward("toy", guard=0)(None, CAPTIONS[:2], **given)
    assert found == [neutral.score(RED, CAPTIONS[0]).msd, neutral.score(BLUE, CAPTIONS[1]).msd]


def test_images_in_the_prompt_and_messages_as_completions(neutral):
    content = [{"type": "image", "image": RED}, {"type": "text", "text": "Describe."}]
    prompts = [[{"role": "user", "content": content}]] * 2
    completions = [
        [{"role": "assistant", "content": "<think>blue?</think>\n a red square"}],
        [{"role": "assistant", "content": [{"type": "text", "text": "a red square"}]}],
    ]
    assert MSDReward("toy", guard=0)(prompts, completions) == [neutral.score(RED, "a red square").msd] * 2


def test_custom_image_column_and_caption_function(neutral, tmp_path):
    BLUE.save(tmp_path / "blue.png")
    reward = MSDReward("toy", guard=0, column="photo", caption_of=lambda text: text.removeprefix("Caption: "))
    found = reward(completions=["Caption: a blue square"], photo=[str(tmp_path / "blue.png")])
    assert found == [neutral.score(BLUE, "a blue square").msd]
    with pytest.raises(ConfigError, match="'photo'; it has: image"):
        reward(completions=["x"], image=[RED])


LIST = "dog beach ball sand ocean running brown wave sky"


@pytest.mark.parametrize(
    "caption",
    [
        LIST,
        "a dog runs on the beach ball wave sky",
        "a red square. " * 3,
        "\u200b".join("a red square"),
        "a r\u0435d square here",
    ],
)
def test_reward_hacking_is_penalised_and_logged(caption):
    texts, curves = {}, {}
    given = {"completions": ["a bright red square on a plain white wall", caption], "images": [RED, RED]}
    plain = MSDReward("toy", guard=0)(**given)
    found = MSDReward("toy")(**given, log_extra=texts.__setitem__, log_metric=curves.__setitem__)
    assert found == [plain[0], plain[1] - 1]
    assert MSDReward("toy", guard=0.25)(**given) == [plain[0], plain[1] - 0.25]
    assert texts["guarded"][0] == ""
    assert texts["guarded"][1] != ""
    assert curves["msd/guarded"] == 0.5


@pytest.mark.parametrize("guard", [-1, float("nan"), float("inf")])
def test_guard_must_be_nonnegative(guard):
    for build in (lambda: MSDReward("toy", guard=guard), lambda: RemoteReward(url="http://x", guard=guard)):
        with pytest.raises(ConfigError, match="guard must be"):
            build()


def test_a_completion_with_several_images_has_no_reward_and_an_error():
    logged = {}
    found = MSDReward("toy")(completions=["a dog"], images=[[RED, BLUE]], log_extra=logged.__setitem__)
    assert (found, logged["not_judged"]) == ([None], ["expected one image, got 2"])


def test_unfinished_thinking_has_no_reward():
    captions = ["<think>a red square", "<think>blue?</think>a red square"]
    unfinished, finished = MSDReward("toy")(completions=captions, images=[RED, RED])
    assert unfinished is None
    assert finished is not None


def test_a_batch_without_images_is_rejected():
    with pytest.raises(ConfigError, match="got 0 for 2"):
        MSDReward("toy")(["say", "say"], ["one", "two"])


def test_words_and_means_are_logged_to_the_trainer(neutral):
    logged, means = {}, {}
    MSDReward("toy", words=2)(
        completions=["a red and blue square", "a red square"],
        image=[RED, RED],
        log_extra=logged.__setitem__,
        log_metric=means.__setitem__,
    )
    explained = neutral.explain(RED, "a red and blue square").ranked[:2]
    assert logged["least_supported"][0] == ", ".join(word.text for word in explained)
    assert means["msd/judged"] == 1.0
    assert {"msd/judged", "msd/msd", "msd/similarity", "msd/length"} <= set(means)
    assert all(isinstance(value, float) for value in means.values())


def test_each_image_of_a_group_is_encoded_once():
    encoder = CountingEncoder()
    copies = [RED.copy(), RED.copy(), BLUE.copy(), RED.copy()]  # a trainer decodes the image for every completion
    found = MSDReward(Scorer(encoder))(completions=["a red square"] * 4, image=copies)
    assert sum(encoder.images) == 2
    assert found[0] == found[1] == found[3]


def test_default_has_no_length_gate():
    assert "gate:fixed,0.5" in MSDReward("toy").signature
    chosen = ScorerSpec(encoder="toy", changes={"gate": "length"})
    assert "gate:length" in MSDReward(chosen).signature
    assert "gate:fixed,0.5" in MSDReward(ScorerSpec(encoder="toy", form="short")).signature
    assert MSDReward(Scorer("toy", "long")).signature == Scorer("toy", "long").signature


def test_reward_function_uses_the_default_encoder():
    pytest.importorskip("msdscore_mini")
    photo = pytest.importorskip("skimage.data").cat()
    good, bad = msd_reward(["say"] * 2, ["a cat looks at the camera", "a red bus in the snow"], image=[photo, photo])
    assert good > bad
    assert MSDReward().signature == Scorer().signature  # the evidence form has no length gate
    assert msd_reward.__name__ == MSDReward().__name__ == RemoteReward(url="http://localhost").__name__ == "msd_reward"


def test_reward_by_match_and_unknown_rewards():
    with pytest.raises(UnknownNameError, match="unknown reward 'cosine'"):
        MSDReward("toy", by="cosine")
    with pytest.raises(UnknownNameError, match="unknown reward 'cosine'"):
        RemoteReward(url="http://localhost", by="cosine")
    assert MSDReward("toy", by="match").__name__ == "msd_match_reward"
    assert RemoteReward(url="http://localhost", by="ref_msd").__name__ == "ref_msd_reward"


def test_remote_rewards_equal_the_service(neutral, tmp_path):
    pytest.importorskip("fastapi")
    from serving import served

    RED.save(tmp_path / "red.png")
    png = io.BytesIO()
    BLUE.save(png, "PNG")
    images = [str(tmp_path / "red.png"), png.getvalue(), RED, None, tmp_path / "missing.png"]
    captions = ["a red square", "a blue square", "a green square", "a dog", "a dog"]
    with served(neutral.pipeline) as url:
        found = RemoteReward(url=url, guard=0)(None, captions, image=images)
        many = RemoteReward(url=url, guard=0)(None, [f"a red square {n}" for n in range(70)], image=[RED] * 70)
        lists = [["a red box"], ["something blue"], ["a red box", "a lake"], ["a dog"], ["a dog"]]
        people = RemoteReward(url=url, guard=0)(None, captions, image=images, references=lists)
        plain = RemoteReward(url=url, by="msd", guard=0)(None, captions, image=images, references=lists)
        log = {}
        none = RemoteReward(url=url, by="match")(None, captions, image=images, log_extra=log.__setitem__)
        guarded, alike = [], {"completions": [LIST, "a red square", ""], "image": [RED] * 3}
        for guard in (1.0, 0.25, 0):
            for each in (MSDReward(neutral, guard=guard), RemoteReward(url=url, guard=guard)):
                logged = {}
                given = {"log_extra": logged.__setitem__, "log_metric": logged.__setitem__}
                guarded.append((each(**alike, **given), logged["guarded"], logged["msd/guarded"]))
        huge = RemoteReward(url=url, guard=0)(
            None, ["a dog", "a " * 20_000, "a red square"], image=[bytes(24 << 20), RED, RED]
        )
    assert found == [
        neutral.score(RED, captions[0]).msd,
        neutral.score(BLUE, captions[1]).msd,
        neutral.score(RED, captions[2]).msd,
        None,
        None,
    ]
    assert guarded[::2] == guarded[1::2]
    plain_list = neutral.score(RED, LIST).msd
    assert [rewards[0] for rewards, _, _ in guarded[::2]] == [plain_list - 1, plain_list - 0.25, plain_list]
    assert [why for _, why, _ in guarded[::2]] == [["list of words", "few content words", ""]] * 2 + [["", "", ""]]
    assert people[0] == pytest.approx(neutral.score(RED, captions[0], lists[0]).ref_msd)
    assert people[2] == pytest.approx(neutral.score(RED, captions[2], lists[2]).ref_msd)  # another list of one image
    assert people[3:] == [None, None]
    assert people == pytest.approx(MSDReward(neutral, guard=0)(None, captions, image=images, references=lists))
    assert plain == found
    assert none == [None] * 5
    assert log["not_judged"][0] == "no match: this bank and these settings have none"
    assert log["not_judged"][3] == "image is empty"
    assert huge == [None, None, neutral.score(RED, "a red square").msd]
    assert len(many) == 70
    assert None not in many


class _Busy(BaseHTTPRequestHandler):
    calls: ClassVar[list[dict[str, object]]] = []

    def do_POST(self):
        self.calls.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status, body = 503, b'{"error": "the queue is full"}'
        if len(self.calls) > 1:
            status = 200
            body = b'{"rewards": [0.5], "reasons": [null], "warnings": [["cut: x", "repeated"]], "guarded": [true]}'
        if self.headers.get("Authorization") != "Bearer secret":
            status, body = 401, b'{"error": "wrong token"}'
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def test_busy_service_is_retried_and_errors_are_reported(monkeypatch):
    monkeypatch.setattr("msdscore_torch.integrations.trl.time.sleep", lambda seconds: None)
    _Busy.calls = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert RemoteReward(url=url, token="secret")(completions=["a dog"], image=[RED]) == [0.5]
        assert len(_Busy.calls) == 2
        log = {}  # the service has subtracted the guard
        given = {"completions": [LIST], "image": [RED], "log_extra": log.__setitem__, "log_metric": log.__setitem__}
        assert RemoteReward(url=url, token="secret", guard=0.25)(**given) == [0.5]
        assert (log["guarded"], log["msd/guarded"]) == (["repeated"], 1.0)
        assert [call["guard"] for call in _Busy.calls] == [1.0, 1.0, 0.25]
        with pytest.raises(RunError, match="answered 401 .*wrong token"):
            RemoteReward(url=url)(completions=["a dog"], image=[RED])
        server.shutdown()
    with pytest.raises(RunError, match="returned no rewards in 2 tries"):
        RemoteReward(url=url, retries=2)(completions=["a dog"], image=[RED])
    with pytest.raises(ConfigError, match="url must begin with http"):
        RemoteReward(url="localhost:8000")
    with pytest.raises(RunError, match="returned no rewards in 1 tries"):
        RemoteReward(url=url, retries=1)(completions=["a dog"], image=[RED])
    with pytest.raises(ConfigError, match="retries .*got 0"):
        RemoteReward(url=url, retries=0)


@pytest.mark.filterwarnings("ignore")  # warnings of TRL, accelerate and torch on a CPU without fp16
def test_grpo_step_on_text_model(tmp_path):
    pytest.importorskip("trl", reason="trl is not installed (extra trl)")
    datasets = pytest.importorskip("datasets")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from tiny_lm import make_tiny_llama

    folder = make_tiny_llama(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    png = io.BytesIO()
    RED.save(png, "PNG")
    photos = [base64.b64encode(png.getvalue()).decode()] * 2  # a column of text, which a text model passes on
    rows = datasets.Dataset.from_dict({"prompt": ["a red ", "a "], "photo": photos})
    calls = []

    class Watched(MSDReward):
        def __call__(self, prompts=None, completions=(), **given):
            photo = [base64.b64decode(text) for text in given.pop("photo")]
            # A model with random weights does not write words, so the caption is its prompt and the length of its output.
            texts = [f"{prompt}square {len(text)}" for prompt, text in zip(prompts, completions, strict=True)]
            calls.append(super().__call__(prompts, texts, photo=photo, **given))
            return calls[-1]

    args = GRPOConfig(output_dir=str(tmp_path / "out"), **ONE_STEP)
    reward = Watched("toy", column="photo")
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder), reward_funcs=reward, args=args, train_dataset=rows,
        processing_class=tokenizer,
    )  # fmt: skip
    trainer.train()
    assert len(calls) == 1
    assert len(calls[0]) == 2
    logged = trainer.state.log_history[0]
    assert logged["rewards/msd_reward/mean"] == pytest.approx(sum(calls[0]) / 2, abs=1e-5)
    assert logged["msd/judged"] == 1.0


@pytest.mark.filterwarnings("ignore")
def test_grpo_step_on_vision_language_model(tmp_path):
    pytest.importorskip("trl", reason="trl is not installed (extra trl)")
    datasets = pytest.importorskip("datasets")
    from transformers import AutoProcessor, LlavaForConditionalGeneration
    from trl import GRPOConfig, GRPOTrainer

    from tiny_talker import make_talker

    folder = make_talker(tmp_path / "model", {"Say.": "a red square"}, steps=1)
    calls = []

    class Watched(MSDReward):
        def __call__(self, prompts=None, completions=(), **given):
            # A model with random weights does not write words, so only the caption is replaced.
            calls.append(super().__call__(prompts, [f"a red square {n}" for n in range(len(completions))], **given))
            return calls[-1]

    args = GRPOConfig(output_dir=str(tmp_path / "out"), **ONE_STEP)

    def trainer(prompt):
        rows = datasets.Dataset.from_dict({"prompt": [prompt] * 2, "image": [RED, RED]})
        return GRPOTrainer(
            model=LlavaForConditionalGeneration.from_pretrained(folder), reward_funcs=Watched("toy"), args=args,
            train_dataset=rows.cast_column("image", datasets.Image()),
            processing_class=AutoProcessor.from_pretrained(folder),
        )  # fmt: skip

    talking = trainer([{"role": "user", "content": "Say."}])
    talking.train()
    assert talking.state.log_history[0]["msd/judged"] == 1.0
    assert None not in calls[0]
    with pytest.raises(ValueError, match="conversational prompts"):
        trainer("Say.").train()
