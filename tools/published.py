"""Numbers of the paper's tables, as printed (Kan et al., MSD-Score, 2026)."""

SUBTASKS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")

# Table "local distribution modelling": accuracy in per cent, one number per subtask in the order above.
MIXTURES = {
    "Gaussian": (60.40, 67.85, 77.41, 93.34, 58.04, 60.66, 54.29),
    "vMF, adaptive kappa": (75.45, 77.35, 76.14, 92.49, 53.65, 61.26, 56.33),
    "vMF, fixed kappa": (76.88, 79.39, 80.33, 94.07, 66.36, 64.26, 63.67),
}
# Table "concentration".
KAPPA = {
    "kappa=10": (71.53, 78.18, 78.93, 94.07, 64.30, 63.06, 60.82),
    "kappa=20": (76.88, 79.39, 80.33, 94.07, 63.44, 64.26, 63.67),
    "kappa=40": (74.42, 78.81, 80.08, 93.89, 66.36, 62.01, 60.41),
}
# Figure "seed stability": adjusted Rand index, mean and standard deviation over captions.
STABILITY = {"vMF, fixed kappa": (0.534, 0.238), "Gaussian": (0.358, 0.174)}
# Table "KL direction by length": range in tokens, accuracy of coverage, support and Bi-KL.
BY_LENGTH = {
    "0 to 12": (66.5, 38.7, 79.9),
    "13 to 14": (64.2, 39.4, 81.4),
    "15 to 85": (61.4, 44.2, 73.9),
    "86 to 146": (48.1, 57.6, 58.5),
    "147 to 226": (54.8, 72.8, 73.9),
    "227 and more": (67.4, 88.0, 88.0),
}
# The same table: pairs, and their mean length in tokens.
BY_LENGTH_PAIRS = ((1677, 11.4), (1783, 13.5), (2021, 24.2), (1844, 119.5), (1822, 183.1), (1845, 370.7))
# Table "cosine margin": per bin mean margin, mean u, CLIPScore, coverage, MSD, Soft-MSD, gain.
MARGIN = {
    "Easy-CF": (
        (0.0017, 0.996, 52.28, 60.78, 61.31, 61.31, 9.03),
        (0.0054, 0.987, 51.81, 60.59, 60.41, 60.38, 8.57),
        (0.0095, 0.976, 58.58, 63.74, 63.55, 63.39, 4.81),
        (0.0149, 0.963, 63.25, 61.38, 64.06, 64.16, 0.91),
        (0.0266, 0.934, 70.03, 59.50, 70.31, 70.19, 0.16),
    ),
    "Hard-CF": (
        (0.0017, 0.996, 53.33, 59.24, 59.24, 59.27, 5.94),
        (0.0053, 0.987, 53.39, 60.49, 59.42, 59.30, 5.91),
        (0.0092, 0.977, 54.38, 58.44, 57.57, 57.79, 3.41),
        (0.0146, 0.964, 58.05, 58.74, 58.71, 58.77, 0.72),
        (0.0264, 0.934, 61.86, 57.96, 61.77, 61.80, -0.06),
    ),
}
# Table "out of domain": CLIPScore, MSD, Soft-MSD.
OOD = {"ROCOv2, BiomedCLIP": (71.7, 73.3, 74.9), "RSICD, RemoteCLIP": (77.6, 79.0, 80.5)}
# Table "faithfulness": top, random and bottom 10 %.
FAITHFULNESS = {"correct": (0.1159, 0.0531, -0.0209), "incorrect": (0.0350, -0.0477, -0.1052)}
# Table "COCO-CF": coverage, support, Bi-KL, CLIPScore, MSD, Soft-MSD.
COCO_CF = {
    "Easy-CF": (61.20, 28.00, 61.02, 59.19, 63.93, 63.89),
    "Hard-CF": (58.97, 19.00, 58.71, 56.20, 59.34, 59.38),
}

