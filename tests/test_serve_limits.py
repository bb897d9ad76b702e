"""Access control and limits of the service, overload and disconnected clients."""

import asyncio
import base64
import json
import threading
import time
from contextlib import closing
from http.client import HTTPConnection
from io import BytesIO
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from msdscore import ImageLimits, Scorer
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError
from msdscore.scoring.pipeline import Pipeline
from msdscore.serve.app import create_app
from msdscore.serve.guard import check_caller
from msdscore.serve.settings import ServeSettings
from serving import SPEC, TOKEN, client, image_bytes, request_body, served


class Watched:
    """The toy encoder, counting its inputs and waiting for an event."""

    def __init__(self) -> None:
        self._encoder = load_encoder("toy")
        self.images, self.captions = 0, 0
        self.gate = threading.Event()
        self.gate.set()

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode_images(self, images):
        self.gate.wait(20)
        self.images += len(images)
        return self._encoder.encode_images(images)

    def encode_texts(self, texts):
        self.captions += len(texts)
        return self._encoder.encode_texts(texts)


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
    assert answer.json()["request_id"] in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_vectors_are_cached_between_requests():
    encoder = Watched()
    with client(Pipeline(encoder)) as calls:
        first = calls.post("/v1/rank", json=request_body()).json()
        calls.post("/v1/explain", json=request_body())
        assert calls.post("/v1/rank", json=request_body()).json() == first
    assert (encoder.images, encoder.captions) == (1, 2)


def test_images_are_not_written_to_disk(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a temporary file on disk")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    noise = np.random.default_rng(0).integers(0, 255, (800, 1200, 3), dtype=np.uint8)
    place = BytesIO()
    Image.fromarray(noise).save(place, "PNG")
    assert len(place.getvalue()) > 2 << 20
    with client() as calls:
        answer = calls.post("/v1/score", files={"image": place.getvalue()}, data={"caption": "noise"})
        assert answer.json()["items"][0]["scores"][0]["error"] is None


def test_too_many_pixels_are_rejected():
    with client(Scorer("toy", limits=ImageLimits(max_pixels=1000)).pipeline) as calls:
        row = calls.post("/v1/score", json=request_body()).json()["items"][0]["scores"][0]
    assert "pixels" in row["error"]


def test_full_queue_returns_503_and_recovers():
    encoder = Watched()
    encoder.gate.clear()
    with served(Pipeline(encoder), max_queue=2, max_batch=1) as address:
        place = urlsplit(address).netloc
        answers: list[int] = []

        def call(colour):
            answers.append(post(place, request_body(colour))[0])

        waiting = [threading.Thread(target=call, args=(colour,)) for colour in ("red", "blue")]
        for thread in waiting:
            thread.start()
        until = time.monotonic() + 10
        while get(place, "/readyz") == 200:
            assert time.monotonic() < until
        found = post(place, request_body("green"))
        assert found[0] == 503
        assert found[1]["retry-after"] == "1"
        assert get(place, "/healthz") == 200
        encoder.gate.set()
        for thread in waiting:
            thread.join(20)
        assert answers == [200, 200]
        assert post(place, request_body("green"))[0] == 200


def test_requests_of_disconnected_clients_are_dropped():
    encoder = Watched()
    encoder.gate.clear()
    with served(Pipeline(encoder), max_batch=1) as address:
        place = urlsplit(address).netloc
        first = threading.Thread(target=post, args=(place, request_body("red")))
        first.start()
        time.sleep(0.3)  # the worker waits for the event
        leaver = HTTPConnection(place)
        leaver.request("POST", "/v1/score", json.dumps(request_body("blue")), {"Content-Type": "application/json"})
        time.sleep(0.3)
        leaver.close()
        time.sleep(0.3)
        encoder.gate.set()
        first.join(20)
        assert post(place, request_body("green"))[0] == 200
    assert encoder.images == 2


def test_request_times_out():
    encoder = Watched()
    encoder.gate.clear()
    with client(Pipeline(encoder), timeout=0.2) as calls:
        answer = calls.post("/v1/score", json=request_body())
        encoder.gate.set()
    assert answer.status_code == 504
    assert "0.2 seconds" in answer.json()["error"]


def test_total_size_of_bodies_is_limited_by_received_bytes():
    app = create_app(SPEC.build(), ServeSettings(max_body=1000, max_held=1500), spec=SPEC)
    proceed, stalled = asyncio.Event(), []

    async def call(*parts, size=1000):
        sent: list[dict] = []
        left = list(parts)

        async def receive():
            if not left:
                stalled.append(size)
                await proceed.wait()
                return {"type": "http.request", "body": b"", "more_body": False}
            return {"type": "http.request", "body": b"x" * left.pop(0), "more_body": True}

        async def send(message):
            sent.append(message)

        headers = [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(size).encode()),
        ]
        scope = {"type": "http", "method": "POST", "path": "/v1/score", "raw_path": b"/v1/score", "query_string": b""}
        await app(
            {**scope, "headers": headers, "root_path": "", "scheme": "http", "server": ("localhost", 80)}, receive, send
        )
        return sent[0]["status"]

    async def main():
        waiting = [asyncio.ensure_future(call(1)) for _ in range(100)]  # each announces 1000 bytes and sends one
        large = asyncio.ensure_future(call(500, 499))
        while len(stalled) < 101:
            await asyncio.sleep(0.01)
        busy = await call(500)
        proceed.set()
        return busy, await large, set(await asyncio.gather(*waiting)), await call(500)

    assert asyncio.run(main()) == (503, 422, {422}, 422)


