import tarfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import PurePosixPath, PureWindowsPath
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msdscore.errors import ImageError, InputError
from msdscore.io.files import TarImage
from msdscore.rows import images
from msdscore.rows.images import ImageNames, StoredImage, StoredImages, read_columns
from msdscore.rows.tars import TarWalk, plain_header, read_samples, sample_key
from tar_shards import tar_of


def image_table(path, count=10, group=3):
    cells = [{"bytes": b"image %d" % number, "path": None} for number in range(count)]
    table = pa.table({"file_name": [f"a/{number}.jpg" for number in range(count)], "image": cells})
    pq.write_table(table, path, row_group_size=group)
    return path


def test_stored_images_are_found_by_name_and_read_from_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "CACHED_BYTES", 1)  # every row group evicts the previous one
    found = list(StoredImages([image_table(tmp_path / "p.parquet")], "file_name"))
    assert [image.name for image in found] == [f"{number}.jpg" for number in range(10)]
    assert [image.group for image in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(StoredImage.read, found * 5))
    assert read == [b"image %d" % number for number in range(10)] * 5


def test_names_match_the_paths_of_windows(monkeypatch):
    monkeypatch.setattr(images, "PurePath", PureWindowsPath)
    names = ImageNames()
    names.add("val/1.jpg")
    names.add(r"train\1.jpg")
    assert names.find(r"C:\data\val\1.jpg") == "val/1.jpg"
    assert names.find(r"D:\train\1.png", any_suffix=True) == "train/1.jpg"


def stored(path, images):
    cells = pa.table({"file_name": [name for name, _ in images], "image": [content for _, content in images]})
    pq.write_table(cells, path)
    return StoredImages([path], "file_name")


def test_images_in_different_folders_are_different(tmp_path):
    images = stored(tmp_path / "p.parquet", [("a/1.jpg", b"A"), ("b/1.jpg", b"B"), ("2.jpg", b"2")])
    assert [images.find(path).read() for path in ("a/1.jpg", "/data/b/1.jpg", "x/2.jpg")] == [b"A", b"B", b"2"]
    assert images.find("c/1.jpg") is images.find("3.jpg") is None
    with pytest.raises(ImageError, match=r"a/1\.jpg and b/1\.jpg"):
        images.find("1.jpg")
    with pytest.raises(InputError, match=r"x/2\.jpg or y/2\.jpg"):
        images.find("y/2.jpg")


def test_an_image_without_a_name_is_not_found(tmp_path):
    images = stored(tmp_path / "p.parquet", [(None, b"A"), ("2.jpg", b"2")])
    assert images.find("None") is None
    assert images.find("2.jpg").read() == b"2"


def test_a_repeated_name_is_an_error_unless_the_images_are_equal(tmp_path):
    images = stored(tmp_path / "p.parquet", [("1.jpg", b"A"), ("1.jpg", b"A"), ("2.jpg", b"A"), ("2.jpg", b"B")])
    assert images.find("1.jpg").read() == b"A"
    with pytest.raises(ImageError, match=r"images are called 2\.jpg"):
        images.find("2.jpg")


def test_a_row_group_is_read_once(tmp_path, monkeypatch):
    opened = []
    real = pq.ParquetFile
    monkeypatch.setattr(images.pq, "ParquetFile", lambda file: opened.append(file) or real(file))
    path = image_table(tmp_path / "once.parquet")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(StoredImage.read, [StoredImage("x", path, row) for row in (0, 1, 2)] * 4))
    assert opened == [path]


def test_missing_bytes_and_columns_are_reported(tmp_path):
    path = tmp_path / "odd.parquet"
    pq.write_table(pa.table({"file_name": ["a.jpg", "b.jpg"], "image": [None, b"plain bytes"]}), path)
    assert StoredImage("b.jpg", path, 1).read() == b"plain bytes"
    with pytest.raises(ImageError, match=r"row 0 \(a\.jpg\) .*no image"):
        StoredImage("a.jpg", path, 0).read()
    with pytest.raises(InputError, match="caption; it has file_name"):
        read_columns(path, ("caption",))


def test_tar_samples(tmp_path):
    files = {"d/1.jpg": b"one", "d/1.txt": b"a dog", "d/2.PNG": b"two", "d/2.cls": b"7", "d/3.jfif": b"three"}
    path = tar_of(tmp_path / "s.tar", *files.items())
    samples = list(read_samples(path, ("txt",)))
    assert [(sample.key, sample.texts) for sample in samples] == [("d/1", [("txt", "a dog")]), ("d/2", []), ("d/3", [])]
    assert [sample.image.read() for sample in samples] == [b"one", b"two", b"three"]  # as in folders
    with pytest.raises(ImageError, match="is truncated before byte"):
        TarImage(path, path.stat().st_size - 1, 5).read()
    (tmp_path / "no.tar").write_text("text" * 400)
    with pytest.raises(InputError, match=r"no\.tar: not an uncompressed"):
        list(read_samples(tmp_path / "no.tar", ("txt",)))


@pytest.mark.parametrize("damage", ["noise", "zeros", "second"])
def test_samples_after_damage_are_reported(tmp_path, damage):
    """tarfile silently stops at a damaged header, and at the empty blocks between two tars."""
    path = tar_of(tmp_path / "s.tar", *((f"{number}.txt", b"a dog") for number in range(4)))
    whole = path.read_bytes()
    assert [sample.error for sample in read_samples(path, ("txt",))] == [None] * 4
    broken = {"noise": b"\x07" * 512, "zeros": bytes(1024)}.get(damage, b"")
    path.write_bytes(whole + whole if damage == "second" else whole[:2048] + broken + whole[2048 + len(broken) :])
    *found, last = read_samples(path, ("txt",))
    assert [sample.key for sample in found] == [str(number) for number in range(4 if damage == "second" else 2)]
    assert last.key == ""
    assert f"s.tar: damaged at byte {4096 if damage == 'second' else 2048}" in str(last.error)


