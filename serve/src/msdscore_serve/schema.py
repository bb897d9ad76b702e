"""Models of requests and responses, and the parts of the OpenAPI document that FastAPI cannot derive."""

from typing import Annotated, Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from msdscore.core.evidence import ZERO
from msdscore.text.warnings import GUARD

FIGURES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "html": "text/html; charset=utf-8",
    "json": "application/json",
}  # the formats of `msdscore explain`
_Strict = ConfigDict(extra="forbid", frozen=True, strict=True)
Image = Annotated[
    str,
    Field(description="The bytes of an image file (JPEG, PNG, …) in base64, a data: URL, or a name from /v1/images."),
]


class Item(BaseModel):
    """One image and its captions."""

    model_config = _Strict
    image: Image
    captions: Annotated[list[str], Field(min_length=1, description="Captions of the image.")]
    references: Annotated[
        list[str], Field(description="Human captions of the image; with them the answer has ref_msd.")
    ] = []


_BASE64 = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
# Not a pattern of pydantic, which would search the whole image.
_ENCODED = {"pattern": f"^(sha256:[0-9a-f]{{64}}|(data:[a-z/+.-]*;base64,)?{_BASE64})$"}


class SingleItem(Item):
    """One image and its captions, and nothing else: an image that is not valid base64 is an error of the request."""

    image: Annotated[Image, Field(json_schema_extra=_ENCODED)]


class Items(BaseModel):
    """Several images, each with its captions."""

    model_config = _Strict
    items: Annotated[list[Item], Field(min_length=1)]


class RewardRequest(BaseModel):
    """Completions of a trainer; `image_of[i]` is the index of the image of completion i (default: i).

    The reward is `by`; by default `ref_msd` with `references` (a list of human captions per image), else `msd`. A
    completion without that score has no reward. `guard` is subtracted from the reward of lists of words, shuffled or
    repeated words and captions with invisible or look-alike characters; 0 turns it off. Completions are scored as
    sent: remove a model's thinking first.
    """

    model_config = _Strict
    images: Annotated[list[Image | None], Field(min_length=1)]
    completions: Annotated[list[str | None], Field(min_length=1)]
    image_of: list[Annotated[int, Field(ge=0)]] | None = None
    references: list[list[str]] | None = None
    by: Literal["msd", "match", "ref_msd"] | None = None
    guard: Annotated[float, Field(ge=0, allow_inf_nan=False)] = GUARD


_PARSED_MODELS = (SingleItem, Items, RewardRequest)
_Set = Annotated[bool, Field(description="Score the captions as one candidate set (Soft-MSD) instead of separately.")]


class FigureQuery(BaseModel):
    """Query of /v1/figure."""

    kind: Literal["png", "svg", "pdf", "html", "json"] = "png"
    set: _Set = False


class ExplainQuery(BaseModel):
    """Query of /v1/explain; `words` are score, words and suggestions, under 2 kB per caption."""

    set: _Set = False
    fields: Annotated[
        str,
        Field(
            pattern=r"^(words|maps|look|all)(,(words|maps|look|all))*$",
            description="Parts to return, separated by commas: `words`, `maps`, `look` (colours and scales), or `all`.",
        ),
    ] = "all"
    doubt: Annotated[
        float,
        Field(gt=0, lt=1, description="Words with a p-value below this are `doubtful`: likely wrong, or to check."),
    ] = ZERO

    @property
    def parts(self) -> frozenset[str]:
        """The parts to return: words, maps and look."""
        fields = frozenset(self.fields.split(","))
        return frozenset({"words", "maps", "look"}) if "all" in fields else fields


class ScoredCaption(BaseModel):
    """The scores of one caption; with an error, the same keys with null."""

    model_config = ConfigDict(extra="allow")
    caption: str
    headline: str | None = Field(None, description="Verdict and words in doubt: `on topic (83 %) · check: blue`.")
    msd: float | None = Field(None, description="The score: higher is better.")
    soft_msd: float | None = Field(None, description="The score within its candidate set: higher is better.")
    similarity: float | None = Field(None, description="Cosine of image and caption: higher is better.")
    information: float | None = Field(None, description="How much the caption says about this image: higher is better.")
    invented: float | None = Field(None, description="Expected share of words that are false: lower is better.")
    match: float | None = Field(None, description="Probability that the caption belongs to this image.")
    ref_msd: float | None = Field(None, description="The score with references: higher is better.")
    word_notes: list[str] | None = Field(None, description="Words in doubt, or that no word stands out.")
    warnings: list[str] = Field([], description="Remarks on the caption and the image, such as another language.")
    readable: bool | None = Field(None, description="False for a language that the encoder was not trained on.")
    error: str | None = None


class ScoredItem(BaseModel):
    """The scores of one image's captions, in the order of the request."""

    scores: list[ScoredCaption]


class RankedItem(ScoredItem):
    """The same with the indices of the captions from best to worst Soft-MSD."""

    ranking: list[int]


