"""Tar shards as records: WebDataset samples, the img2dataset layout, and DataComp metadata tables."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from msdscore.errors import InputError, shortened
from msdscore.io.arrow import pa, pq
from msdscore.io.inputs.columns import CAPTION_NAMES, first_of
from msdscore.io.inputs.formats import JSON, Record, Records, RepeatedNameError, shallow, valid_text
from msdscore.io.stores import mark
from msdscore.io.tar import TarSample, read_samples

TEXT_ENDINGS = ("txt", "caption", "text")
CAPTION_LISTS = ("captions", "texts", "sentences")
SHARED_KEY = "is that of several samples"  # part of the warning about such a key
DOWNLOADED = "success"  # img2dataset's status of a downloaded image
_AMBIGUOUS = {"status": "ambiguous", "error_message": "the metadata table has different rows with this key"}
_METADATA = ("key", "uid", "caption", "text", "status", "error_message")  # columns read from the metadata table


class TarSamples(Records):
    """One record per caption of every sample: its JSON values, `key`, `image` and `caption`.

    A Parquet table of the same name next to the tar adds `uid`, `text` and `status` to samples of the same `key` (or,
    in tables without keys, the same `uid`). A sample that was not downloaded, or a truncated tar, has an error.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.files = (path, path.with_suffix(".parquet"))

    def fingerprint(self) -> str:
        """Return a fingerprint of the tar and its metadata table."""
        return "+".join(mark(str(path)) for path in self.files if path.is_file())

    def read(self) -> Iterator[Record]:
        """Iterate over one record per caption, and one more for a truncated tar."""
        seen, metadata = set[int](), self._metadata
        for sample in read_samples(self.path, (*TEXT_ENDINGS, "json")):
            if (key := hash(sample.key)) in seen:  # a hash takes a third of the memory of a key
                sample.warnings.append(f"the key {shortened(valid_text(sample.key))} {SHARED_KEY}")
            seen.add(key)
            yield from _records(sample, metadata)

    @cached_property
    def _metadata(self) -> Mapping[str, Mapping[str, Any]]:
        """The rows of the metadata table by `key`, else by `uid`; empty if there is no such table."""
        path = self.files[1]
        if not path.is_file():
            return {}
        try:
            schema = pq.read_schema(path)
            names = [name for name in _METADATA if name in schema.names]
            key_name = first_of(names, ("key", "uid"))
            # Score files next to their tars have keys too, but are not metadata.
            if key_name is None or b"msdscore" in (schema.metadata or {}):
                return {}
            rows = pq.read_table(path, columns=names).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: cannot be read as metadata of its tar ({error}); repair or delete it") from error
        metadata: dict[str, dict[str, Any]] = {}
        for row in rows:
            values = {name: value for name, value in row.items() if value is not None}
            if metadata.setdefault(str(row[key_name]), values) != values:
                metadata[str(row[key_name])] = _AMBIGUOUS
        return metadata


def _records(sample: TarSample, metadata: Mapping[str, Mapping[str, Any]]) -> Iterator[Record]:
    if not sample.key:
        yield Record(error=sample.error)
        return
    values, error = _values(sample)
    if metadata:
        keys = (sample.key, Path(sample.key).name, str(values.get("uid")))
        row = next((metadata[key] for key in keys if metadata.get(key)), {})
        values = {**row, **values}
    values["key"] = valid_text(sample.key)
    warning = "; ".join(sample.warnings) or None
    texts = [text.strip() for ending, text in sample.texts if ending in TEXT_ENDINGS]
    if texts:
        values["caption"] = valid_text(texts[0])
    if sample.image is not None:
        values["image"] = sample.image
    status = values.get("status", DOWNLOADED)
    if error is None and status != DOWNLOADED:
        error = f"{sample.key}: status {shortened(str(status))} ({values.get('error_message') or 'no error message'})"
    captions = next((values.get(name) for name in CAPTION_LISTS if isinstance(values.get(name), list)), None)
    if not captions or first_of(values, CAPTION_NAMES) is not None:
        yield Record(values, error, warning)
        return
    sample_id = values.get("id", values["key"])
    for number, caption in enumerate(captions):
        text = caption.get("raw") if isinstance(caption, dict) else caption
        yield Record({**values, "id": f"{sample_id}#{number}", "caption": text}, error, warning)


def _values(sample: TarSample) -> tuple[dict[str, Any], str | None]:
    """Return the values of the sample's JSON file, or an error if it cannot be read."""
    text = next((text for ending, text in sample.texts if ending == "json"), None)
    if text is None:
        return {}, sample.error
    try:
        values = JSON.decode(text)
        values = shallow(values) if isinstance(values, dict) else values
    except RepeatedNameError as error:
        return {}, f"{sample.key}.json: {error}"
    except (ValueError, RecursionError) as error:
        return {}, f"{sample.key}.json: not valid JSON ({shortened(str(error))})"
    if not isinstance(values, dict):
        return {}, f"{sample.key}.json: expected an object, got {type(values).__name__}"
    return valid_text(values), sample.error
