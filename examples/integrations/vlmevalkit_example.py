"""Score a prediction file of VLMEvalKit, like `msdscore score MODEL_DATA.tsv --images images/`."""

import csv
from pathlib import Path

from PIL import Image

from msdscore import Scorer
from msdscore.rows.files import open_rows

ROWS = ((0, "red", "a red square"), (1, "blue", "a red square"), (2, "green", "Failed to obtain answer via API."))


def main() -> None:
    """Write a prediction file and its images, and score it."""
    Path("images").mkdir(exist_ok=True)
    with Path("MODEL_DATA.tsv").open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerow(["index", "question", "answer", "prediction"])
        for index, colour, prediction in ROWS:
            Image.new("RGB", (64, 64), colour).save(f"images/{index}.jpg")
            table.writerow([index, "Describe the image.", "[]", prediction])
    scorer = Scorer("toy")  # Scorer() for photographs
    with open_rows("MODEL_DATA.tsv", images="images") as rows:
        for row in rows.read():
            print(row.index, row.error or scorer.score(row.image, row.caption))
    print(scorer.signature)


if __name__ == "__main__":
    main()
