"""The API of the service with the toy encoder: responses, errors, limits, batching, shutdown."""

import asyncio
import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from counting import CountingEncoder
from msdscore import Scorer, sample_image, threads
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError
from msdscore.scoring.pipeline import Pipeline
from msdscore.text.warnings import text_warnings
from msdscore_serve.batching import Batcher
from msdscore_serve.service import gather_all
from msdscore_serve.settings import RequestError, ServeSettings
from serving import TOKEN, asset, image_bytes, request_body
from serving import client as calling

METRIC = re.compile(r"msdscore_\w+")


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer("toy")


@pytest.fixture(scope="module")
def client(scorer: Scorer) -> Iterator[object]:
    with calling(scorer.pipeline, max_captions=8, max_items=4) as made:
        yield made


@pytest.fixture(scope="module")
def evidence_client() -> Iterator[object]:
    with calling(Scorer().pipeline) as made:
        yield made


@pytest.mark.parametrize("count", [2, 7])  # 7 are several jobs
def test_rank_equals_the_scorer(client, scorer, count):
    captions = [f"a red square and {number} dots" for number in range(count)]
    answer = client.post("/v1/rank", json=request_body(captions=captions)).json()
    expected = scorer.rank(image_bytes(), captions)
    item = answer["items"][0]
    assert answer["signature"] == scorer.signature
    assert item["ranking"] == list(expected.ranking)
    assert [row["soft_msd"] for row in item["scores"]] == [score.soft_msd for score in expected]


def test_references_give_ref_msd_and_explanations(client, scorer):
    people = ["a red box", "a small red square"]
    body = {**request_body(), "references": [*people, " "]}
    expected = scorer.rank(image_bytes(), ["a red square", "a blue square"], people)
    for path in ("score", "rank", "explain"):
        assert client.post(f"/v1/{path}", json=body).json()["signature"] == expected.signature
    assert "|nrefs:2|" in expected.signature
    rows = client.post("/v1/score", json=body).json()["items"][0]["scores"]
    assert [row["ref_msd"] for row in rows] == pytest.approx(expected.ref_msd.tolist())
    captions = {"caption": ["a red square", "a blue square"], "reference": [*people, " "]}
    form = client.post("/v1/score", files={"image": image_bytes()}, data=captions)
    assert rows == form.json()["items"][0]["scores"]
    words = client.post("/v1/explain", json=body).json()["items"][0]["explanations"][0]["words"]
    assert next(word for word in words if word["text"] == "red")["references"] == 2
    refused = client.post("/v1/score", json={**request_body(), "references": ["a red box"] * 9})
    assert refused.status_code == 413
    assert "expected at most 8 references per image, got 9" in refused.json()["error"]
    assert client.post("/v1/score", json=request_body()).json()["items"][0]["scores"][0]["ref_msd"] is None


def test_rows_with_an_error_have_the_same_keys(client):
    broken = base64.b64encode(image_bytes()[:40]).decode()
    body = {"items": [{"image": broken, "captions": ["a"]}, request_body(captions=("a dog", " "))]}
    body["items"].append(request_body() | {"references": ["a red box"]})
    for path in ("/v1/score", "/v1/rank"):
        rows = [row for item in client.post(path, json=body).json()["items"] for row in item["scores"]]
        assert len({tuple(row) for row in rows}) == 1
        assert [row["readable"] for row in rows] == [None, True, None, True, True]
        for row in (rows[0], rows[2]):
            assert {name for name, value in row.items() if value is not None} == {"caption", "warnings", "error"}
        assert rows[3]["reference_support"] is not None
    alone = client.post("/v1/score", json={"items": [body["items"][0] | {"references": ["a dog"]}]}).json()
    assert alone["items"][0]["scores"] == [
        {**dict.fromkeys(rows[0]), "caption": "a", "warnings": [], "error": rows[0]["error"]}
    ]