def test_disconnect_during_upload_is_not_logged_as_an_error(caplog):
    app = create_app(SPEC.build(), ServeSettings(), spec=SPEC)
    sent: list[dict] = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"1000")]
    scope = {"type": "http", "method": "POST", "path": "/v1/score", "raw_path": b"/v1/score", "query_string": b""}
    asyncio.run(app({**scope, "headers": headers, "root_path": "", "scheme": "http"}, receive, send))
    assert sent[0]["status"] == 499
    assert "Traceback" not in caplog.text


def post(place, body):
    with closing(HTTPConnection(place, timeout=30)) as connection:
        connection.request("POST", "/v1/score", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}


def get(place, path):
    with closing(HTTPConnection(place, timeout=30)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status


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
                        one.to_dict() for one in Scorer("toy").contrast(image_bytes(), request_body()["captions"])
                    ]
                }
            )
        )
        alone = calls.post("/v1/figure?kind=json", json=request_body()).json()["explanations"]
        explained = calls.post("/v1/explain", json=request_body()).json()["items"][0]["explanations"]
        scored = calls.post("/v1/score", json=request_body()).json()["items"][0]["scores"]
        for figure, shown, score in zip(alone, explained, scored, strict=True):
            assert figure["score"] == shown["score"]
            assert figure["score"]["soft_msd"] == figure["score"]["msd"] == score["msd"]
        assert calls.post("/v1/figure?kind=json&set=maybe", json=request_body()).status_code == 422
        assert calls.post("/v1/figure?kind=exe", json=request_body()).status_code == 422
        assert calls.post("/v1/figure?kind=json", json={"items": [request_body(), request_body()]}).status_code == 422
        broken = {"image": base64.b64encode(b"not an image").decode(), "captions": ["a"]}
        assert calls.post("/v1/figure?kind=json", json=broken).status_code == 422


def test_rows_of_a_scored_file_are_sorted_worst_first():
    lines = [{"caption": f"c{n}", "image": f"{n}.jpg", "msd": n / 10, "support": -n} for n in range(5)]
    lines.append({"caption": "bad", "image": "x.jpg", "msd": None, "support": None, "error": "broken"})
    text = "\n".join(map(json.dumps, lines)).encode()
    with client(max_rows=6) as calls:
        found = calls.post("/v1/rows", files={"file": ("s.jsonl", text)}).json()
        assert (found["by"], found["total"], found["failed"]) == ("msd", 6, 1)
        assert [row["caption"] for row in found["rows"]] == ["c0", "c1", "c2", "c3", "c4", "bad"]
        place = BytesIO()
        pq.write_table(pa.Table.from_pylist(lines), place)
        more = {"files": {"file": ("s.parquet", place.getvalue())}, "data": {"by": "support", "count": "2"}}
        assert [row["caption"] for row in calls.post("/v1/rows", **more).json()["rows"]] == ["c0", "c1"]
        for name, content, status, reason in (
            ("s.exe", b"x", 415, "parquet"),
            ("s.parquet", b"x", 422, "Parquet"),
            ("s.jsonl", b'{"caption": "a"}', 422, "msdscore score"),
            ("s.jsonl", text + b"\n" + text, 413, "6 rows"),
        ):
            answer = calls.post("/v1/rows", files={"file": (name, content)})
            assert answer.status_code == status, answer.text
            assert reason in answer.json()["error"]
            assert "/proc/" not in answer.text


