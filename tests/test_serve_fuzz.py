"""Fuzzing of the service: its OpenAPI document, mutated images, captions and bodies.

`MUTATIONS=5000 python -m pytest tests/test_serve_fuzz.py` sends more inputs than the default.
"""

import json
import os
import random
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from serving import client, request_body, served

pytestmark = pytest.mark.slow

MUTATIONS = int(os.environ.get("MUTATIONS", "25"))
FINE = frozenset({200, 400, 404, 405, 413, 415, 422})
ODD = (
    "",
    " ",
    "\x00",
    "\u202e",
    "\u200d",
    "🏳️‍🌈",
    "a\u0301" * 50,
    "\ufeff",
    "ﷺ",
    "𓀀",
    "\n\t",
    "…",
    "漢字",
    "עברית",
    "'\"<script>",
    "%s{}",
    "\\ud800",
)


def images() -> list[bytes]:
    """Return small images in all formats that browsers send."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8))
    found = []
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        place = BytesIO()
        noise.save(place, kind)
        found.append(place.getvalue())
    return found


def mutated(draw: random.Random, content: bytes) -> bytes:
    """Return bytes with random changes, deletions, repetitions, truncation or insertions."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8, 40))):
        at = draw.randrange(len(found) + 1)
        kind = draw.randrange(5)
        if kind == 0 and found:
            found[at % len(found)] = draw.randrange(256)
        elif kind == 1:
            del found[at : at + draw.randrange(1, 16)]
        elif kind == 2:
            found[at:at] = found[at : at + draw.randrange(1, 64)]
        elif kind == 3:
            found[at:at] = draw.randbytes(draw.randrange(1, 16))
        elif draw.random() < 0.3:
            del found[at:]
    return bytes(found)


def caption(draw: random.Random) -> str:
    words = [draw.choice(("a", "red", "dog", *ODD, chr(draw.randrange(1, 0xD7FF)))) for _ in range(draw.randrange(12))]
    return draw.choice((" ", "")).join(words)


@pytest.fixture(scope="module")
def calls():
    with client(raises=False, max_body=1 << 20, max_tokens=4000) as made:
        yield made


def test_mutated_images_and_captions_get_a_response(calls):
    draw, good = random.Random(1), images()
    for number in range(MUTATIONS):
        content = mutated(draw, draw.choice(good)) if number % 10 else draw.choice(good)
        texts = [caption(draw) for _ in range(draw.randrange(1, 4))]
        path = draw.choice(("/v1/score", "/v1/rank", "/v1/rank", "/v1/explain"))
        answer = calls.post(path, files={"image": content}, data={"caption": texts})
        assert answer.status_code == 200, (number, path, answer.text)
        item = answer.json()["items"][0]
        assert len(item.get("scores", item.get("explanations"))) == len(texts)


def test_mutated_bodies_are_rejected_or_answered(calls):
    draw = random.Random(2)
    boundary = b"----boundary"
    form = b"".join(
        b"--%s\r\nContent-Disposition: form-data; name=%s\r\n\r\n%s\r\n" % (boundary, name, value)
        for name, value in ((b'"image"; filename="a.png"', images()[0]), (b'"caption"', b"a dog"))
    )
    kinds = {
        "application/json": json.dumps(request_body()).encode(),
        f"multipart/form-data; boundary={boundary.decode()}": form + b"--%s--\r\n" % boundary,
    }
    for number in range(MUTATIONS):
        kind, body = draw.choice(list(kinds.items()))
        path = draw.choice(("/v1/score", "/v1/rank", "/v1/explain", "/v1/reward", "/v1/figure?kind=json"))
        kind = mutated(draw, kind.encode()).decode("latin-1") if number % 7 == 0 else kind
        kind = "".join(char for char in kind if char.isprintable() and char.isascii())
        answer = calls.post(path, content=mutated(draw, body), headers={"content-type": kind})
        assert answer.status_code in FINE, (number, path, kind, answer.text)
        if answer.status_code != 200:
            assert answer.json()["error"]


@pytest.fixture(scope="module")
def address():
    with served(max_body=1 << 20) as found:
        yield found


def test_routes_conform_to_the_openapi_document(address):
    """All checks of schemathesis on valid and invalid requests, but for what no schema can express."""
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
    hypothesis = pytest.importorskip("hypothesis")
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    always = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
        checks.unsupported_method,
        checks.allow_header_conformance,
    ]
    # Lists of a reward request whose lengths must agree, and a figure of an image and a caption that must be readable.
    unchecked = {"/v1/reward", "/v1/figure"}
    schema = schemathesis.openapi.from_url(f"{address}openapi.json")
    operations = [one.ok() for one in schema.get_all_operations()]
    strategies = [
        one.as_strategy(generation_mode=mode) for one in operations for mode in schemathesis.GenerationMode
    ]  # fmt: skip
    tried = set()

    @hypothesis.settings(
        max_examples=max(60, MUTATIONS), deadline=None, derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(case=hypothesis.strategies.one_of(strategies))
    def check(case):
        tried.add(case.operation.path)
        kept = list(always)
        if case.operation.path not in unchecked:
            kept.append(checks.positive_data_acceptance)
        if case.media_type != "multipart/form-data":  # whose fields are texts, whatever they are meant to be
            kept.append(checks.negative_data_rejection)
        case.validate_response(case.call(), checks=kept)

    check()
    assert {f"/v1/{name}" for name in ("score", "rank", "explain", "reward", "figure", "images")} <= tried
