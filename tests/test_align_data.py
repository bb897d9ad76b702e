"""Data formats yield the same pairs, bad rows are counted, and orders are reproducible."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from align_data import captions_of, draw, make_rows, recipe, source, things
from msdscore.errors import ConfigError, InputError, UnknownNameError
from msdscore.io.images import open_image
from msdscore_lab.align.batches import SampleReader, check_batch, read_batches
from msdscore_lab.align.repeatable import epoch_order
from msdscore_lab.pairs import DataSource, image_content, open_pairs


def png(colour, shape):
    buffer = io.BytesIO()
    draw(colour, shape).save(buffer, "PNG")
    return buffer.getvalue()


def llava(folder):
    chats = [
        {
            "id": name,
            "image": name,
            "conversations": [
                {"from": "human", "value": "Describe it.\n<image>"},
                {"from": "gpt", "value": captions_of(colour, shape)[0]},
            ],
        }
        for name, colour, shape in things()
    ]
    (folder / "chat.json").write_text(json.dumps(chats), encoding="utf-8")
    return source(folder / "chat.json", images=(str(folder),))


def coco(folder):
    images = [{"id": number, "file_name": name} for number, (name, _, _) in enumerate(things())]
    notes = [
        {"image_id": number, "id": 10 * number + place, "caption": caption}
        for number, (_, colour, shape) in enumerate(things())
        for place, caption in enumerate(captions_of(colour, shape))
    ]
    document = {"info": {}, "images": images, "annotations": notes}
    (folder / "captions.json").write_text(json.dumps(document), encoding="utf-8")
    return source(folder / "captions.json", images=(str(folder),))


def single_captions(folder):
    lines = [
        json.dumps({"file_name": name, "caption": caption})
        for name, colour, shape in things()
        for caption in captions_of(colour, shape)
    ]
    (folder / "single.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return source(folder / "single.jsonl")


def image_table(folder):
    """Write rows and a separate Parquet file of images, in the format of the Hugging Face Image feature."""
    (folder / "apart").mkdir()
    rows = make_rows(folder / "apart")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [{"bytes": png(colour, shape), "path": name} for name, colour, shape in things()]
    table = pa.table({"file_name": [name for name, _, _ in things()], "image": pa.array(images, kind)})
    pq.write_table(table, folder / "images.parquet", row_group_size=3)
    for name, _, _ in things():
        (folder / "apart" / name).unlink()
    return source(rows, images=(str(folder / "images.parquet"),))


def table_with_images(folder):
    table = pa.table(
        {
            "image": pa.array([png(colour, shape) for _, colour, shape in things()], pa.binary()),
            "captions": [captions_of(colour, shape) for _, colour, shape in things()],
        }
    )
    pq.write_table(table, folder / "all.parquet", row_group_size=3)
    return source(folder / "all.parquet")


def shards(folder):
    for number in range(2):
        with tarfile.open(folder / f"shard-{number:03d}.tar", "w") as shard:
            for name, colour, shape in things()[4 * number : 4 * number + 4]:
                stem = name.removesuffix(".png")
                put(shard, f"{stem}.png", png(colour, shape))
                put(shard, f"{stem}.json", json.dumps({"captions": captions_of(colour, shape)}).encode())
    return DataSource((str(folder / "shard-{000..001}.tar"),))


def put(shard, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))


FORMATS = [llava, coco, single_captions, image_table, table_with_images, shards]


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_all_formats_yield_the_same_images_and_captions(make, tmp_path):
    make_rows(tmp_path)
    pairs = open_pairs(make(tmp_path))
    assert len(pairs) == 8
    for pair, (_, colour, shape) in zip(pairs.items, things(), strict=True):
        wanted = captions_of(colour, shape)[: 1 if make is llava else 2]
        assert list(pair.captions) == wanted
        assert open_image(image_content(pair.image)).tobytes() == draw(colour, shape).tobytes()


def test_shards_may_be_a_pattern_a_folder_or_texts(tmp_path):
    shards(tmp_path)
    with tarfile.open(tmp_path / "shard-002.tar", "w") as shard:
        put(shard, "a.b/x.jpg", png("red", "square"))
        put(shard, "a.b/x.txt", b" a red square \n")
        put(shard, "a.b/y.txt", b"a caption without an image")
    for pattern in (str(tmp_path / "*.tar"), str(tmp_path)):
        pairs = open_pairs(DataSource((pattern,), format="shards"))
        assert len(pairs) == 9
        assert pairs.items[-1].captions == ("a red square",)
        assert pairs.skipped == 1
        assert "a.b/y has no image" in pairs.reasons[0]
    assert len(set(pairs.blocks.tolist())) == 3


def test_incomplete_rows_are_counted(tmp_path):
    rows = [
        {"image": "a.png", "captions": ["a dog", " "]},
        {"captions": ["nothing"]},
        {"image": "b.png", "captions": []},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*map(json.dumps, rows), "{broken"]), encoding="utf-8")
    pairs = open_pairs(source(path))
    assert [pair.captions for pair in pairs.items] == [("a dog",)]
    assert pairs.skipped == 3
    assert any("a row without an image" in reason for reason in pairs.reasons)


def test_invalid_inputs_are_rejected(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        open_pairs(DataSource((str(tmp_path / "none.jsonl"),)))
    (tmp_path / "empty.jsonl").write_text('{"image": "a.png"}', encoding="utf-8")
    with pytest.raises(InputError, match="first error: a.png"):
        open_pairs(source(tmp_path / "empty.jsonl"))
    with pytest.raises(InputError, match="no such folder"):
        open_pairs(source(tmp_path / "empty.jsonl", images=(str(tmp_path / "none"),)))
    (tmp_path / "text.tar").write_text("not a tar", encoding="utf-8")
    with pytest.raises(InputError, match="not an uncompressed tar shard"):
        open_pairs(DataSource((str(tmp_path / "text.tar"),)))
    with pytest.raises(UnknownNameError, match="unknown data format 'xml'"):
        source(tmp_path / "empty.jsonl", format="xml")


def test_an_epoch_contains_each_item_once_and_mixes_neighbouring_blocks():
    blocks = np.repeat(np.arange(10), 5)
    first = epoch_order(blocks, seed=1, epoch=0, window=2)
    assert sorted(first.tolist()) == list(range(50))
    assert np.array_equal(first, epoch_order(blocks, seed=1, epoch=0, window=2))
    assert not np.array_equal(first, epoch_order(blocks, seed=1, epoch=1, window=2))
    assert all(len(set(blocks[part].tolist())) == 2 for part in np.split(first, 5))


def test_batches_do_not_depend_on_the_start_step(tmp_path):
    pairs = open_pairs(source(make_rows(tmp_path)))
    reader = SampleReader(pairs, recipe(train={"batch": 4}))

    def seen(start):
        batches = read_batches(reader, start=start, stop=6, workers=3)
        return [[(s.item, s.captions, s.image.tobytes()) for s in batch] for batch in batches]

    whole = seen(0)
    assert len(whole) == 6
    assert whole[4:] == seen(4)
    assert len({caption for batch in whole for _, caption, _ in batch}) > 8


def test_a_batch_needs_enough_pairs():
    with pytest.raises(ConfigError, match="train.batch is 9 .*8 pairs"):
        check_batch(9, 8)


def test_captions_are_repeated_if_an_image_has_too_few(tmp_path):
    pairs = open_pairs(source(make_rows(tmp_path)))
    reader = SampleReader(pairs, recipe(sample={"captions": 3}))
    for epoch in range(3):
        sample = reader.sample(2, epoch)
        assert set(sample.captions) == set(pairs.items[2].captions)
        assert sample.captions[0] == sample.captions[2] != sample.captions[1]