def test_explain_terms_add_up_and_words_have_maps(client):
    item = client.post("/v1/explain", json=request_body()).json()["items"][0]
    first = item["explanations"][0]
    assert sum(token["term"] for token in first["tokens"]) == pytest.approx(first["score"]["support"], abs=1e-5)
    spread = first["look"]["spreads"][1]
    assert len(spread) == len(first["boxes"])
    assert sum(spread) == pytest.approx(1, abs=1e-3)
    score, parts = first["score"], first["look"]["sum"]
    assert score["similarity"] + sum(part["size"] for part in parts) == pytest.approx(score["soft_msd"], abs=1e-5)


def test_explain_reports_a_caption_without_words_and_explains_the_others(client, scorer):
    item = client.post("/v1/explain", json=request_body(captions=("a red square", " ", "a blue square"))).json()[
        "items"
    ][0]
    assert item["explanations"][1] is None
    assert "is empty" in item["errors"][1]
    expected = scorer.explain(image_bytes(), ["a red square", "a blue square"])
    assert item["explanations"][2]["score"]["msd"] == expected[1].score.msd
    together = client.post(
        "/v1/explain?set=true", json=request_body(captions=("a red square", " ", "a blue square"))
    ).json()
    assert together["items"][0]["explanations"][2]["score"]["soft_msd"] == expected[1].score.soft_msd


def test_reward_has_one_value_or_error_per_completion(client, scorer):
    images = [base64.b64encode(image_bytes(colour)).decode() for colour in ("red", "blue")]
    body = {"images": images, "completions": ["a red square", None, "a red square"], "image_of": [0, 0, 1], "guard": 0}
    answer = client.post("/v1/reward", json=body).json()
    assert answer["rewards"][0] == scorer.score(image_bytes(), "a red square").msd
    assert answer["rewards"][1] is None
    assert "is empty" in answer["reasons"][1]
    assert answer["rewards"][2] < answer["rewards"][0]


def test_reward_subtracts_the_guard(client, scorer):
    image = base64.b64encode(image_bytes()).decode()
    words, appended = "dog beach ball sand ocean running brown wave sky", "a dog runs on the beach ball wave sky"
    body = {
        "images": [image],
        "completions": [words, "a bright red square on a plain white wall", appended, " "],
        "image_of": [0] * 4,
    }
    plain = [scorer.score(image_bytes(), text).msd for text in body["completions"][:3]]
    answer = client.post("/v1/reward", json=body).json()
    assert answer["rewards"] == [plain[0] - 1, plain[1], plain[2] - 1, None]
    assert answer["guarded"] == [True, False, True, False]
    assert [own[:1] for own in answer["warnings"]] == [["list of words"], [], ["words appended"], []]
    off = client.post("/v1/reward", json=body | {"guard": 0}).json()
    assert (off["rewards"], off["guarded"]) == ([*plain, None], [False] * 4)
    assert "list of words" in off["warnings"][0]
    assert client.post("/v1/reward", json=body | {"guard": 0.25}).json()["rewards"][0] == plain[0] - 0.25
    refused = client.post("/v1/reward", json=body | {"guard": -1})
    assert (refused.status_code, refused.json()["error"][:6]) == (422, "guard:")


