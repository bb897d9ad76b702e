"""MSD through Hugging Face evaluate, without a download."""

from PIL import Image

from msdscore_lab.harnesses.evaluate import MSDModule


def main() -> None:
    """Score two captions of one image."""
    Image.new("RGB", (64, 64), "red").save("red.png")
    result = MSDModule(cache_dir="cache").compute(
        predictions=["a red square", "a blue square"],
        images=["red.png", "red.png"],
        scorer="toy",  # omit it for photographs
    )
    print(result["msd"], result["scores"])
    print(result["signature"])


if __name__ == "__main__":
    main()
