"""Scored captions of several captioners, matched by image."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from msdscore.core.divergence import soften
from msdscore.errors import ImageError, InputError, shortened
from msdscore.forms.registry import facts_of
from msdscore.intervals import Floats, Ints
from msdscore.io.files import TarImage, absolute_path, source_key
from msdscore.io.images import read_source
from msdscore.report.results import Results, read_results, scored_rows
from msdscore.scoring.references import signed


@dataclass(frozen=True, slots=True)
class Contest:
    """Captioners and the images that all of them described; fields after `left_out` have one entry per caption."""

    files: tuple[Path, ...]
    signature: str
    captioners: tuple[str, ...]
    images: tuple[str, ...]
    left_out: int  # images without a caption or score of some captioner
    captioner_of: Ints  # indices into `captioners`
    image_of: Ints
    numbers: Mapping[str, Floats]

    def means(self, name: str) -> Floats:
        """Return the mean of a score over the captions of each image: (images, captioners)."""
        sums, counts = np.zeros((2, len(self.images), len(self.captioners)))
        np.add.at(sums, (self.image_of, self.captioner_of), self.numbers[name])
        np.add.at(counts, (self.image_of, self.captioner_of), 1)
        return sums / counts


class _Row(NamedTuple):
    """A scored caption: its captioner, its image, and whether it has no score."""

    captioner: str
    image: str
    failed: bool


def read_contest(
    files: Sequence[str],
    *,
    shared: bool = False,
    people: str | None = None,
    images: Path | None = None,
    rows: Path | None = None,
) -> Contest:
    """Read scored files of several captioners, one file each or one for all with a column `system`.

    NAME=FILE names the captioner of a file. All must have the same signature and the same images (see `matched_names`;
    `images` and `rows` locate them); with `shared`, captioners are ranked on the images that all have. `people` is a
    column of human ratings in the rows.
    """
    paths, labels, read = _read_files(files)
    captions = _captions(paths, labels, read, matched_names(
        [(path, results.images) for path, results in zip(paths, read, strict=True)], images=images,
        rows=rows if len(files) == 1 else None,  # positions in one file of rows do not apply to other files
    ))  # fmt: skip
    numbers = _numbers(read, people)
    captioners = tuple(dict.fromkeys(row.captioner for row in captions))
    if len(captioners) < 2:
        raise InputError(f"expected captions of two captioners or more, got {len(captioners)}: {', '.join(captioners)}")
    common, left_out = _shared_images(captions, captioners, shared=shared)
    index = {image: position for position, image in enumerate(common)}
    order = [row_index for row_index, row in enumerate(captions) if row.image in index]
    order.sort(key=lambda at: (index[captions[at].image], captioners.index(captions[at].captioner)))
    ordered, signature = [captions[at] for at in order], read[0].signature
    numbers = {name: values[order] for name, values in numbers.items()}
    counts = numbers.get("reference_count", np.zeros(0))
    if (counts > 0).any():
        signature = signed(signature, counts[counts > 0])
    image_of = np.array([index[row.image] for row in ordered])
    # The captions of all captioners of an image are one candidate set.
    temperature = float(facts_of(signature).get("xi", 0.2))
    numbers["soft_msd"] = soften(numbers["similarity"], numbers["msd"], image_of, temperature=temperature)[1]
    return Contest(
        tuple(paths), signature, captioners, common, left_out,
        np.array([captioners.index(row.captioner) for row in ordered]), image_of, numbers,
    )  # fmt: skip


def _numbers(read: Sequence[Results], people: str | None) -> dict[str, Floats]:
    """Return the scores that all files have, and the human ratings in the column `people`, over all rows."""
    names = [name for name in read[0].numbers if all(name in results.numbers for results in read)]
    numbers = {name: np.concatenate([results.numbers[name] for results in read]) for name in names}
    if people is not None:
        numbers[people] = np.concatenate([_ratings(results, people) for results in read])
    return numbers


def _read_files(files: Sequence[str]) -> tuple[list[Path], list[str], list[Results]]:
    """Return the paths, the names from NAME=FILE (else empty) and the scores of comparable files."""
    paths, labels, read = list[Path](), list[str](), list[Results]()
    for argument in files:
        name, equals, rest = argument.partition("=")
        has_name = bool(equals) and not Path(argument).exists()
        paths.append(path := Path(rest if has_name else argument))
        labels.append(name if has_name else "")
        if path.resolve() in [other.resolve() for other in paths[:-1]]:
            raise InputError(f"{path} was passed twice; expected each scored file once")
        read.append(results := read_results(path))
        if not results.signature:
            raise InputError(f"{path}: has no signature; score it with msdscore score")
        if results.signature != read[0].signature:
            detail = f"{path} was scored with {results.signature}, {paths[0]} with {read[0].signature}"
            raise InputError(f"{detail}; score both with the same encoder and settings")
    return paths, labels, read


def _captions(
    paths: Sequence[Path], labels: Sequence[str], read: Sequence[Results], images: Sequence[Sequence[str]]
) -> list[_Row]:
    """Return all rows of all files; raise `InputError` if a captioner describes an image in two files."""
    rows, described = list[_Row](), dict[tuple[str, str], int]()
    for file_index, (label, results) in enumerate(zip(labels, read, strict=True)):
        default_name = label or Path(results.name).name.split(".")[0]
        for position, image in enumerate(images[file_index]):
            if not results.images[position]:
                raise InputError(
                    f"{results.name} row {position}: has no image name; captioners are compared image by image"
                )
            captioner = ("" if results.systems is None or label else results.systems[position]) or default_name
            if described.setdefault((captioner, image), file_index) != file_index:
                both = f"{paths[described[captioner, image]]} and {paths[file_index]}"
                raise InputError(
                    f"{both} both have captions of {shortened(image)} by {captioner}; "
                    "name the captioners with NAME=FILE"
                )
            failed = bool(results.errors[position]) or bool(np.isnan(results.numbers["msd"][position]))
            rows.append(_Row(captioner, image, failed))
    return rows


def _ratings(results: Results, people: str) -> Floats:
    if people not in results.others:
        raise InputError(f"{results.name}: no column {people!r}; it has {', '.join(results.others) or 'no others'}")
    values = []
    for row, text in enumerate(results.others[people]):
        try:
            values.append(float(text))
        except ValueError as error:
            raise InputError(f"{results.name} row {row}: expected a number in {people}") from error
    return np.array(values)


def _shared_images(rows: Sequence[_Row], captioners: Sequence[str], *, shared: bool) -> tuple[tuple[str, ...], int]:
    """Return the images that every captioner has described, and the number of others."""
    described: dict[str, set[str]] = {captioner: set() for captioner in captioners}
    for row in rows:
        described[row.captioner].add(row.image)
    all_images, common = set.union(*described.values()), set.intersection(*described.values())
    if common != all_images and not shared:
        captioner, own_images = min(described.items(), key=lambda entry: len(entry[1]))
        raise InputError(
            f"{captioner} has {len(own_images)} of {len(all_images)} images, {len(common)} are shared by all; "
            "captioners are ranked on the same images: caption the others too, or pass --shared"
        )
    usable = sorted(common - {row.image for row in rows if row.failed})
    if common and not usable:
        raise InputError(
            f"all {len(common)} shared images have a caption that could not be scored; see column error of the files"
        )
    if not usable:
        raise InputError(
            "no image is shared by all captioners; expected rows with the same paths of images, such as val/1.png, or "
            "images that can be found (--images)"
        )
    return tuple(usable), len(all_images) - len(usable)


# An absolute path, a member of a tar file, or the hash of an image stored in the rows; None if it cannot be found.
Location = Path | TarImage | str | None


def matched_names(
    files: Sequence[tuple[Path, Sequence[str]]], *, images: Path | None = None, rows: Path | None = None
) -> list[list[str]]:
    """Return the names of each file's rows so that equal names are the same image; `files` has the names in the rows.

    An image is identified by its path in the rows: `val/1.png` and `test/1.png` are two images. Rows that write
    the path of one file in different ways (`1.png`, `../val/1.png`) get one name. Images that cannot be found are
    compared by name only.

    Raises:
        InputError: If two rows have the same name but different images.
    """
    first: dict[str, tuple[Path, Location]] = {}
    name_of: dict[Location, str] = {}
    matched, content = [], cache(_content)
    for path, names in files:
        file_names = []
        for written, location in zip(names, _locations(path, len(names), images, rows), strict=True):
            name = name_of.get(location) or os.path.normpath(written)
            file_names.append(name)
            if location is None:
                continue
            name_of[location] = name
            first_path, first_location = first.setdefault(name, (path, location))
            if first_location != location and content(first_location) != content(location):
                raise InputError(
                    f"{shortened(written)} is one image in {first_path} and another one in {path}; "
                    "captioners are ranked on the same images: use different paths for different images in the rows"
                )
        matched.append(file_names)
    return matched


def _locations(path: Path, count: int, images: Path | None, rows: Path | None) -> list[Location]:
    locations: list[Location] = [None] * count
    for row in scored_rows(path, rows, images):
        source = row.image
        if source is None or row.index >= count:
            continue
        if isinstance(source, bytes):
            locations[row.index] = source_key(source)
        elif isinstance(source, TarImage):
            locations[row.index] = source
        elif isinstance(source, str) and Path(source).is_file():
            locations[row.index] = Path(absolute_path(source))
    return locations


def _content(location: Location) -> str:
    """Return the hash of an image's bytes, or a unique error text for an unreadable image."""
    if location is None or isinstance(location, str):
        return str(location)
    try:
        return source_key(read_source(location))
    except ImageError as error:
        return f"{location}: {error}"
