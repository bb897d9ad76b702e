"""MSD through Hugging Face evaluate, without a download."""

from PIL import Image

from msdscore.integrations.evaluate import MSDModule


def main() -> None:
    """Score two captions of one picture."""
    Image.new("RGB", (64, 64), "red").save("red.png")
    found = MSDModule(cache_dir="cache").compute(
        predictions=["a red square", "a blue square"],
        images=["red.png", "red.png"],
        scorer="toy",  # leave it out for photographs
    )
    print(found["msd"], found["scores"])
    print(found["signature"])


if __name__ == "__main__":
    main()