def test_rewards_with_references_are_ref_msd(client, scorer):
    images = [base64.b64encode(image_bytes(colour)).decode() for colour in ("red", "blue")]
    people = ["a red box", "something red"]
    texts = ["a red square", "a red box", "a red square"]
    body = {"images": images, "completions": texts, "image_of": [0, 0, 1], "references": [people, []], "guard": 0}
    answer = client.post("/v1/reward", json=body).json()
    assert answer["rewards"][0] == pytest.approx(scorer.score(image_bytes(), texts[0], people).ref_msd)
    assert "|nrefs:1-2|" in answer["signature"]
    assert answer["rewards"][1] == pytest.approx(scorer.score(image_bytes(), texts[1], people[1:]).ref_msd)
    assert (answer["rewards"][2], answer["reasons"][2]) == (None, "no references: ref_msd is missing")
    own = client.post("/v1/reward", json=body | {"references": [["A red square."], people]}).json()
    assert (own["rewards"][0], own["reasons"][0]) == (None, "no references: ref_msd is missing")
    plain = client.post("/v1/reward", json=body | {"by": "msd"}).json()
    assert plain["rewards"][2] == scorer.score(image_bytes("blue"), texts[2]).msd
    assert plain["signature"] == scorer.signature
    match = client.post("/v1/reward", json=body | {"by": "match"}).json()
    assert match["reasons"] == ["no match: this bank and these settings have none"] * 3
    for change, why in (
        ({"references": None, "by": "ref_msd"}, "by: ref_msd needs references"),
        ({"by": "cosine"}, "by: Input should be 'msd', 'match' or 'ref_msd'"),
        ({"refs": []}, "unknown key 'refs'"),
    ):
        refused = client.post("/v1/reward", json=body | change)
        assert (refused.status_code, refused.json()["error"][: len(why)]) == (422, why)
    refused = client.post("/v1/reward", json=body | {"references": [people]})
    assert refused.status_code == 422
    assert refused.json()["error"] == "expected one list of references per image, got 1 for 2"


def test_too_long_completion_does_not_affect_others(client):
    body = {"images": [base64.b64encode(image_bytes()).decode()], "completions": ["a" * 20_001, "a red square"]}
    answer = client.post("/v1/reward", json=body | {"image_of": [0, 0]}).json()
    assert answer["rewards"][0] is None
    assert "at most 20000 bytes, got 20001" in answer["reasons"][0]
    assert answer["rewards"][1] is not None


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 422, "JSON"),
        ({"content": b"hello", "headers": {"content-type": "text/plain"}}, 415, "expected application/json"),
        ({"json": {"image": "%%%", "captions": ["a"]}}, 422, "base64"),
        ({"json": request_body() | {"captions": []}}, 422, "captions"),
        ({"json": request_body() | {"path": "/etc/passwd"}}, 422, "unknown key 'path'. Known: captions, image, items"),
        ({"json": request_body() | {"reference": []}}, 422, "unknown key 'reference'. Did you mean 'references'?"),
        (
            {"json": {"items": [request_body(), request_body() | {"doubt": 1}]}},
            422,
            "items.1: unknown key 'doubt'. Known: captions",
        ),
        (
            {"files": {"image": b"x"}, "data": {"caption": "a", "references": "b"}},
            422,
            "unknown form field 'references'. Did you mean 'reference'",
        ),
        ({"json": request_body(), "params": {"set": "true"}}, 422, "unknown query parameter 'set'. Known: none"),
        ({"json": request_body(captions=("a dog",) * 9)}, 413, "at most 8 captions"),
        ({"json": {"items": [request_body()] * 5}}, 413, "at most 4 images"),
        ({"files": {"image": b"x"}}, 422, "named caption"),
        (
            {"files": {"picture": b"x"}, "data": {"caption": "a"}},
            422,
            "unknown form field 'picture'. Known: caption, image",
        ),
        ({"data": {"caption": "a"}, "files": {"caption": b"x"}}, 422, "a file named image"),
        ({"json": {"items": []}}, 422, "items"),
        (
            {"json": {"image": 3, "captions": []}},
            422,
            "image: Input should be a valid string; captions: List should have",
        ),
        ({"json": {"items": [{"image": 1, "captions": [1] * 7}] * 4}}, 422, "valid string; and 12 more"),
        ({"json": {"items": [{"image": 1}] * 30}}, 413, "at most 4 images per request, got 30"),
        ({"json": [1, 2]}, 422, "body"),
    ],
)
def test_invalid_requests_have_a_status_and_a_one_line_error(client, change, status, text):
    answer = client.post("/v1/score", **change)
    assert answer.status_code == status
    assert text in answer.json()["error"]
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_too_large_body_is_rejected(scorer):
    with calling(scorer.pipeline, max_body=1000) as client:
        answer = client.post("/v1/score", content=b"x" * 1001)
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")  # the body is not read
        kind = {"content-type": "application/json"}
        assert "connection" not in client.post("/v1/score", content=b"x" * 1000, headers=kind).headers
        endless = (b"x" * 400 for _ in range(5))
        answer = client.post("/v1/score", content=endless, headers=kind)
        assert answer.status_code == 413