# Table "CapArena", times 100: by metric the figures of `bench caparena --protocol paper`, whose names are next to the
# headings of the paper.
CAPARENA_COLUMNS = {
    "Overall": "agreement/all", "Level1": "agreement/level 1", "Level2": "agreement/level 2",
    "Level3": "agreement/level 3", "Level4": "agreement/level 4", "Spearman": "model/spearman",
    "Kendall": "model/kendall",
}  # fmt: skip
CAPARENA = {
    metric: dict(zip(CAPARENA_COLUMNS.values(), values, strict=True))
    for metric, values in {
        "CLIPScore": (32.5, 26.6, 30.8, 36.2, 35.5, -57.4, -45.1),
        "LongCLIPScore": (40.0, 42.2, 40.4, 38.4, 39.5, -22.6, -12.1),
        "FLEUR": (45.8, 51.3, 46.2, 44.4, 41.4, 39.3, 29.7),
        "Soft-MSD": (57.6, 64.4, 58.7, 54.2, 53.6, 39.8, 29.7),
        "Soft-MSD, LLaVA-OneVision-7B": (59.2, 66.5, 61.7, 58.5, 52.8, 69.2, 56.5),
        "Soft-MSD, LLaVA-Critic-7B": (55.2, 56.0, 56.3, 53.3, 55.7, 51.1, 44.0),
        "Soft-MSD, Qwen2.5-VL-7B": (56.7, 62.6, 57.8, 53.1, 54.9, 83.2, 72.6),
    }.items()
}
# Table "KL direction": Soft-MSD on CapArena, the same columns.
DIRECTION = {
    "coverage only": (55.6, 61.1, 56.7, 52.6, 51.9, 26.7, 19.0),
    "beta 0.5": (56.4, 62.6, 57.8, 53.3, 52.4, 29.2, 20.9),
    "support only": (57.6, 64.4, 58.7, 54.2, 53.6, 39.8, 29.7),
}
# Table "DocENT", times 100: accuracy, Spearman and Kendall of each aspect.
DOCENT_COLUMNS = {
    f"{aspect} {head}": f"{name}/{figure}"
    for aspect, name in (("Mistakes", "mistakes"), ("Omissions", "omissions"), ("Overall", "overall_quality"))
    for head, figure in (("Acc", "binary accuracy"), ("ρ", "spearman"), ("τ", "kendall"))
}
DOCENT = {
    metric: dict(zip(DOCENT_COLUMNS.values(), values, strict=True))
    for metric, values in {
        "CLIPScore": (45.3, 14.5, 10.8, 47.0, 17.6, 13.3, 53.5, 18.1, 13.6),
        "FLEUR": (35.2, -5.3, -4.0, 38.5, 2.9, 2.0, 41.2, -4.0, -3.1),
        "Soft-MSD": (64.4, 21.9, 16.5, 62.1, 21.9, 16.4, 64.8, 25.9, 19.5),
    }.items()
}
# Table "legacy benchmarks": Soft-MSD's row.
TAUS = {"τb": "tau_b", "τc": "tau_c"}
LEGACY_COLUMNS = {"pascal50s": {name.title() if name == "mean" else name: f"accuracy/{name}"
                                for name in ("HC", "HI", "HM", "MM", "mean")}}  # fmt: skip
LEGACY = {
    "flickr8k-expert": {"Soft-MSD": {"tau_b": 57.5, "tau_c": 58.3}},
    "flickr8k-cf": {"Soft-MSD": {"tau_b": 39.4, "tau_c": 19.7}},
    "composite": {"Soft-MSD": {"tau_b": 60.3, "tau_c": 64.2}},
    "pascal50s": {"Soft-MSD": {"accuracy/HC": 69.4, "accuracy/HI": 99.7, "accuracy/HM": 97.1, "accuracy/MM": 81.2,
                               "accuracy/mean": 86.9}},
}  # fmt: skip
# Table "COCO-CF" by metric, as `bench coco-cf` names its figures.
COCO_CF_FIGURES = {
    metric: {"accuracy/easy": easy, "accuracy/hard": hard}
    for metric, easy, hard in zip(
        ("coverage", "support", "bi-kl", "CLIPScore", "MSD", "Soft-MSD"), *COCO_CF.values(), strict=True
    )
}
# Table "reconstruction": DocENT and CapArena, overall accuracy or agreement, Spearman, Kendall.
RECONSTRUCTION = {
    "CLIPScore": (53.5, 0.181, 0.136, 32.5, -0.574, -0.451),
    "without reconstruction": (60.8, 0.224, 0.163, 54.0, 0.342, 0.263),
    "with reconstruction": (64.8, 0.259, 0.195, 57.6, 0.398, 0.297),
}
# Table "latency", ms: pairs, features, EM/KL, CLIPScore, MSD, Soft-MSD.
LATENCY = {
    "up to 16": (7843, 28.22, 8.23, 28.34, 36.59, 36.63),
    "17 to 126": (6834, 35.33, 8.39, 35.44, 43.86, 43.91),
    "more than 126": (7297, 41.54, 8.57, 41.68, 50.26, 50.31),
    "overall": (21974, 34.86, 8.39, 34.98, 43.39, 43.44),
}
# Table "captioners by mean MSD".
RANKING = {"GPT-4o-mini": 0.2959, "InternVL2-7B": 0.2878, "Qwen-VL-Chat": 0.2799, "LLaVA-1.5-7B": 0.2745}
