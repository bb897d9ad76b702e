"""Score a prediction file of VLMEvalKit, like `msdscore score MODEL_DATA.xlsx --images images/`."""

from pathlib import Path

from openpyxl import Workbook
from PIL import Image

from msdscore import Scorer
from msdscore.io.rows import open_rows

ROWS = ((0, "red", "a red square"), (1, "blue", "a red square"), (2, "green", "Failed to obtain answer via API."))


def main() -> None:
    """Write a prediction file and its images, and score it."""
    Path("images").mkdir(exist_ok=True)
    book = Workbook()
    book.active.append(["index", "question", "answer", "prediction"])
    for index, colour, prediction in ROWS:
        Image.new("RGB", (64, 64), colour).save(f"images/{index}.jpg")
        book.active.append([index, "Describe the image.", "[]", prediction])
    book.save("MODEL_DATA.xlsx")
    scorer = Scorer("toy")  # Scorer() for photographs
    with open_rows("MODEL_DATA.xlsx", images="images") as rows:
        for row in rows.read():
            print(row.index, row.error or scorer.score(row.image, row.caption))
    print(scorer.signature)


if __name__ == "__main__":
    main()