def test_token_and_security_headers(scorer):
    with calling(scorer.pipeline, token=TOKEN) as client:
        for path in ("/v1/score", "/v1/rank", "/v1/explain", "/v1/reward"):
            assert client.post(path, json=request_body()).status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ready"}
        given = {"Authorization": f"Bearer {TOKEN}"}
        answer = client.post("/v1/score", json=request_body(), headers=given)
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert client.get("/version", headers=given).json()["signature"] == scorer.signature
        metrics = client.get("/metrics", headers=given).text
        assert "msdscore_requests_total" in metrics
        assert "msdscore_queue 0.0" in metrics


def test_assets_cannot_escape_their_folder(client):
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert client.get(asset(client, "page.js")).headers["content-type"].startswith("text/javascript")
    assert client.get("/samples/coffee.jpg").headers["content-type"] == "image/jpeg"
    paths = (
        asset(client, name) for name in ("..%2Fapp.py", "../app.py", "..%2f..%2fapp.py", "page.html%00.js", "samples")
    )
    for path in (*paths, "/assets/page.js", "/samples/nothing.jpg", "/samples/..%2f..%2fapp.py"):
        assert client.get(path).status_code == 404, path


def test_public_address_without_a_token_is_rejected():
    with pytest.raises(ConfigError, match="binding to 0.0.0.0"):
        ServeSettings(host="0.0.0.0")
    with pytest.raises(ConfigError, match="at least 16 characters"):
        ServeSettings(host="0.0.0.0", token="short")


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with a manual clock."""

    now = 0.0

    def time(self):
        return self.now


def simulate(work, loop=None):
    """Run a coroutine with a simulated clock."""
    with closing(loop or SimulatedLoop()) as own:
        return own.run_until_complete(work)


def gathering(do, **changes) -> Batcher:
    return Batcher(do, **({"max_batch": 4, "max_wait": 0.05} | changes))


def test_single_job_is_not_delayed():
    batches = []

    async def main():
        batcher = gathering(lambda jobs: batches.append(list(jobs)) or list(jobs), max_wait=0)
        jobs = [batcher.submit(name, size=1, alone=name == "b") for name in "abcd"]
        results = await asyncio.gather(*jobs)
        await batcher.stop()
        return results

    assert simulate(main()) == list("abcd")
    assert batches == [["a"], ["b"], ["c", "d"]]


def test_jobs_are_batched():
    sizes: list[int] = []

    def do(works):
        sizes.append(len(works))
        return [work * 2 for work in works]

    async def main():
        queue = gathering(do, max_wait=0)
        answers = await asyncio.gather(*(queue.submit(number, size=1) for number in range(6)))
        await queue.stop()
        return answers

    assert simulate(main()) == [0, 2, 4, 6, 8, 10]
    assert sizes == [1, 4, 1]  # one job per batch until the speed is known


def test_cancelled_jobs_are_dropped_and_stop_finishes_the_others():
    gate, done = threading.Event(), []

    def do(works):
        gate.wait(10)
        done.extend(works)
        return list(works)

    async def main():
        queue = gathering(do, max_batch=1)
        first = asyncio.ensure_future(queue.submit("first", size=1))
        await asyncio.sleep(0.1)
        leaver, stayer = (asyncio.ensure_future(queue.submit(name, size=1)) for name in ("leaver", "stayer"))
        await asyncio.sleep(0.05)
        leaver.cancel()
        stopping = asyncio.ensure_future(queue.stop())
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="stopping"):
            await queue.submit("too late", size=1)
        gate.set()
        await stopping
        return await first, await stayer

    assert asyncio.run(main()) == ("first", "stayer")
    assert done == ["first", "stayer"]


def test_urgent_jobs_are_first_and_shorten_batches(monkeypatch):
    gate, batches = threading.Event(), []

    def do(works):
        gate.wait(10)
        batches.append(list(works))
        return list(works)

    async def main():
        queue = gathering(do, max_wait=0)
        first = asyncio.ensure_future(queue.submit("first", size=1))
        await asyncio.sleep(0.1)
        waiting = [asyncio.ensure_future(queue.submit(name, size=1)) for name in "abc"]
        await asyncio.sleep(0)
        edit = asyncio.ensure_future(queue.submit("edit", size=1, alone=True, urgent=True))
        await asyncio.sleep(0)
        gate.set()
        answers = await asyncio.gather(first, edit, *waiting)
        await queue.stop()
        return answers

    monkeypatch.setattr("msdscore_serve.batching.SHORT", 1e6)
    assert asyncio.run(main()) == ["first", "edit", *"abc"]
    assert batches == [["first"], ["edit"], ["a", "b", "c"]]
    batches.clear()
    gate.clear()
    monkeypatch.setattr("msdscore_serve.batching.SHORT", 0.0)
    monkeypatch.setattr("msdscore_serve.batching.LEAST", 2)
    asyncio.run(main())
    assert batches == [["first"], ["edit"], ["a", "b"], ["c"]]


def test_worker_error_affects_only_its_jobs():
    def do(works):
        if "bad" in works:
            raise RuntimeError("broken")
        return list(works)

    async def main():
        queue = gathering(do, max_batch=1)
        answers = await asyncio.gather(*(queue.submit(w, size=1) for w in ("bad", "good")), return_exceptions=True)
        await queue.stop()
        return answers

    bad, good = asyncio.run(main())
    assert str(bad) == "broken"
    assert good == "good"


@pytest.mark.parametrize("route", ["score", "explain"])
def test_edited_caption_does_not_decode_the_image_again(route):
    class Watched(Pipeline):
        decoded = 0

        def decode(self, *given, **named):
            Watched.decoded += 1
            return super().decode(*given, **named)

    with calling(Watched(load_encoder("toy"))) as client:
        name = client.post("/v1/images", files={"image": image_bytes()}).json()["image"]
        answers = [
            client.post(f"/v1/{route}", json={"image": name, "captions": [caption]}).json()["items"][0]
            for caption in ("a red square", "a blue square", "a red square")
        ]
    assert Watched.decoded == 1
    assert answers[0] == answers[2]
    assert answers[0] != answers[1]


class Slow(CountingEncoder):
    """The toy encoder; one caption takes nearly as long as several. `calls` has their number and that of threads."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[int, int]] = []

    def encode_texts(self, texts):
        self.calls.append((len(texts), threads.count()))
        time.sleep(0.03 + 0.001 * len(texts))
        return super().encode_texts(texts)


