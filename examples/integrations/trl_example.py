"""Compute the rewards of four completions of one image, as a trainer calls the function."""

from PIL import Image

from msdscore_torch.integrations.trl import MSDReward


def main() -> None:
    """Print the rewards, and the columns that a trainer logs in its table of completions."""
    reward = MSDReward("toy")  # MSDReward() or msd_reward for photographs; toy knows only colours
    red = Image.new("RGB", (64, 64), "red")
    completions = ["a red square", "a blue square", "<think>hm</think> a red and green square", ""]
    table: dict[str, list[str]] = {}
    rewards = reward(
        prompts=["Describe the image."] * len(completions),
        completions=completions,
        images=[[red]] * len(completions),
        log_extra=table.__setitem__,
    )
    for number, completion in enumerate(completions):
        shown = {name: values[number] for name, values in table.items()}
        print(completion, rewards[number], shown)
    print(reward.signature)


if __name__ == "__main__":
    main()