@pytest.mark.parametrize(
    "odd",
    [
        {"text": "a cat", "image": "9.jpg", "msd": 0.9},  # the caption under another name
        {"caption": "a cat", "image": {"path": "9.jpg"}, "msd": "0.9"},  # numbers as texts
        {"caption": "a cat", "image": "9.jpg", "msd": 0.9, "id": 5},  # a column of two types
        {"Caption": "a cat", "image": "9.jpg", "msd": 0.9},
        {"caption": "a cat", "image": "9.jpg", "msd": 0.9, "similarity": float("nan")},
    ],
)
def test_heterogeneous_rows_equal_homogeneous_rows(odd):
    lines = [{"caption": f"c{n}", "image": f"{n}.jpg", "msd": n / 10, "id": "x"} for n in range(3)]
    with client() as calls:
        text = "\n".join(json.dumps(line) for line in [*lines, odd]).encode()
        rows = calls.post("/v1/rows", files={"file": ("s.jsonl", text)}).json()["rows"]
    plain = {"warnings": [], "error": None}
    assert rows[:3] == [{**line, **plain, "row": n} for n, line in enumerate(without(lines, "id"))]
    assert rows[3] == {"caption": "a cat", "image": "9.jpg", "msd": 0.9, "row": 3, **plain}


def without(lines, name):
    return [{key: value for key, value in line.items() if key != name} for line in lines]


def test_columns_and_rows_are_cleaned_equally():
    table = pa.table({
        "caption": ["a" * 3000, "", None], "image": [{"bytes": b"x", "path": "1.jpg"}] * 3,
        "msd": [0.5, float("nan"), float("inf")], "match": pa.array([1, 0, None], pa.int8()),
    })  # fmt: skip
    file = BytesIO()
    pq.write_table(table, file)
    with client() as calls:
        answer = calls.post("/v1/rows", files={"file": ("s.parquet", file.getvalue())}, data={"by": "msd"}).json()
    assert (answer["columns"], answer["failed"]) == (["msd", "match"], 2)
    assert [(len(row["caption"] or ""), row["image"]) for row in answer["rows"]] == [(2000, "1.jpg")] + 2 * [
        (0, "1.jpg")
    ]
    assert [row.get("match") for row in answer["rows"]] == [1, 0, None]


def test_scored_file_is_uploaded_once_and_paged():
    lines = [{"caption": f"a Dog {n}", "image": f"{n}.jpg", "match": n / 1000} for n in range(700)]
    text = "\n".join(map(json.dumps, lines)).encode()
    with client(max_stored=1) as calls:
        first = calls.post("/v1/rows", files={"file": ("s.jsonl", text)}).json()
        assert (len(first["rows"]), first["histogram"]["counts"][:2]) == (500, [67, 67])
        assert first["readings"] == {"good": 0, "doubtful": 400, "poor": 300}

        def rows(**fields):
            return calls.post("/v1/rows", data={"file": first["file"]} | fields, files={"by": (None, "")}).json()

        assert [row["row"] for row in rows(start="600", count="2")["rows"]] == [600, 601]
        assert rows(contains="DOG 69", low="0.695")["matching"] == 5
        assert rows(start="-1")["error"] == "start: Input should be greater than or equal to 0"
        assert rows(low="nan")["error"] == "low: Input should be a finite number"
        assert rows(high="x")["error"].startswith("high: Input should be a valid number")
        calls.post("/v1/rows", files={"file": ("s.jsonl", text[:-1] + b" }")})
        assert "send it to /v1/rows again" in rows()["error"]
        assert "expected a file" in calls.post("/v1/rows", files={"by": (None, "")}).json()["error"]


def test_version_contains_the_signature():
    with client() as calls:
        assert calls.get("/version").json()["scorer"] == 'Scorer("toy")'