def test_requests_of_several_clients_are_batched_and_computed_by_one_thread():
    encoder = Slow()
    with threads.restored(), calling(Pipeline(encoder)) as client:
        threads.use(2)
        name = client.post("/v1/images", files={"image": image_bytes()}).json()["image"]

        def score(number: int) -> int:
            item = {"image": name, "captions": [f"a red square {number}"]}
            return int(client.post("/v1/score", json=item).status_code)

        assert score(0) == 200
        assert encoder.calls == [(1, 2)]
        with ThreadPoolExecutor(6) as clients:
            assert set(clients.map(score, range(1, 25))) == {200}
        assert score(25) == 200
    sizes = [size for size, _ in encoder.calls]
    assert sum(sizes) == 26
    assert len(sizes) < 20  # the image, which is known, costs nothing
    assert sum(count == 1 for _, count in encoder.calls) > len(sizes) / 2
    assert encoder.calls[-1][1] == 2


def test_uploaded_image_is_referenced_by_its_hash(scorer):
    with calling(scorer.pipeline, max_stored=2 * len(image_bytes())) as client:
        name = client.post("/v1/images", files={"image": image_bytes()}).json()["image"]
        assert name.startswith("sha256:")
        item = {"image": name, "captions": ["a red square"]}
        named = client.post("/v1/score", json=item).json()
        assert named == client.post("/v1/score", json=request_body(captions=("a red square",))).json()
        assert client.post("/v1/reward", json={"images": [name], "completions": ["a dog"]}).json()["rewards"][0] < 9
        for colour in ("blue", "green", "white"):  # the oldest is evicted
            client.post("/v1/images", files={"image": image_bytes(colour)})
        answer = client.post("/v1/score", json=item)
        assert answer.status_code == 404
        assert "send it to /v1/images again" in answer.json()["error"]
        assert client.post("/v1/images", files={"other": b"x"}).status_code == 422