class ScoreAnswer(BaseModel):
    """One entry per image; every number carries the signature."""

    signature: str
    items: list[ScoredItem]


class RankAnswer(BaseModel):
    """One entry per image, each a candidate set."""

    signature: str
    items: list[RankedItem]


class ExplainedItem(BaseModel):
    """One explanation per caption, null with a message in `errors` for one that cannot be read.

    An explanation has the `headline` (verdict and words in doubt), the score, `warnings`, `words` and `tokens` with
    their terms in nats, `doubtful` words, `boxes` of the patches in pixels and maps over them; `look` has the colours
    and scales with which every figure of msdscore draws it. Captions are scored separately, with `?set=true` as one
    candidate set. `readable` is false for a caption in a language that the encoder was not trained on: its numbers are
    meaningless, and its words are not judged.
    """

    error: str | None = Field(None, description="Why the image cannot be read.")
    explanations: list[dict[str, Any] | None]
    errors: list[str | None]


class ExplainAnswer(BaseModel):
    """One entry per image."""

    signature: str
    items: list[ExplainedItem]


class StoredAnswer(BaseModel):
    """The name of an uploaded image: pass it as `image` in later requests."""

    image: str


class RewardAnswer(BaseModel):
    """One reward per completion; null with an error for one that cannot be scored.

    `warnings` are remarks on each completion; `guarded` is true if the guard was subtracted.
    """

    signature: str
    rewards: list[float | None]
    reasons: list[str | None]
    warnings: list[list[str]]
    guarded: list[bool]


class VersionAnswer(BaseModel):
    """Version, signature, limits of verdicts, and the Python call that creates the same scorer."""

    version: str
    signature: str
    scorer: str
    verdict_at: Annotated[list[float], Field(description="`off topic` below the first, `on topic` from the second on.")]


class Status(BaseModel):
    """The state of the service."""

    status: str


class Problem(BaseModel):
    """Error of a rejected request: what was expected, what was received, what to do."""

    error: str
    request_id: str | None = None


GROUPS = [
    {"name": "Captions", "description": "Score, rank and explain captions of an image."},
    {"name": "Training", "description": "Rewards for reinforcement learning."},
    {"name": "Monitoring", "description": "Health, version and metrics."},
]
_PROBLEMS = {
    400: "Malformed HTTP request.",
    401: "Missing or wrong token.",
    403: "Foreign host name, or a request from a page of another site.",
    404: "Unknown image: send it to /v1/images again.",
    408: "The request body stalled.",
    413: "A limit of the service is exceeded.",
    415: "Unsupported content type.",
    422: "Invalid request.",
    503: "The queue is full; try again after Retry-After seconds.",
    504: "The time limit is exceeded.",
}
JSON, FORM = "application/json", "multipart/form-data"
_FILE = {"type": "string", "format": "binary"}
_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_LINES = {"type": "array", "items": {"type": "string"}, "description": "Human captions."}
QUERIES: dict[str, type[BaseModel]] = {"figure": FigureQuery, "explain": ExplainQuery}


def _parameters_of(route: str) -> list[dict[str, Any]]:
    """Return the query parameters of a route, for the OpenAPI document."""
    fields = QUERIES[route].model_json_schema()["properties"] if route in QUERIES else {}
    return [{"name": name, "in": "query", "schema": schema} for name, schema in fields.items()]


def request_of(route: str) -> dict[str, Any]:
    """Return the request body of a route, for the OpenAPI document."""
    item, items, reward = ({"$ref": f"#/components/schemas/{model.__name__}"} for model in _PARSED_MODELS)
    image = {FORM: _form(["image", "caption"], {"image": _FILE, "caption": _TEXTS, "reference": _LINES})}
    bodies: dict[str, dict[str, Any]] = {
        "images": {FORM: _form(["image"], {"image": _FILE})},
        "reward": {JSON: reward},
        "figure": {JSON: item, **image},
    }
    body = bodies.get(route, {JSON: {"anyOf": [item, items]}, **image})
    content = {kind: {"schema": schema} for kind, schema in body.items()}
    return {"requestBody": {"required": True, "content": content}, "parameters": _parameters_of(route)}


def _form(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the responses of rejected requests, for the OpenAPI document."""
    return {status: {"model": Problem, "description": _PROBLEMS[status]} for status in statuses}


def responses_of(route: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route other than its model, for the OpenAPI document."""
    content = {kind: {"schema": _FILE} for kind in FIGURES.values()}
    figure: dict[int | str, dict[str, Any]] = {200: {"description": "The figure.", "content": content}}
    return problems(*_PROBLEMS) | (figure if route == "figure" else {})


def complete_openapi(app: FastAPI) -> None:
    """Add the models of bodies that FastAPI does not parse to the document."""
    derive = app.openapi

    def openapi() -> dict[str, Any]:
        document = derive()
        models = [(model, "validation") for model in _PARSED_MODELS]
        _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
        document["components"]["schemas"] |= schemas["$defs"]
        return document

    app.openapi = openapi  # type: ignore[method-assign]