def test_head_equals_get_without_body():
    with client() as calls:
        for path in ("/", "/healthz", "/assets/page.js", "/version"):
            head, get = calls.head(path), calls.get(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == str(len(get.content))
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


def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_rejected():
    body = json.dumps({"image": base64.b64encode(image_bytes()).decode(), "captions": ["red"]}).encode()
    for limit, status in ((len(body), 200), (len(body) - 1, 413)):
        with client(max_body=limit) as calls:
            answer = calls.post("/v1/rank", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == status, answer.text


def test_each_request_is_one_log_line(caplog):
    with caplog.at_level("INFO", logger="msdscore.serve"), client() as calls:
        calls.get("/healthz")
    line = json.loads(caplog.records[-1].getMessage())
    assert (line["method"], line["path"], line["status"]) == ("GET", "/healthz", 200)
    assert line["seconds"] >= 0


def test_assets_are_served_from_both_folders():
    with client() as calls:
        for name in ("palette.css", "page.css", "page.js"):
            assert calls.get(f"/assets/{name}").status_code == 200, name


def csv_text(value):
    return "; ".join(value) if isinstance(value, list) else "" if value is None else str(value)


def upload(calls, name, lines, **fields):
    """The answer for a scored file of these rows."""
    table = pa.Table.from_pylist(lines)
    if name.endswith(".parquet"):
        file = BytesIO()
        pq.write_table(table, file)
        content = file.getvalue()
    elif name.endswith(".csv"):
        rows = [",".join(map(csv_text, line.values())) for line in lines]
        content = "\n".join([",".join(lines[0]), *rows]).encode()
    else:
        content = "\n".join(map(json.dumps, lines)).encode()
    return calls.post("/v1/rows", files={"file": (name, content)}, data=fields)


@pytest.mark.parametrize("name", ["s.jsonl", "s.csv", "s.parquet"])
def test_a_scored_file_reads_the_same_in_every_format(name):
    lines = [
        {"image": "1.jpg", "caption": "a dog", "msd": 0.5, "match": 0.25, "warnings": ["long"], "error": None, "id": 7},
        {"image": "2.jpg", "caption": "a cat", "msd": 0.125, "match": 0.75, "warnings": [], "error": "bad", "id": 8},
        {"image": "3.jpg", "caption": None, "msd": None, "match": None, "warnings": [], "error": "none", "id": 9},
    ]
    with client() as calls:
        answer = upload(calls, name, lines, by="msd").json()
    assert (answer["by"], answer["columns"], answer["total"], answer["failed"]) == ("msd", ["msd", "match"], 3, 1)
    unscored = {"row": 2, "image": "3.jpg", "caption": None, "warnings": [], "error": "none"}
    expected = [{**line, "row": number} for number, line in enumerate(without(lines[:2], "id"))]
    assert answer["rows"] == [expected[1], expected[0], unscored]


@pytest.mark.parametrize("name", ["s.jsonl", "s.csv", "s.parquet"])
@pytest.mark.parametrize(("limit", "count"), [("max_rows", 5), ("max_cells", 15)])
def test_a_scored_file_of_exactly_the_limit_is_read_and_a_smaller_limit_rejects_it(name, limit, count):
    lines = [{"caption": f"c{n}", "image": f"{n}.jpg", "msd": n / 10} for n in range(5)]
    with client(**{limit: count}) as calls:
        assert upload(calls, name, lines).json()["total"] == 5
    with client(**{limit: count - 1}) as calls:
        answer = upload(calls, name, lines)
        assert answer.status_code == 413
        what = "rows" if limit == "max_rows" else "cells; remove columns"
        assert answer.json()["error"] == f"expected a file of at most {count - 1} {what}"


def test_errors_of_a_scored_file_name_the_line_and_no_path_of_the_service():
    with client() as calls:
        broken = calls.post("/v1/rows", files={"file": ("s.csv", b"caption,caption,msd\na,b,1\n")})
        assert broken.status_code == 422
        assert "caption" in broken.json()["error"]
        assert not broken.json()["error"].startswith("/")
        lines = b'{"caption": "a dog", "msd": 0.5}\n{"caption": \n'
        rows = calls.post("/v1/rows", files={"file": ("s.jsonl", lines)}).json()["rows"]
    assert rows[0]["caption"] == "a dog"
    assert "line 2" in rows[1]["error"]


def test_a_scored_file_that_needs_more_memory_than_allowed_is_rejected():
    file = BytesIO()
    pq.write_table(pa.table({"caption": ["a dog" * 200_000] * 100, "msd": [0.5] * 100}), file, compression="zstd")
    with client(max_expanded=48 << 20) as calls:
        answer = calls.post("/v1/rows", files={"file": ("s.parquet", file.getvalue())})
    assert answer.status_code == 413
    assert answer.json()["error"] == "expected a file that can be read in 48 MiB of memory; send fewer rows"


def test_rows_read_one_by_one_are_cut_and_cleaned():
    odd = {"caption": "x" * 3000, "image": {"path": "1.jpg"}, "msd": "0.5"}  # numbers as texts are read row by row
    worse = {"caption": 3, "image": {"path": ""}, "msd": "inf"}
    lines = json.dumps([odd, worse, {"caption": "\ud800", "msd": "x"}]).encode()
    with client() as calls:
        found = calls.post("/v1/rows", files={"file": ("s.json", lines)}).json()
    assert (found["total"], found["failed"]) == (3, 2)
    texts = [(row["caption"], row["image"]) for row in found["rows"]]
    assert texts == [("x" * 2000, "1.jpg"), (None, None), ("\ufffd", None)]


def test_many_rows_are_read_in_several_batches():
    text = b"caption,msd\n" + b"".join(b"c%d,0.%05d\n" % (n, n) for n in range(20_000))
    with client() as calls:
        answer = calls.post("/v1/rows", files={"file": ("s.csv", text)}, data={"start": "19999"}).json()
    assert (answer["total"], answer["failed"]) == (20_000, 0)
    assert [row["caption"] for row in answer["rows"]] == ["c19999"]


def test_query_bounds_are_inclusive_and_lower_is_better_columns_are_reversed():
    lines = [{"caption": f"c{n}", "msd": n / 4, "divergence": n} for n in range(5)]
    with client() as calls:
        answer = upload(calls, "s.jsonl", lines, low="0.25", high="0.75", by="msd").json()
        assert [row["caption"] for row in answer["rows"]] == ["c1", "c2", "c3"]
        assert (answer["matching"], answer["total"]) == (3, 5)
        assert answer["histogram"]["edges"][0] == 0
        assert answer["histogram"]["edges"][-1] == 1
        assert sum(answer["histogram"]["counts"]) == 5
        worst = upload(calls, "s.jsonl", lines, by="divergence", count="1").json()
        assert [row["caption"] for row in worst["rows"]] == ["c4"]
        assert worst["readings"] is None
        unknown = upload(calls, "s.jsonl", lines, by="nothing")
        assert unknown.status_code == 422
        assert "no numbers 'nothing', only divergence, msd" in unknown.json()["error"]


def test_every_limit_of_the_service_is_checked_when_it_is_set():
    for name in ("max_body", "max_items", "max_captions", "max_rows", "max_queue", "max_batch", "max_stored"):
        ServeSettings(**{name: 1})
        with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
            ServeSettings(**{name: 0})
    assert ServeSettings(cache=0, max_wait=0, port=65535).port == 65535
    for name in ("cache", "max_wait"):
        with pytest.raises(ConfigError, match="must not be negative"):
            ServeSettings(**{name: -1})
    for name in ("timeout", "header_timeout", "body_timeout"):
        with pytest.raises(ConfigError, match="must be above 0"):
            ServeSettings(**{name: 0.0})
    for port in (-1, 65536):
        with pytest.raises(ConfigError, match=f"port must be between 0 and 65535, got {port}"):
            ServeSettings(port=port)
    ServeSettings(token="x" * 16)
    with pytest.raises(ConfigError, match="at least 16 characters, got 15"):
        ServeSettings(token="x" * 15)
    check_caller(ServeSettings(allow_hosts=("MSD.example.org",)), "/version", {"host": "msd.Example.org"})


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
            "expected one image_of per completion, got 1 for 2"
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
            (["a red bird"], [], 413),
            (["a dog"], ["a red bird"], 413),
            (["a dog"], ["a dog", " ", "a cat"], 200),  # references without words are left out
        ):
            body = request_body(captions=tuple(captions)) | {"references": references}
            answer = calls.post("/v1/score", json=body)
            assert answer.status_code == status, answer.text
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