def test_too_long_caption_does_not_affect_others(client):
    body = request_body(captions=("a" * 20_001, "a red square"))
    for sent in (body, {"items": [body]}):
        (item,) = client.post("/v1/explain", json=sent).json()["items"]
        assert (item["error"], item["explanations"][0], item["errors"][1]) == (None, None, None)
        assert "at most 20000 bytes, got 20001" in item["errors"][0]
        assert item["explanations"][1]["caption"] == "a red square"
        answer = client.post("/v1/score", json=sent)
        assert len(answer.content) < 5000  # the caption is not sent back in full
        first, second = answer.json()["items"][0]["scores"]
        assert "at most 20000 bytes" in first["error"]
        assert second["error"] is None


class OfEnglish(CountingEncoder):
    """The toy encoder with the warnings of an English encoder."""

    def encode_texts(self, texts):
        embeddings = super().encode_texts(texts)
        pairs = zip(texts, embeddings.layout, strict=True)
        layout = tuple(replace(own, warnings=text_warnings(text, english=True)) for text, own in pairs)
        return replace(embeddings, layout=layout)


def test_warnings_are_returned_and_unreadable_words_have_no_colour():
    with calling(Pipeline(OfEnglish()), cache=0) as client:
        captions = ("ein rotes Quadrat auf dem Tisch", "a red square on the table")
        german, english = client.post("/v1/explain", json=request_body(captions=captions)).json()["items"][0][
            "explanations"
        ]
        rows = client.post("/v1/score", json=request_body(captions=captions)).json()["items"][0]["scores"]
    assert [row["readable"] for row in rows] == [False, True]
    assert (german["warnings"], german["readable"]) == (["not English"], False)
    assert (english["warnings"], english["readable"]) == ([], True)
    assert german["look"]["words"]
    assert all(word == {"judged": False} for word in german["look"]["words"])
    assert any(word.get("back") for word in english["look"]["words"])
    assert {word.get("p_value") for word in german["words"]} == {None}


def test_no_word_of_a_caption_that_cannot_be_read_is_judged_in_python():
    scorer = Scorer(OfEnglish())
    captions = ("ein rotes Quadrat auf dem Tisch", "a red square on the table")
    german, english = (scorer.explain(image_bytes(), text) for text in captions)
    assert (german.readable, german.score.readable, german.score.warnings) == (False, False, ["not English"])
    assert (german.ranked, german.doubtful, german.missing) == ((), (), ())
    assert not any(unit.judged for unit in german.units)
    assert all(unit.reason.endswith("that this encoder does not read") for unit in german.units if unit.content)
    assert (german.to_dict()["readable"], german.to_dict()["warnings"]) == (False, ["not English"])
    assert english.readable
    assert english.ranked
    (row,) = scorer.pipeline.score(scorer.pipeline.decode([image_bytes()]), [german.caption], [0], worst=3)
    assert row.worst == ()


