"""Find the files of checkpoints on the Hugging Face hub: in its cache, else by download.

Weights are read from safetensors, or from a `.bin` file through `torch.load(weights_only=True)`; nothing else
is ever opened, and no code of a checkpoint is ever run.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import file_digest, sha1, sha256
from pathlib import Path

from msdscore.encoders.checkpoints import (
    CONFIG,
    OPEN_CLIP,
    SMALL_FILES,
    TRANSFORMERS,
    Checkpoint,
    Format,
    Needs,
    file_sha256,
    local_checkpoint,
    looks_like_hub_name,
)
from msdscore.errors import WeightsError, require

_PARTS = re.compile(r"(trunk(-\d+)?|bank)\.safetensors")  # of an aligned encoder, in addition to its heads


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


def find_config(source: str, *, revision: str | None = None) -> Checkpoint:
    """Find only the configuration of a checkpoint, which names its kind.

    Raises:
        WeightsError: there is none.
    """
    both = [CONFIG, OPEN_CLIP.config]
    return _find(source, revision, lambda _: both, TRANSFORMERS, OPEN_CLIP)


def _verified(checkpoint: Checkpoint, needs: Needs = ()) -> Checkpoint:
    """The checkpoint with a hash of its content if it is a local folder; cached files are compared with the hub's."""
    if not checkpoint.mark:
        return checkpoint.marked(needs)
    if missing := checkpoint.missing(needs):
        raise WeightsError(f"{checkpoint.source!r} has no {missing[0]}; expected a complete checkpoint folder")
    verify_cached(checkpoint.files())
    return checkpoint


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
    local = local_checkpoint(source, *forms)
    if local is not None:
        return local
    if not looks_like_hub_name(source):
        raise WeightsError(f"folder {source!r} does not exist; pass an existing folder or a hub name such as org/model")

    def cached() -> Checkpoint | None:
        return next(filter(None, (cached_checkpoint(source, revision, form) for form in forms)), None)

    checkpoint = cached()
    if checkpoint is not None and (needs is None or not checkpoint.missing(needs)):
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
    return [name for name in top if name.endswith(SMALL_FILES) and ".index." not in name]


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


def verify_cached(files: Iterable[Path]) -> None:
    """Raise if files of the Hugging Face cache differ from those on the hub.

    The cache names a file by the hash of its content: SHA-256 for large files, git's for small ones. If it contains
    copies instead of links, there is nothing to compare with.

    Raises:
        WeightsError: the content of a file differs.
    """
    for path in files:
        name = path.resolve().name
        if not path.is_symlink() or len(name) not in (40, 64):
            continue
        if len(name) == 64:
            digest = file_sha256(path)
        else:
            content = path.read_bytes()
            digest = sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        if digest != name:
            raise WeightsError(f"{path}: is damaged (its content differs from the hub's); delete and download it again")


def files_sha256(files: Sequence[Path]) -> str:
    """The SHA-256 of one file; of several, the SHA-256 of their bytes in order; empty if there are none."""
    if len(files) == 1:
        return file_sha256(files[0])
    digest = sha256()
    for path in files:
        with path.open("rb") as file:
            file_digest(file, lambda: digest)
    return digest.hexdigest() if files else ""


def verify_files(files: Sequence[Path], expected: str, *, source: str) -> None:
    """Raise unless the weights have the expected hash; an empty `expected` accepts any.

    Raises:
        WeightsError: their SHA-256 differs.
    """
    if not expected:
        return
    digest = files_sha256(files)
    if digest != expected:
        raise WeightsError(
            f"weights of {source!r} should have SHA-256 {expected[:12]}…, got {digest[:12] or 'none'}…; "
            "use the backbone that the heads were trained on"
        )
