"""The encoders that msdscore knows by name: data, no code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRow:
    """One encoder: how to load it, and what a user should know before trusting it.

    `loader` is `"module:callable"`, imported when the encoder is loaded and called as
    `loader(source, name=..., revision=..., device=..., dtype=..., **options)`.
    """

    name: str
    loader: str
    family: str
    source: str = ""  # of the weights: hub name, folder, or open_clip's name and tag; empty when there are none
    licence: str = "unknown"
    parameters: int = 0  # in millions
    context: int = 0  # tokens that the text tower reads at once; 0: no limit
    languages: tuple[str, ...] = ("en",)
    trained_on: str = "unknown"
    warning: str = ""  # e.g. a benchmark's images in the training data
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)


MINI_FOLDER = "package:msdscore/encoders/mini/weights"  # the embedded default, as `align export` writes it

_ALIGNED = "msdscore.encoders.aligned.encoder:load_aligned"
_CLIP = "msdscore.encoders.clip:load_clip"
_SIGLIP = "msdscore.encoders.siglip:load_siglip"
_BLIP = "msdscore.encoders.blip:load_blip"
_OPEN_CLIP = "msdscore.encoders.openclip:load_openclip"
_VLM = "msdscore.encoders.vlm:load_vlm"

_WIT = "400 million image-text pairs of the web (OpenAI, not published)"
_LAION = "LAION-2B, English image-text pairs of the web"
_WEBLI = "WebLI, image-text pairs of the web (Google, not published)"
_BLIP_DATA = "COCO, Visual Genome, CC3M, CC12M, SBU and LAION-115M"
_DATACOMP = "DataCompDR-1B: image-text pairs of the web with synthetic captions"
_UNTIED = "patches and tokens lie in spaces that nothing ties together: use the similarity, or train an aligner"
_COCO = "COCO images were in the training data: benchmarks built on COCO are not held out"


def _clip(name: str, source: str, parameters: int, trained_on: str, *, licence: str = "MIT") -> EncoderRow:
    return EncoderRow(
        name=name,
        loader=_CLIP,
        family="clip",
        source=source,
        licence=licence,
        parameters=parameters,
        context=77,
        trained_on=trained_on,
    )


def _siglip(name: str, source: str, parameters: int, *, second: bool = False) -> EncoderRow:
    return EncoderRow(
        name=name,
        loader=_SIGLIP,
        family="siglip2" if second else "siglip",
        source=source,
        licence="Apache-2.0",
        parameters=parameters,
        context=64,
        languages=("multilingual",) if second else ("en",),
        trained_on=_WEBLI,
        warning=_UNTIED,
    )


def _blip(name: str, source: str, parameters: int, tuned_on: str) -> EncoderRow:
    return EncoderRow(
        name=name,
        loader=_BLIP,
        family="blip",
        source=source,
        licence="BSD-3-Clause",
        parameters=parameters,
        context=512,
        trained_on=f"{_BLIP_DATA}; fine-tuned on {tuned_on}",
        warning=_COCO if tuned_on == "COCO" else f"{_COCO}; nor are those built on Flickr30k",
    )


def _open_clip(name: str, source: str, parameters: int, trained_on: str, **more: Any) -> EncoderRow:
    given = {"licence": "Apache-2.0", "context": 77, **more}
    return EncoderRow(
        name=name,
        loader=_OPEN_CLIP,
        family="open_clip",
        source=source,
        parameters=parameters,
        trained_on=trained_on,
        **given,
    )


def _remoteclip(name: str, model: str, parameters: int) -> EncoderRow:
    return _open_clip(
        name,
        "chendelong/RemoteCLIP",
        parameters,
        f"{_WIT}; then remote sensing: RSICD, RSITMD, UCM captions and captions made from boxes and masks",
        warning="RSICD training images were in the training data: RSICD is in-domain",
        options=MappingProxyType({"model": model, "file": f"RemoteCLIP-{model}.pt"}),
    )


def _longclip(name: str, letter: str, model: str, parameters: int) -> EncoderRow:
    return _open_clip(
        name,
        f"BeichenZhang/LongCLIP-{letter}",
        parameters,
        f"{_WIT}; then ShareGPT4V, 1.2 million long captions",
        context=248,
        warning=_COCO,
        options=MappingProxyType({"model": model, "file": f"longclip-{letter}.pt", "context": 248}),
    )


def _vlm(name: str, source: str, parameters: int, trained_on: str, **more: Any) -> EncoderRow:
    given = {"licence": "Apache-2.0", "languages": ("en", "zh"), "warning": f"{_COCO}; {_UNTIED}", **more}
    return EncoderRow(name=name, loader=_VLM, source=source, parameters=parameters, trained_on=trained_on, **given)


ROWS: tuple[EncoderRow, ...] = (
    EncoderRow(
        name="mini",
        loader=_ALIGNED,
        family="msdscore-aligned",
        source=MINI_FOLDER,
        licence="Apache-2.0",
        parameters=33,
        context=512,
        trained_on="images of Flickr8k and COCO with captions by people and a captioner; see its model card",
        warning="small: good for a first look and for English captions of everyday photographs; prefer a larger "
        "encoder for results that matter",
    ),
    EncoderRow(
        name="toy",
        loader="msdscore.encoders.toy:load_toy",
        family="toy",
        licence="Apache-2.0",
        trained_on="nothing",
        warning="compares colours and places only: for tests and documentation, never for evaluation",
    ),
    _clip("clip-b32", "openai/clip-vit-base-patch32", 151, _WIT),
    _clip("clip-b16", "openai/clip-vit-base-patch16", 150, _WIT),
    _clip("clip-l14", "openai/clip-vit-large-patch14", 428, _WIT),
    _clip("clip-l14-336", "openai/clip-vit-large-patch14-336", 428, _WIT),
    _clip("clip-h14", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K", 986, _LAION),
    _clip("clip-bigg14", "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k", 2540, _LAION),
    _clip("tinyclip-8m", "wkcn/TinyCLIP-ViT-8M-16-Text-3M-YFCC15M", 23, "YFCC15M, distilled from CLIP"),
    _clip("tinyclip-40m", "wkcn/TinyCLIP-ViT-40M-32-Text-19M-LAION400M", 84, "LAION-400M, distilled from CLIP"),
    _longclip("longclip-b", "B", "ViT-B-16-quickgelu", 150),
    _longclip("longclip-l", "L", "ViT-L-14-quickgelu", 428),
    _siglip("siglip-base", "google/siglip-base-patch16-224", 203),
    _siglip("siglip-so400m", "google/siglip-so400m-patch14-384", 878),
    _siglip("siglip2-base", "google/siglip2-base-patch16-224", 375, second=True),
    _siglip("siglip2-so400m", "google/siglip2-so400m-patch14-384", 1136, second=True),
    _siglip("siglip2-base-naflex", "google/siglip2-base-patch16-naflex", 375, second=True),
    _siglip("siglip2-so400m-naflex", "google/siglip2-so400m-patch16-naflex", 1136, second=True),
    _blip("blip-itm-base", "Salesforce/blip-itm-base-coco", 224, "COCO"),
    _blip("blip-itm-large", "Salesforce/blip-itm-large-coco", 446, "COCO"),
    _blip("blip-itm-base-flickr", "Salesforce/blip-itm-base-flickr", 224, "Flickr30k"),
    _open_clip(
        "biomedclip",
        "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
        196,
        "PMC-15M, figures and captions of PubMed Central",
        licence="MIT",
        context=256,
        warning="figures of PubMed Central, where ROCOv2 comes from, were in the training data",
    ),
    _remoteclip("remoteclip-b32", "ViT-B-32", 151),
    _remoteclip("remoteclip-l14", "ViT-L-14", 428),
    _open_clip("mobileclip-s1", "MobileCLIP-S1/datacompdr", 85, _DATACOMP, licence="Apple AMLR"),
    _open_clip("mobileclip-s2", "MobileCLIP-S2/datacompdr", 99, _DATACOMP, licence="Apple AMLR"),
    _open_clip("mobileclip-b", "MobileCLIP-B/datacompdr", 150, _DATACOMP, licence="Apple AMLR"),
    _vlm(
        "llava-1.5-7b",
        "llava-hf/llava-1.5-7b-hf",
        7063,
        "LAION/CC/SBU-558K, and 665 thousand instructions on images of COCO, Visual Genome and others",
        family="llava",
        licence="Llama 2 Community",
        context=4096,
        languages=("en",),
    ),
    _vlm(
        "llava-onevision-7b",
        "llava-hf/llava-onevision-qwen2-7b-ov-hf",
        8030,
        "LLaVA-OneVision data: recaptioned images of COCO and others, and instructions",
        family="llava_onevision",
        context=32768,
    ),
    _vlm(
        "llava-critic-7b",
        "lmms-lab/llava-critic-7b",
        8030,
        "LLaVA-OneVision data; then LLaVA-Critic-113k, judgements by GPT-4o",
        family="llava_onevision",
        licence="see its model card",
        context=32768,
    ),
    _vlm(
        "qwen2.5-vl-7b",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        8292,
        "not published (Alibaba)",
        family="qwen2_5_vl",
        context=128000,
        languages=("multilingual",),
        warning=f"which images it has seen is not published; {_UNTIED}",
    ),
)

# The `model_type` of a checkpoint's config.json -> the loader of its family.
FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "blip": _BLIP,
        "clip": _CLIP,
        "llava": _VLM,
        "llava_onevision": _VLM,
        "llava_qwen": _VLM,
        "msdscore-aligned": _ALIGNED,
        "open_clip": _OPEN_CLIP,
        "qwen2_5_vl": _VLM,
        "siglip": _SIGLIP,
        "siglip2": _SIGLIP,
    }
)


def languages_of(name: str) -> tuple[str, ...]:
    """The languages that an encoder reads, by its short name or its source; none where they are not known.

    >>> languages_of("clip-b32"), languages_of("models/mine")
    (('en',), ())
    """
    return next((row.languages for row in ROWS if name in (row.name, row.source)), ())


# What stands before the colon of a name -> the loader that understands the rest.
SCHEMES: Mapping[str, str] = MappingProxyType({"open_clip": _OPEN_CLIP})