def test_batch_size_adapts_to_the_speed_and_images_cost_more(monkeypatch):
    sizes = []

    def do(works):
        sizes.append(len(works))
        loop.now += len(works) / 64
        return list(works)

    async def main():
        queue = gathering(do, max_batch=64, max_wait=0)
        await asyncio.gather(*(queue.submit(number, size=1, cost=9) for number in range(20)))
        await queue.stop()

    loop = SimulatedLoop()
    monkeypatch.setattr("msdscore_serve.batching.CALM", 5 / 64)
    simulate(main(), loop)
    assert sizes == [1, 5, 5, 5, 4]  # of 1/64 second each


@pytest.mark.parametrize("cached", [0, 100])
def test_edit_waits_for_at_most_one_new_image(cached):
    loop, done, spent = SimulatedLoop(), [], [0]

    def do(works):
        done.append(list(works))
        new = sum(work.startswith("new") for work in works)
        spent[0] += 9 * new
        loop.now += 0.001 + 0.12 * new
        if works == ["new0"]:
            loop.call_soon_threadsafe(edits.append, asyncio.run_coroutine_threadsafe(edit(), loop))
        return list(works)

    async def edit():
        started = loop.now
        await queue.submit("edit", size=1, alone=True, urgent=True)
        return loop.now - started

    async def main():
        for number in range(cached):
            await queue.submit(f"cached{number}", size=1, cost=9)
        await asyncio.gather(*(queue.submit(f"new{number}", size=1, cost=9) for number in range(64)))
        waited = await asyncio.wrap_future(edits[0])
        await queue.stop()
        return waited

    edits, queue = [], gathering(do, max_batch=64, max_wait=0, spent=lambda: spent[0])
    assert simulate(main(), loop) < 0.15
    new = [batch for batch in done if batch[0].startswith("new")]
    assert max(map(len, new)) == 1
    assert done.index(["edit"]) <= done.index(["new0"]) + 2


@pytest.mark.parametrize(
    ("path", "field", "near"),
    [("images", "images", "image"), ("figure", "captoin", "caption")],
)
def test_a_misspelt_form_field_is_named_with_the_nearest(client, path, field, near):
    answer = client.post(f"/v1/{path}", files={field: b"x"})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(f"unknown form field {field!r}. Did you mean {near!r}")


def test_work_of_a_request_is_cancelled_when_a_part_of_it_fails():
    ended = []

    async def wait():
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def fail():
        await asyncio.sleep(0)
        raise RequestError(503, "full")

    async def main():
        with pytest.raises(RequestError, match="full"):
            await gather_all([wait(), fail(), wait()])
        await asyncio.sleep(0)
        assert ended == ["cancelled"] * 2

    asyncio.run(main())


def test_explanations_can_be_limited_to_words(client):
    body = request_body(captions=("a red square", "a blue dog on a green sofa next to a tree"))
    whole = client.post("/v1/explain", json=body).json()["items"][0]["explanations"]
    answer = client.post("/v1/explain?fields=words", json=body)
    brief = answer.json()["items"][0]["explanations"]
    assert len(answer.content) / 2 < 2000
    assert not {"look", "boxes", "support_map", "tokens", "signature"} & brief[0].keys()
    for all_parts, words in zip(whole, brief, strict=True):
        assert [word["text"] for word in words["words"]] == [word["text"] for word in all_parts["words"]]
        assert words["score"]["msd"] == pytest.approx(all_parts["score"]["msd"], rel=1e-5)
    maps = client.post("/v1/explain?fields=maps", json=body).json()["items"][0]["explanations"][0]
    assert maps["support_map"] == whole[0]["support_map"]
    assert "words" not in maps
    coloured = client.post("/v1/explain?fields=words,look", json=body).json()["items"][0]["explanations"][0]
    assert coloured["look"]["words"] == whole[0]["look"]["words"]
    assert "spreads" not in coloured["look"]


@pytest.mark.parametrize("query", ["fields=word", "fields=", "doubt=0", "doubt=1", "doubt=nan", "doubt=x"])
def test_invalid_parts_of_an_explanation_are_rejected(client, query):
    answer = client.post(f"/v1/explain?{query}", json=request_body())
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.json()["error"]