def test_invalid_utf8_in_a_tar_is_an_error_and_a_bom_is_removed(tmp_path):
    tar_of(tmp_path / "s.tar", ("1.txt", b"caf\xe9"), ("2.txt", b"\xef\xbb\xbfa dog"))
    first, second = read_samples(tmp_path / "s.tar", ("txt",))
    assert first.error == "1.txt: not valid UTF-8"
    assert (second.error, second.texts) == (None, [("txt", "a dog")])


NAMES = [
    "a.jpg",
    "folder/b.txt",
    "./c.jpg",
    "d//e.txt",
    "é.jpg",
    "x" * 150 + ".jpg",
    "y" * 90 + "/" + "z" * 90 + ".txt",
    "f ",
]


def members(content):
    with tarfile.open(fileobj=BytesIO(content), mode="r:") as shard:
        return [(one.name, one.size, one.type, one.offset_data) for one in shard]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_equal_tarfile(form):
    stream = BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as shard:
        fitting = [name for name in NAMES if form != tarfile.USTAR_FORMAT or len(name) != 154]
        for number, name in enumerate(fitting):
            for kind in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CONTTYPE):
                member = tarfile.TarInfo(name)
                member.type, member.linkname = kind, "a.jpg" if kind == tarfile.SYMTYPE else ""
                member.size = 700 * number if kind in (tarfile.REGTYPE, tarfile.CONTTYPE) else 0
                member.mtime = 1.5
                shard.addfile(member, BytesIO(bytes(member.size)))
    regular = [
        (name, start, size) for name, size, kind, start in members(stream.getvalue()) if kind in tarfile.REGULAR_TYPES
    ]
    assert list(TarWalk(BytesIO(stream.getvalue())).files()) == regular


@pytest.mark.parametrize("odd", ["", "é", "x" * 150, "link"])
@pytest.mark.parametrize("time", [0, 1.5])
def test_samples_around_an_unusual_header_equal_tarfile(tmp_path, odd, time):
    """Times in extended headers, as written by WebDataset, are not unusual."""
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as shard:
        for number in range(6):
            for ending in ("jpg", "txt"):
                member = tarfile.TarInfo(f"{number}{odd if number == 3 else ''}.{ending}")
                member.size, member.mtime = 600 * number, time
                if odd == "link" and number == 3:
                    member.type, member.size = tarfile.SYMTYPE, 0
                shard.addfile(member, BytesIO(b"a" * member.size))
    expected = [one for one in members(path.read_bytes()) if one[2] == tarfile.REGTYPE]
    with path.open("rb") as file, patch.object(tarfile, "open", wraps=tarfile.open) as opened:
        walk, read = TarWalk(file), []
        for name, start, size in walk.files():
            read.append((name, size, tarfile.REGTYPE, start))
            assert opened.call_count == (1 if odd and len(read) > 6 else 0)
            assert walk.content(start, size) == b"a" * size
    assert read == expected
    cut = path.read_bytes()[: expected[-1][3] + 700]
    path.write_bytes(cut)
    *found, last = read_samples(path, ("txt",))
    assert [sample.key for sample in found] == [sample_key(one[0]) for one in expected[:-2:2]]
    assert "the tar is truncated" in str(last.error)


@pytest.mark.parametrize(("zeros", "whole"), [(10_240, True), (1024, True), (512, False), (0, False)])
def test_a_complete_tar_ends_with_two_empty_blocks(tmp_path, zeros, whole):
    path = tar_of(tmp_path / "s.tar", ("a.txt", b"a" * 512))
    path.write_bytes(path.read_bytes()[:1024] + bytes(zeros))
    first, *lost = read_samples(tmp_path / "s.tar", ("txt",))
    assert (first.key, first.texts, first.error) == ("a", [("txt", "a" * 512)], None)
    assert ["the tar is truncated" in str(sample.error) for sample in lost] == ([] if whole else [True])


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 511), letter=st.integers(0, 255), fix_checksum=st.booleans())
def test_changed_header_equals_tarfile(place, letter, fix_checksum):
    header = bytearray(tarfile.TarInfo("a.jpg").tobuf())
    header[place] = letter
    if fix_checksum:  # with a correct checksum
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    try:
        expected = tarfile.TarInfo.frombuf(bytes(header), "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        expected = None
    plain = plain_header(b"before" + bytes(header) + b"behind", len(b"before"))
    plain = plain if plain and plain[0] == tarfile.REGTYPE else None
    if plain is not None and expected is not None:
        assert plain == (expected.type, expected.name, expected.size)
    elif plain is not None:  # unused fields may be invalid
        assert 100 <= place < 124 or 136 <= place < 148 or place >= 329


@settings(deadline=None)
@given(name=st.text("ab./ ", max_size=8))
def test_keys_equal_paths_without_extension(name):
    path = PurePosixPath(name)
    assert sample_key(name) == str(path.parent / path.name.partition(".")[0])


def test_folders_in_a_tar_are_not_samples(tmp_path):
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as shard:
        for name, content in (("d", None), ("d/1.jpg", b"one"), ("d/e", None), ("d/e/2.jpg", b"two")):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            member.size = len(content or b"")
            shard.addfile(member, BytesIO(content or b""))
    samples = list(read_samples(path, ()))
    assert [(sample.key, sample.image.read(), sample.error) for sample in samples] == [
        ("d/1", b"one", None), ("d/e/2", b"two", None),
    ]  # fmt: skip
