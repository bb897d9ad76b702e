"""What the service takes and answers: the models behind the OpenAPI page."""

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_Strict = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=False)
Picture = Annotated[
    str, Field(description="The bytes of a picture file (JPEG, PNG, WebP, …) in base64; a data: URL is taken too.")
]
Captions = Annotated[list[str], Field(min_length=1, description="Captions of the picture.")]


class Item(BaseModel):
    """One picture and its captions."""

    model_config = _Strict
    image: Picture
    captions: Captions


class Items(BaseModel):
    """Several pictures, each with its captions."""

    model_config = _Strict
    items: Annotated[list[Item], Field(min_length=1)]


class RewardRequest(BaseModel):
    """Completions of a trainer; `image_of[i]` is the number of the picture of completion i (default: i)."""

    model_config = _Strict
    images: Annotated[list[Picture], Field(min_length=1)]
    completions: Annotated[list[str | None], Field(min_length=1)]
    image_of: list[Annotated[int, Field(ge=0)]] | None = None


class ScoredCaption(BaseModel):
    """The numbers of one caption, or the reason why there are none."""

    model_config = ConfigDict(extra="allow")
    caption: str
    msd: float | None = Field(None, description="The score: higher is better.")
    soft_msd: float | None = Field(None, description="The score within its candidate set: higher is better.")
    similarity: float | None = Field(None, description="Global similarity g: higher is better.")
    coverage: float | None = Field(None, description="What the caption omits: lower is better.")
    support: float | None = Field(None, description="What the caption invents: lower is better.")
    information: float | None = Field(
        None, description="How much the caption tells about this picture, in spreads over other pictures."
    )
    match: float | None = Field(None, description="Probability that the caption belongs to this picture.")
    error: str | None = None


class ScoredItem(BaseModel):
    """The scores of one picture's captions, in the order given."""

    scores: list[ScoredCaption]


class RankedItem(ScoredItem):
    """The same with the numbers of the captions from best to worst Soft-MSD."""

    ranking: list[int]


class ScoreAnswer(BaseModel):
    """One entry per picture; every number carries the signature."""

    signature: str
    items: list[ScoredItem]


class RankAnswer(BaseModel):
    """One entry per picture, each a candidate set."""

    signature: str
    items: list[RankedItem]


class ExplainedItem(BaseModel):
    """One explanation per caption, null with a reason in `errors` for one that cannot be read.

    An explanation has the score, `words` and `tokens` with their terms in nats, `boxes` of the patches in pixels and
    maps over them; `look` has the colours and scales with which every figure of msdscore draws it.
    """

    error: str | None = Field(None, description="Why the picture cannot be read.")
    explanations: list[dict[str, Any] | None]
    errors: list[str | None]


class ExplainAnswer(BaseModel):
    """One entry per picture."""

    signature: str
    items: list[ExplainedItem]


class RowsAnswer(BaseModel):
    """The worst rows of a scored file by one of its numbers."""

    by: str
    columns: list[str] = Field(description="Numbers that the file has.")
    total: int
    failed: int = Field(description="Rows without that number.")
    rows: list[dict[str, Any]]


class VersionAnswer(BaseModel):
    """Version, signature, and the Python call that makes the same scorer."""

    version: str
    signature: str
    scorer: str | None = None


class Status(BaseModel):
    """How the service is."""

    status: str


class RewardAnswer(BaseModel):
    """One reward per completion; null for what cannot be judged, with the reason."""

    signature: str
    rewards: list[float | None]
    reasons: list[str | None]


class Problem(BaseModel):
    """Why a request was refused: what was expected, what came, what to do."""

    error: str
    request_id: str | None = None


def decode_picture(text: str) -> bytes:
    """The bytes of a picture given as base64, in one line or several, or as a data: URL.

    >>> decode_picture("data:image/png;base64,aGk="), decode_picture("aG\\nk=\\n")
    (b'hi', b'hi')
    """
    head, comma, rest = text.partition(",")
    if text.startswith("data:"):
        if not comma or not head.endswith(";base64"):
            raise ValueError("expected a data: URL in base64, as in data:image/png;base64,…")
        text = rest
    try:
        return b64decode("".join(text.split()), validate=True)
    except (Base64Error, ValueError) as error:
        raise ValueError(f"expected the bytes of a picture in base64 ({error})") from error