def test_doubtful_words_are_those_below_the_limit(evidence_client):
    def doubtful(limit):
        sent = {
            "files": {"image": sample_image("coffee").read_bytes()},
            "data": {"caption": "a cup of coffee and a dog"},
        }
        answer = evidence_client.post(f"/v1/explain?fields=words&doubt={limit}", **sent).json()
        (explained,) = answer["items"][0]["explanations"]
        assert explained["words"][0] == {"text": "a", "start": 0, "end": 1, "judged": False}  # and nothing else
        assert explained["headline"].endswith("no word stands out") == (not explained["doubtful"])
        return explained["doubtful"], {word["text"]: word.get("p_value") for word in explained["words"]}

    few, values = doubtful(0.001)
    many, _ = doubtful(0.999)
    assert len(few) <= len(many)
    assert [word["text"] for word in many] == [text for text, value in values.items() if (value or 1) < 0.999]
    assert all(word["finding"] in ("likely wrong", "check") for word in many)


def test_every_route_gives_the_headline_of_a_caption(evidence_client):
    sent = {"files": {"image": sample_image("coffee").read_bytes()}}
    sent |= {"data": {"caption": ["a cup of coffee and a dog", "a cup of coffee", ""]}}
    scored = evidence_client.post("/v1/score", **sent).json()["items"][0]["scores"]
    explained = evidence_client.post("/v1/explain", **sent).json()["items"][0]["explanations"]
    assert [row["headline"] for row in scored] == [why and why["headline"] for why in explained]
    for row, note in zip(scored, ("likely wrong: dog", "no word stands out"), strict=False):
        assert row["headline"] == f"{row['verdict']} ({100 * row['match']:.0f} %) · {note}"
        assert row["word_notes"] == [note]


def test_metrics_describe_the_captions(scorer):
    with calling(scorer.pipeline, cache=0) as client:
        client.post("/v1/score", json=request_body(captions=("a red square", "a blue dog")))
        client.post("/v1/explain", json=request_body(captions=("a red square", "")))
        text = client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    verdicts = sum(float(value) for name, value in lines.items() if name.startswith("msdscore_verdicts_total"))
    assert verdicts == 3
    assert float(lines["msdscore_match_sum"]) == 0  # this encoder has no match: neither number nor NaN
    assert 'msdscore_requests_total{method="POST",path="/v1/score",status="200"}' in lines
    assert not [name for name in lines if "_created" in name]
    assert not Path("/proc/self/stat").exists() or float(lines["process_resident_memory_bytes"]) > 1e6
    assert float(lines["msdscore_words_flagged_total"]) <= float(lines["msdscore_words_total"])
    with calling(Pipeline(OfEnglish()), cache=0) as client:
        client.post("/v1/score", json=request_body(captions=("ein rotes Quadrat auf dem Tisch",)))
        text = client.get("/metrics").text
    assert "msdscore_captions_unreadable_total 1.0" in text
    assert 'msdscore_warnings_total{warning="not English"} 1.0' in text
    assert 'msdscore_verdicts_total{verdict="none"} 1.0' in text


def test_dashboard_uses_metrics_of_the_service(client):
    text = client.get("/metrics").text
    path = Path(__file__).parents[1] / "examples" / "monitoring" / "grafana.json"
    panels = json.loads(path.read_text())["panels"]
    names = {name for panel in panels for target in panel["targets"] for name in METRIC.findall(target["expr"])}
    assert len(names) >= 8
    known = set(re.findall(r"^# TYPE (\w+)", text, flags=re.MULTILINE))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in names} <= known


def test_a_caption_that_is_not_utf8_is_rejected(client):
    part = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    image = part % (b"image", b'; filename="a.png"', image_bytes())
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    for text, status in (("café".encode(), 200), ("café".encode("latin-1"), 422)):
        body = image + part % (b"caption", b"", text) + b"--b--\r\n"
        answer = client.post("/v1/score", content=body, headers=headers)
        assert answer.status_code == status, answer.text
    assert "UTF-8" in answer.json()["error"]
