"""The reward of four completions of one picture, as a trainer would ask for it."""

from PIL import Image

from msdscore.integrations.trl import MSDReward


def main() -> None:
    """Print rewards, and what the trainer's table of completions would show."""
    reward = MSDReward("toy")  # MSDReward() or msd_reward for photographs; toy knows colours alone
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
