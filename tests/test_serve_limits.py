"""Access control and limits of the service, overload and disconnected clients."""

import asyncio
import base64
import json
import re
import threading
import time
from datetime import datetime
from http.client import HTTPConnection
from io import BytesIO
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from command_line import msdscore
from counting import CountingEncoder
from msdscore import Scorer
from msdscore.errors import ConfigError
from msdscore.scoring.pipeline import Pipeline
from msdscore_serve.app import create_app
from msdscore_serve.guard import check_caller
from msdscore_serve.server import LogLines, Server, bind
from msdscore_serve.settings import ServeSettings
from serving import (
    SPEC,
    TOKEN,
    asset,
    client,
    image_bytes,
    of_a_lost_client,
    post,
    request_body,
    sent_to,
    served,
    status_of,
)


class Watched(CountingEncoder):
    """The toy encoder, counting its inputs and waiting for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def encode_images(self, images):
        self.gate.wait(20)
        return super().encode_images(images)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8000"}, 200),
        ({"host": "127.0.0.1"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "rebound.example"}, 403),
        ({"host": "localhost.example"}, 403),
        ({"host": "localhost", "origin": "http://localhost"}, 200),
        ({"host": "localhost", "origin": "https://elsewhere.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
    ],
)
def test_cross_origin_requests_are_rejected(headers, status):
    with client() as calls:
        answer = calls.post("/v1/score", json=request_body(), headers=headers)
        assert answer.status_code == status
        assert "access-control-allow-origin" not in answer.headers


def test_allowed_origins_get_cross_origin_headers():
    allowed, other = "https://app.example.org", "https://elsewhere.example"
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    with client(token=TOKEN, allow_origin=(allowed,)) as calls:
        preflight = calls.options("/v1/score", headers=asks | {"origin": allowed})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == allowed
        assert {"authorization", "content-type"} <= set(
            preflight.headers["access-control-allow-headers"].lower().split(", ")
        )
        known = {"origin": allowed, "authorization": f"Bearer {TOKEN}"}
        answer = calls.post("/v1/score", json=request_body(), headers=known)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == allowed
        assert "origin" in answer.headers["vary"].lower()
        denied = calls.post("/v1/score", json=request_body(), headers={"origin": allowed})
        assert denied.status_code == 401
        assert denied.headers["access-control-allow-origin"] == allowed  # the page can read the error
        for method, status in ((calls.options, 400), (calls.post, 403)):
            rejected = method("/v1/score", headers=asks | {"origin": other})
            assert rejected.status_code == status
            assert "access-control-allow-origin" not in rejected.headers
    with pytest.raises(ConfigError, match="allow_origin"):
        ServeSettings(allow_origin=("*",))


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"]
)
def test_partial_tokens_are_rejected(given):
    with client(host="0.0.0.0", token=TOKEN) as calls:
        answer = calls.post("/v1/score", json=request_body(), headers={"Authorization": given})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"


def test_caption_named_items():
    with client() as calls:
        answer = calls.post("/v1/score", json=request_body(captions=("items", '"items"')))
        assert answer.status_code == 200


def test_unknown_paths_and_methods_return_json_errors():
    with client() as calls:
        for answer in (calls.get("/v1/score"), calls.get("/nothing"), calls.delete("/v1/rank")):
            assert answer.status_code in (404, 405)
            assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert (
            calls.post("/v1/score", json=request_body(), headers={"x-request-id": "mine-1"}).headers["x-request-id"]
            == "mine-1"
        )


def test_internal_error_is_a_500_without_details(caplog):
    encoder = Watched()
    encoder.encode_images = lambda images: 1 / 0
    with client(Pipeline(encoder), raises=False) as calls:
        answer = calls.post("/v1/score", json=request_body())
    assert answer.status_code == 500
    assert "zero" not in answer.text
    errors = [record.fields["request"] for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [answer.json()["request_id"]]
    assert "ZeroDivisionError" in caplog.text


def test_vectors_are_cached_between_requests():
    encoder = Watched()
    with client(Pipeline(encoder)) as calls:
        first = calls.post("/v1/rank", json=request_body()).json()
        calls.post("/v1/explain", json=request_body())
        assert calls.post("/v1/rank", json=request_body()).json() == first
    assert (sum(encoder.images), len(encoder.captions)) == (1, 2)


def test_images_are_not_written_to_disk(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a temporary file on disk")

    monkeypatch.setattr("tempfile.gettempdir", refuse)
    noise = np.random.default_rng(0).integers(0, 255, (800, 1200, 3), dtype=np.uint8)
    place = BytesIO()
    Image.fromarray(noise).save(place, "PNG")
    assert len(place.getvalue()) > 2 << 20
    with client() as calls:
        answer = calls.post("/v1/score", files={"image": place.getvalue()}, data={"caption": "noise"})
        assert answer.json()["items"][0]["scores"][0]["error"] is None


def test_full_queue_returns_503_and_recovers():
    encoder = Watched()
    encoder.gate.clear()
    with served(Pipeline(encoder), max_queue=2, max_batch=1) as address:
        answers: list[int] = []

        def call(colour):
            answers.append(post(address, "/v1/score", request_body(colour))[0])

        waiting = [threading.Thread(target=call, args=(colour,)) for colour in ("red", "blue")]
        for thread in waiting:
            thread.start()
        until = time.monotonic() + 10
        while status_of(address) == 200:
            assert time.monotonic() < until
        found = post(address, "/v1/score", request_body("green"))
        assert found[0] == 503
        assert found[2]["retry-after"] == "1"
        assert status_of(address, "/healthz") == 200
        encoder.gate.set()
        for thread in waiting:
            thread.join(20)
        assert answers == [200, 200]
        assert post(address, "/v1/score", request_body("green"))[0] == 200


def test_requests_of_disconnected_clients_are_dropped():
    encoder = Watched()
    encoder.gate.clear()
    with served(Pipeline(encoder), max_batch=1) as address:
        first = threading.Thread(target=post, args=(address, "/v1/score", request_body("red")))
        first.start()
        time.sleep(0.3)  # the worker waits for the event
        leaver = HTTPConnection(urlsplit(address).netloc)
        leaver.request("POST", "/v1/score", json.dumps(request_body("blue")), {"Content-Type": "application/json"})
        time.sleep(0.3)
        leaver.close()
        time.sleep(0.3)
        encoder.gate.set()
        first.join(20)
        assert post(address, "/v1/score", request_body("green"))[0] == 200
    assert sum(encoder.images) == 2


def test_total_size_of_bodies_is_limited_by_received_bytes():
    app = create_app(SPEC.build(), ServeSettings(max_body=1000, max_held=1500), spec=SPEC)
    proceed, stalled = asyncio.Event(), []

    async def call(*parts, size=1000, stalls=True):
        left = list(parts)

        async def receive():
            if not left:
                stalled.append(size)
                if stalls:
                    await proceed.wait()
                return {"type": "http.request", "body": b"", "more_body": False}
            return {"type": "http.request", "body": b"x" * left.pop(0), "more_body": True}

        return await sent_to(app, receive, content_length=str(size))

    async def main():
        waiting = [asyncio.ensure_future(call(1)) for _ in range(100)]  # each announces 1000 bytes and sends one
        large = asyncio.ensure_future(call(500, 499))
        while len(stalled) < 101:
            await asyncio.sleep(0.01)
        busy = await call(500, stalls=False)
        proceed.set()
        return busy, await large, set(await asyncio.gather(*waiting)), await call(500)

    assert asyncio.run(main()) == (503, 422, {422}, 422)


def test_disconnect_during_upload_is_not_logged_as_an_error(caplog):
    app = create_app(SPEC.build(), ServeSettings(), spec=SPEC)
    assert of_a_lost_client(app, content_length="1000") == 499
    assert "Traceback" not in caplog.text


def test_figures_equal_explain():
    with client() as calls:
        page = calls.post("/v1/figure?kind=html", json=request_body())
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "blue" in page.text
        numbers = calls.post("/v1/figure?kind=json&set=true", json=request_body()).json()
        assert numbers == json.loads(
            json.dumps(
                {
                    "explanations": [
                        one.to_dict() for one in Scorer("toy").explain(image_bytes(), request_body()["captions"])
                    ]
                }
            )
        )
        alone = calls.post("/v1/figure?kind=json", json=request_body()).json()["explanations"]
        explained = calls.post("/v1/explain", json=request_body()).json()["items"][0]["explanations"]
        scored = calls.post("/v1/score", json=request_body()).json()["items"][0]["scores"]
        for figure, shown, score in zip(alone, explained, scored, strict=True):
            assert shown["score"] == {"match": None, "verdict": None} | figure["score"]
            assert figure["score"]["soft_msd"] == figure["score"]["msd"] == score["msd"]
        assert calls.post("/v1/figure?kind=json&set=maybe", json=request_body()).status_code == 422
        assert calls.post("/v1/figure?kind=exe", json=request_body()).status_code == 422
        assert calls.post("/v1/figure?kind=json", json={"items": [request_body(), request_body()]}).status_code == 422
        broken = {"image": base64.b64encode(b"not an image").decode(), "captions": ["a"]}
        assert calls.post("/v1/figure?kind=json", json=broken).status_code == 422


def test_version_contains_the_signature():
    with client() as calls:
        assert calls.get("/version").json()["scorer"] == "Scorer('toy')"


def test_head_equals_get_without_body():
    with client() as calls:
        for path in ("/", "/healthz", asset(calls, "page.js"), "/version"):
            head, get = calls.head(path), calls.get(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == get.headers["content-length"]
            assert head.headers["content-type"] == get.headers["content-type"]
        assert calls.head("/nothing").status_code == 404


def test_only_configured_origins_may_embed_the_page():
    with client() as calls:
        headers = calls.get("/").headers
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    with client(embed=("http://localhost:8888", "https://lab.example.org")) as calls:
        headers = calls.get("/").headers
        assert "x-frame-options" not in headers
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'self' http://localhost:8888 https://lab.example.org" in policy
        assert policy.startswith("default-src 'none'; script-src 'self'")
    for bad in ("*", "localhost", "http://a b", "http://x; script-src *", "javascript:alert(1)"):
        with pytest.raises(ConfigError, match="expected an origin such as"):
            ServeSettings(embed=(bad,))


def test_each_request_is_one_log_line(caplog):
    with caplog.at_level("INFO", logger="msdscore_serve"), client() as calls:
        calls.get("/healthz")
    record = caplog.records[-1]
    line = json.loads(LogLines(as_json=True).format(record))
    assert (line["method"], line["path"], line["status"], line["level"]) == ("GET", "/healthz", 200, "info")
    assert line["seconds"] >= 0
    assert abs(datetime.fromisoformat(line["time"]).timestamp() - record.created) < 0.002
    text = LogLines(as_json=False).format(record)
    assert re.fullmatch(r"\S+\+00:00 info request request=\w+ method=GET path=/healthz status=200 seconds=\S+", text)


def test_files_of_the_page_are_compressed_and_not_sent_again():
    with client() as calls:
        assert calls.get("/").headers["cache-control"] == "no-cache"
        for name in ("palette.css", "page.css", "page.js", "look.json"):
            file = calls.get(asset(calls, name))
            assert file.status_code == 200, name
            assert file.headers["content-encoding"] == "gzip"
            assert "immutable" in file.headers["cache-control"]
        image = calls.get("/samples/coffee.jpg")
        assert "content-encoding" not in image.headers
        assert "max-age" in image.headers["cache-control"]
        known = {"if-none-match": image.headers["etag"]}
        assert calls.get("/samples/coffee.jpg", headers=known).status_code == 304
        assert calls.post("/v1/score", json=request_body()).headers["cache-control"] == "no-store"


def test_readyz_is_503_while_the_service_stops_and_requests_are_still_answered():
    """A proxy sees the answer and sends requests elsewhere before the socket is closed."""
    given = ServeSettings(port=0, drain=1.0)
    app, started = create_app(SPEC.build(), given, spec=SPEC), threading.Event()
    with bind(given) as listener:
        server = Server(app, given, started=started.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert started.wait(30)
        address = f"http://localhost:{listener.getsockname()[1]}"
        assert status_of(address) == 200
        server.should_exit = True
        until = time.monotonic() + 10
        while status_of(address) == 200:
            assert time.monotonic() < until
        assert status_of(address) == 503
        assert post(address, "/v1/score", request_body())[0] == 200
        thread.join(30)
        assert not thread.is_alive()


LOWEST = {"port": -1, "cache": -1, "max-wait": -1, "drain": -1, "timeout": 0, "max-batch": 0, "max-queue": 0}


@pytest.mark.parametrize(("option", "value"), [*LOWEST.items(), ("port", 65536), ("max-pixels", 0)])
def test_every_limit_of_the_service_is_checked(option, value):
    result = msdscore("serve", "--encoder", "toy", f"--{option}", value)
    assert result.returncode == 2
    assert option.replace("-", "_") in result.stderr.replace("-", "_")


def test_tokens_and_hosts_are_checked():
    ServeSettings(token="x" * 16)
    with pytest.raises(ConfigError, match="got 15"):
        ServeSettings(token="x" * 15)
    check_caller(ServeSettings(allow_host=("MSD.example.org",)), "/version", {"host": "msd.Example.org"})


def test_rewards_are_limited_as_other_requests_are():
    image = request_body()["image"]
    with client(max_items=2, max_captions=2) as calls:

        def reward(**body):
            answer = calls.post("/v1/reward", json=body)
            return answer.status_code, answer.json().get("error")

        assert reward(images=[image] * 2, completions=["a"] * 4, image_of=[0, 0, 1, 1]) == (200, None)
        status, reason = reward(images=[image] * 3, completions=["a"] * 3)
        assert (status, reason) == (413, "expected at most 2 images per request, got 3")
        status, reason = reward(images=[image], completions=["a"] * 5, image_of=[0] * 5)
        assert (status, reason) == (413, "expected at most 4 completions, got 5")
        status, reason = reward(images=[image], completions=["a"] * 3, image_of=[0] * 3)
        assert (status, reason) == (413, "expected at most 2 captions per image, got 3")
        for images, texts in ((1, 2), (2, 1)):
            why = f"expected one image per completion or `image_of`, got {images} for {texts}"
            assert reward(images=[image] * images, completions=["a"] * texts) == (422, why)
        assert reward(images=[image], completions=["a", "b"], image_of=[0])[1] == (
            "expected one entry of image_of per completion, got 1 for 2"
        )
        assert (
            reward(images=[image], completions=["a"], image_of=[1])[1]
            == "image_of refers to image 1, expected an index below 1"
        )


def test_captions_and_references_of_exactly_the_limit_are_scored():
    with client(max_captions=2, max_tokens=9) as calls:
        for captions, references, status in (
            (["a dog", "a cat"], ["a red dog", "a red cat"], 200),
            (["a dog"] * 3, [], 413),
            (["a dog"], ["a dog"] * 3, 413),
            (["a dog"], ["a red bird"], 413),
            (["a dog"], ["a dog", " ", "a cat"], 200),  # references without words are left out
        ):
            body = request_body(captions=tuple(captions)) | {"references": references}
            answer = calls.post("/v1/score", json=body)
            assert answer.status_code == status, answer.text
        (row,) = calls.post("/v1/score", json=request_body(captions=("a red bird",))).json()["items"][0]["scores"]
        assert row["error"] == "expected captions of at most 9 bytes, got 10"
        error = calls.post(
            "/v1/score", json=request_body() | {"captions": ["a dog"], "references": ["a red bird"]}
        ).json()
        assert error["error"] == "expected references of at most 9 bytes, got 10"


def test_base64_of_any_length_and_any_breaks_is_read():
    content = image_bytes(size=(40, 30)) + bytes(100_000)  # data after the image is ignored by decoders
    text = base64.b64encode(content).decode()
    broken = "\n".join(text[start : start + 75] for start in range(0, len(text), 75))
    with client() as calls:
        plain = calls.post("/v1/score", json=request_body() | {"image": text}).json()
        assert len(plain["items"][0]["scores"]) == 2
        assert calls.post("/v1/score", json=request_body() | {"image": broken}).json() == plain
        assert calls.post("/v1/score", json=request_body() | {"image": "data:image/png;base64," + text}).json() == plain
        for bad in (text + "=AAAA", text[:-4] + "%AAA", "data:image/png," + text, text + "A"):
            answer = calls.post("/v1/score", json=request_body() | {"image": bad})
            assert answer.status_code == 422, bad[-20:]
            assert "base64" in answer.json()["error"]


def test_commas_and_quotes_inside_a_caption_are_not_values_of_the_request():
    captions = ['a dog \\"' + "," * 15_000] * 8
    with client() as calls:
        answer = calls.post("/v1/score", json=request_body(captions=tuple(captions)))
        assert answer.status_code == 200, answer.text
        too_many = b'{"image": "", "captions": [' + b",".join([b'"a"'] * 30_001) + b"]}"
        answer = calls.post("/v1/score", content=too_many, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert "at most 60000 values" in answer.json()["error"]


def test_numbers_as_text_are_rejected_and_not_converted():
    with client() as calls:
        body = {"images": [request_body()["image"]], "completions": ["a dog"], "image_of": ["0"]}
        assert calls.post("/v1/reward", json=body).status_code == 422
        assert calls.post("/v1/reward", json=body | {"image_of": [0]}).status_code == 200
        for value in (b"NaN", b"-Infinity"):
            content = json.dumps(body | {"image_of": [0]}).encode().replace(b"[0]", b"[" + value + b"]")
            answer = calls.post("/v1/reward", content=content, headers={"content-type": "application/json"})
            assert (answer.status_code, "the body is not valid JSON" in answer.json()["error"]) == (422, True)
