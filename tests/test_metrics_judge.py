"""The judge against a local server: both orders, retries, cost, and cached answers."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from chat_server import ChatServer
from metric_batches import make_batch
from msdscore.errors import ConfigError, RunError
from msdscore_lab.metrics.registry import load_metric
from msdscore_lab.metrics.vlm import endpoint
from msdscore_lab.metrics.vlm.judge import read_verdict

RED = Image.new("RGB", (24, 16), "red")
GOOD, BAD = "a red square", "a blue square"


class Server(ChatServer):
    """Server that replies with a function of the two captions."""

    def __init__(self):
        self.answer = lambda first, second: "Because: so.\nVerdict: " + ("1" if "red" in first else "2")
        super().__init__()

    def reply_to(self, body):
        text = body["messages"][1]["content"][1]["text"]
        first, second = (part.split("\n")[0] for part in text.split("Caption ")[1:3])
        return self.answer(first, second)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(endpoint.time, "sleep", lambda seconds: waits.append(seconds))
    waits.clear()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    running = Server()
    yield running
    running.close()


waits: list[float] = []
BATCH = make_batch([RED, None], [(0, (GOOD, BAD)), (0, (BAD, GOOD)), (1, (GOOD, BAD))])


def judge(server, tmp_path, **options):
    given = "".join(f",{name}={value}" for name, value in options.items())
    return load_metric(f"judge:some-model,url={server.url},cache={tmp_path / 'cache'}{given}")


def test_both_orders_are_sent_with_image_and_settings(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    scored = judge(server, tmp_path, key_env="MY_KEY").score(BATCH)
    assert scored.values[:2].tolist() == [[1, 0], [0, 1]]
    assert np.isnan(scored.values[2]).all()
    assert len(server.asked) == 2  # the second case has the same two requests
    body = server.asked[0]
    assert (body["model"], body["temperature"], body["top_p"]) == ("some-model", 0.1, 0.9)
    data = body["messages"][1]["content"][0]["image_url"]["url"].split(",")[1]
    with Image.open(io.BytesIO(base64.b64decode(data))) as sent:
        assert sent.size == RED.size
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_position_bias_results_in_ties(server, tmp_path):
    server.answer = lambda first, second: "Verdict: 1"
    assert judge(server, tmp_path).score(BATCH).values[:2].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    server.answer = lambda first, second: "Verdict: tie" if "red" in first else "Verdict: 2"
    assert judge(server, tmp_path, temperature=0).score(BATCH).values[:2].tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_answers_are_cached(server, tmp_path):
    first = judge(server, tmp_path).score(BATCH)
    count = len(server.asked)
    assert count == 2
    again = judge(server, tmp_path).score(BATCH)
    assert len(server.asked) == count
    np.testing.assert_array_equal(first.values, again.values)
    judge(server, tmp_path, temperature=0.7).score(BATCH)
    assert len(server.asked) == 2 * count  # other settings are not cached
    for path in (tmp_path / "cache").rglob("*.json"):
        path.write_text("{")  # damaged
    judge(server, tmp_path).score(BATCH)
    assert len(server.asked) == 3 * count


def test_temporary_errors_are_retried(server, tmp_path):
    server.replies = [
        (503, b"busy", {}), (429, b"slow down", {"Retry-After": "7"}), (200, {"no": "choices"}, {}), (500, b"", {}),
    ]  # fmt: skip
    values = judge(server, tmp_path, workers=1).score(BATCH).values
    assert values[0].tolist() == [1, 0]
    assert waits == [1.0, 7.0, 4.0, 8.0]


def test_permanent_errors_stop_the_run(server, tmp_path):
    server.replies = [(401, b'{"error": "bad key"}', {})]
    with pytest.raises(RunError, match="401: .*bad key.*OPENAI_API"):
        judge(server, tmp_path, workers=1).score(BATCH)
    assert len(server.asked) <= 2  # another request may be in flight
    server.replies = [(503, b"busy", {})] * 2
    with pytest.raises(RunError, match=r"2 attempts \(503 busy\)"):
        judge(server, tmp_path, workers=1, retries=2).score(BATCH)


@pytest.mark.parametrize("key", ["secret\nX-Other: 1", "schlüssel"])
def test_key_that_no_header_can_contain_is_reported_without_it(server, tmp_path, monkeypatch, key):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match="MY_KEY has characters") as caught:
        judge(server, tmp_path, key_env="MY_KEY").score(BATCH)
    assert key[:6] not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "secret\n")  # as read from a file
    judge(server, tmp_path, key_env="MY_KEY").score(BATCH)
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_parts_of_a_message_are_joined_and_others_rejected(server, tmp_path):
    parts = [{"type": "text", "text": "Because: so."}, {"type": "text", "text": "\nVerdict: 2"}]
    server.replies = [(200, {"choices": [{"message": {"content": content}}]}, {}) for content in (7, [7], parts, parts)]
    assert judge(server, tmp_path, workers=1).score(BATCH).values[0].tolist() == [0.5, 0.5]
    assert len(waits) == 2


def test_folder_of_answers_that_cannot_be_written_is_reported(server, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(RunError, match="cannot store answers"):
        judge(server, tmp_path).score(BATCH)


@pytest.mark.parametrize("option", ["top_p", "temperature"])
def test_numbers_of_a_metric_are_finite(server, tmp_path, option):
    with pytest.raises(ConfigError, match=f"{option} must be"):
        judge(server, tmp_path, **{option: "inf"})


def test_unreachable_server_is_reported(server, tmp_path):
    metric = load_metric(f"judge:m,url=http://127.0.0.1:9/v1,retries=2,cache={tmp_path}")
    with pytest.raises(RunError, match=r":9/v1 .*2 attempts \(.*refused"):
        metric.score(BATCH)


def test_answer_without_verdict_is_retried_and_then_missing(server, tmp_path):
    server.answer = lambda first, second: "I cannot decide."
    scored = judge(server, tmp_path).score(make_batch([RED], [(0, (GOOD, BAD))]))
    assert np.isnan(scored.values).all()
    assert len(server.asked) == 6  # three tries in each order
    texts = iter(["hm", "Verdict: **2**"] * 2)
    server.answer = lambda first, second: next(texts)
    scored = judge(server, tmp_path, workers=1, top_p=1).score(make_batch([RED], [(0, (GOOD, BAD))]))
    assert scored.values.tolist() == [[0.5, 0.5]]
    assert len(server.asked) == 6 + 4


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("Verdict: 1", "1"), ("verdict - Tie.", "tie"), ("Verdict: 1? No.\nVerdict: 2", "2"), ("1", None), ("Verdict: 12", None),
     ("Verdict: 1.5", None), ("Verdict: 1.", "1")],
)  # fmt: skip
def test_verdict_is_parsed(text, verdict):
    assert read_verdict(text) == verdict


def test_signature_contains_model_settings_and_prompt(server, tmp_path):
    choices = judge(server, tmp_path).choices
    assert choices.startswith(f"model:some-model@{server.url}|t:0.1|p:0.9|orders:2|prompt:own@")


def test_caparena_setup_uses_one_order_and_a_prompt_file(server, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Caption 1: {first}\nCaption 2: {second}\nBetter?")
    server.reply_to = lambda body: (
        "Caption 1 is better." if "1: a red" in body["messages"][0]["content"][1]["text"] else "Tie."
    )
    metric = judge(server, tmp_path, setup="caparena", prompt=prompt)
    assert metric.score(BATCH).values[:2].tolist() == [[1, 0], [0.5, 0.5]]
    assert len(server.asked) == 2  # one request per pair of captions
    body = server.asked[0]
    assert (body["temperature"], body["top_p"]) == (0.5, 0.9)
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert "orders:1|prompt:prompt.txt@" in metric.choices
    assert "t:0.2|p:0.9|orders:1" in judge(server, tmp_path, setup="caparena", temperature=0.2).choices


# In the shape of CapArena's script: two system messages, and two questions in one variable.
SCRIPT = '''
system_prompt_without_ref = """
Two captions, one {image}.
"""
system_prompt_with_ref: str = """
Two captions and a reference.
"""

def mllm_judge_pairs(rows, with_ref=True):
    for item in rows:
        caption_1, caption_2, caption_ref = item["caption1"], item["caption2"], item["ref"]
        if with_ref:
            compare_prompt = f"Caption 1:\\n{caption_1}\\nCaption 2:\\n{caption_2}\\nReference:\\n{caption_ref}\\nWhich?"
        else:
            compare_prompt = f"Caption 1:\\n{caption_1}\\nCaption 2:\\n{caption_2}\\nWhich is {{better}}?"
'''


@pytest.mark.parametrize(
    ("options", "system", "question"),
    [
        ({}, "\nTwo captions, one {image}.\n", f"Caption 1:\n{GOOD}\nCaption 2:\n{BAD}\nWhich is {{better}}?"),
        (
            {"reference": "true"}, "\nTwo captions and a reference.\n",
            f"Caption 1:\n{GOOD}\nCaption 2:\n{BAD}\nReference:\nred {{first}}\nWhich?",
        ),
    ],
)  # fmt: skip
def test_caparena_script_is_sent_as_written(server, tmp_path, options, system, question):
    script = tmp_path / "vlm_as_a_judge.py"
    script.write_text(SCRIPT)
    server.reply_to = lambda body: "Reason: so.\nJudgment: <Caption 1 is better>"
    metric = judge(server, tmp_path, setup="caparena", prompt=script, **options)
    batch = make_batch([RED], [(0, (GOOD, BAD))], references=[("red {first}", "another")])
    assert metric.score(batch).values.tolist() == [[1, 0]]
    first, second = server.asked[0]["messages"]
    assert (first["content"], second["content"][1]["text"]) == (system, question)
    assert "prompt:vlm_as_a_judge.py@" in metric.choices


def test_question_with_a_reference_needs_one(server, tmp_path):
    script = tmp_path / "vlm_as_a_judge.py"
    script.write_text(SCRIPT)
    with pytest.raises(ConfigError, match="item/0"):
        judge(server, tmp_path, prompt=script, reference="true").score(BATCH)
    with pytest.raises(ConfigError, match=r"reference=true needs prompt=FILE"):
        judge(server, tmp_path, reference="true")
    (tmp_path / "system.txt").write_text("Be strict.\n")
    judge(server, tmp_path, system=tmp_path / "system.txt").score(BATCH)
    assert server.asked[0]["messages"][0]["content"] == "Be strict."


def test_invalid_prompts_and_orders_are_rejected(server, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Which is better? {first}")
    with pytest.raises(ConfigError, match=r"\{first\} and \{second\}"):
        judge(server, tmp_path, prompt=prompt)
    with pytest.raises(ConfigError, match="orders must be 1 or 2, got 3"):
        judge(server, tmp_path, orders=3)
