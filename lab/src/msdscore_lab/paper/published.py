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
# Table "out of domain": CLIPScore, MSD, Soft-MSD, with the encoder of each domain.
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
        "BLEU-4": (47.4, 47.7, 48.0, 47.5, 46.7, 42.4, 31.9),
        "SPICE": (41.7, 44.1, 42.2, 41.5, 38.7, 27.5, 23.1),
        "CIDEr": (38.4, 37.8, 38.3, 38.9, 38.7, -27.9, -20.9),
        "Polos": (47.9, 52.6, 46.7, 46.2, 46.2, 42.0, 36.3),
        "CAPTURE": (52.5, 60.1, 51.2, 50.4, 47.9, 61.3, 53.8),
        "VDC-Score": (55.7, 68.7, 57.9, 49.6, 46.0, 89.0, 73.6),
        "METEOR": (57.6, 65.7, 58.2, 53.6, 53.0, 78.5, 58.2),
        "CLIPScore": (32.5, 26.6, 30.8, 36.2, 35.5, -57.4, -45.1),
        "LongCLIPScore": (40.0, 42.2, 40.4, 38.4, 39.5, -22.6, -12.1),
        "FLEUR": (45.8, 51.3, 46.2, 44.4, 41.4, 39.3, 29.7),
        "Soft-MSD": (57.6, 64.4, 58.7, 54.2, 53.6, 39.8, 29.7),
        "judge, LLaVA-1.5-7B": (46.1, 49.4, 45.4, 45.0, 44.6, 28.8, 18.7),
        "Soft-MSD, LLaVA-1.5-7B": (57.6, 64.4, 58.7, 54.2, 53.6, 39.8, 29.7),
        "judge, LLaVA-OneVision-7B": (58.8, 67.0, 61.5, 55.8, 51.1, 69.8, 53.3),
        "Soft-MSD, LLaVA-OneVision-7B": (59.2, 66.5, 61.7, 58.5, 52.8, 69.2, 56.5),
        "judge, LLaVA-Critic-7B": (53.5, 66.7, 52.9, 48.1, 46.3, 88.8, 69.3),
        "Soft-MSD, LLaVA-Critic-7B": (55.2, 56.0, 56.3, 53.3, 55.7, 51.1, 44.0),
        "judge, Qwen2.5-VL-7B": (52.2, 59.8, 52.1, 49.3, 47.3, 90.3, 78.0),
        "Soft-MSD, Qwen2.5-VL-7B": (56.7, 62.6, 57.8, 53.1, 54.9, 83.2, 72.6),
    }.items()
}
# Names of the paper's vision-language models in its tables, by encoder.
VLM_NAMES = {
    "llava-1.5-7b": "LLaVA-1.5-7B", "llava-onevision-7b": "LLaVA-OneVision-7B", "llava-critic-7b": "LLaVA-Critic-7B",
    "qwen2.5-vl-7b": "Qwen2.5-VL-7B",
}  # fmt: skip
REFERENCES = ("BLEU-4", "SPICE", "CIDEr", "Polos", "CAPTURE", "VDC-Score", "METEOR")  # rows that read references
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
# Table "legacy benchmarks", times 100; None: no number printed.
TAUS = {"τb": "tau_b", "τc": "tau_c"}
PASCAL = {name: f"accuracy/{name.lower() if name == 'Mean' else name}" for name in ("HC", "HI", "HM", "MM", "Mean")}
LEGACY_COLUMNS = {"flickr8k-expert": TAUS, "flickr8k-cf": TAUS, "composite": TAUS, "pascal50s": PASCAL}
LEGACY = {
    "UMIC": (None, 46.8, None, None, None, 56.1, 66.1, 99.8, 98.1, 76.2, 85.1),
    "PAC-S": (53.9, 54.3, 36.0, 18.6, 51.5, 55.7, 60.6, 99.3, 96.9, 72.9, 82.4),
    "BRIDGE (ViT-B/32)": (54.4, 54.8, 36.1, 18.7, 50.9, 55.0, 59.4, 99.4, 97.5, 74.0, 82.6),
    "BRIDGE (ViT-L/14)": (55.4, 55.8, 36.3, 19.0, 52.9, 57.2, 61.2, 99.6, 96.6, 74.1, 82.9),
    "InfoMetIC": (None, 54.2, 36.3, None, None, 59.2, 69.0, 99.8, 94.0, 78.3, 85.3),
    "InfoMetIC+": (None, 55.5, 36.6, None, None, 59.3, 69.9, 99.7, 96.8, 79.6, 86.5),
    "HICE-S": (55.9, 56.4, 37.2, 19.2, 53.1, 57.9, 68.6, 99.7, 96.5, 79.5, 86.1),
    "EXPERT": (None, 56.7, 39.3, None, None, 65.0, 62.8, 99.8, 97.8, 78.4, 84.7),
    "Soft-MSD": (57.5, 58.3, 39.4, 19.7, 60.3, 64.2, 69.4, 99.7, 97.1, 81.2, 86.9),
}


def legacy_figures(benchmark: str, metric: str = "Soft-MSD") -> dict[str, float]:
    """Return the printed figures of one metric on one legacy benchmark, by the names of `bench`.

    >>> legacy_figures("composite")
    {'tau_b': 60.3, 'tau_c': 64.2}
    """
    names = [(name, figure) for name, columns in LEGACY_COLUMNS.items() for figure in columns.values()]
    values = zip(names, LEGACY[metric], strict=True)
    return {figure: value for (name, figure), value in values if name == benchmark and value is not None}


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
# Accuracy of the cosine on SugarCrepe, by its authors, in the order of `SUBTASKS`.
COSINES = {
    "clip-b32": (68.79, 77.21, 80.08, 90.92, 69.20, 63.96, 61.38),
    "clip-l14": (71.53, 78.32, 79.19, 94.07, 65.15, 62.31, 60.16),
}
# What the paper leaves open: subject, our choice, reason.
CHOICES = (
    ("encoder of SugarCrepe and of all studies", "the aligner, if there is one; SugarCrepe also with plain CLIP",
     "the paper names no other encoder; the authors' script for SugarCrepe loads plain CLIP"),
    ("encoder of the other domains, by backbone and of the 7B models", "without an aligner",
     "the paper replaces the backbone without additional training"),
    ("CLIPScore", "plain CLIP with its own text tower, prefix 'A photo depicts', captions cut at 77 tokens",
     "as published; the paper's Figure 1 calls the mean-pooled similarity global, its tables CLIPScore"),
    ("captions of more than 77 tokens", "read in windows for MSD, cut for CLIPScore",
     "the paper does not say how CLIP reads its long captions; a cut one would not be scored in full"),
    ("cosine g", "similarity of mean-pooled local vectors", "as its method section; CLIPScore is a separate column"),
    ("candidate set of a single caption (ratings)", "the caption itself: Soft-MSD is MSD",
     "the paper defines u for several candidates only"),
    ("negatives of RSICD and ROCOv2", "a caption of another image, drawn with a seed",
     "the paper does not define them"),
    ("components on latency", "(5, 3) above 126 tokens, else (3, 2)",
     "the paper's rule is by benchmark: its long benchmarks are above 126 tokens"),
    ("pairs of the latency and of the lengths", "all captions of `captions.jsonl`; all pairs of both benchmarks",
     "the paper's 21,974 and 10,992 pairs are a random sample that is not released"),
    ("tokens of BLEU, CIDEr and METEOR", "PTB, by the Java program of pycocoevalcap", "those of the published tools"),
    ("dead components", "set to a random point, drawn from the content of the item",
     "the paper re-initialises by sampling; a component that dies twice is set to the same point"),
    ("omissions of DocENT's spans", "not evaluated", "omissions are marked in references, not in captions"),
    ("judge", "temperature 0.5, top-p 0.9, one order, without references", "the paper; CapArena's script has 0.1"),
    ("g on SigLIP", "mean of its local states, which are not aligned with its pooled vectors",
     "the paper's definition of g; not measured yet"),
    ("MSD-Score on `mini` in the documentation", "form `short` in most tables; CLIPScore reads windows",
     "mini has no context that cuts captions"),
)  # fmt: skip
# Where the paper contradicts itself: statement, why, what this page does. These values are not judged.
CONTRADICTIONS = (
    ("Replace-Rel at kappa 20 is 63.44 and 66.36", "two tables of the same setting; the text uses 66.36 (+8.32)",
     "both quoted, neither judged"),
    ("the table of distributions is captioned COCO-CF", "its rows are the subtasks of SugarCrepe",
     "run on SugarCrepe, not judged"),
    ("+7.34 on Swap-Obj over GMM", "it is over adaptive vMF; over GMM it is +9.38", "quoted only"),
    ("+4.70 and +3.18 over cosine on COCO-CF", "they equal the difference from the column CLIPScore",
     "compared with CLIPScore, not judged"),
    ("Bi-KL 58.5 and 73.9 at mean lengths of 119.5 and 183.1 tokens",
     "beta is at most 3e-10 there, so that Bi-KL equals KL(txt‖img), printed as 57.6 and 72.8", "not judged"),
    ("Bi-KL 79.9 below 13 tokens", "beta is above 0.91, yet KL(img‖txt) has 66.5", "not judged"),
    ("57.6 on CapArena is printed for the default encoder, for LLaVA-1.5-7B, and with reconstruction",
     "all seven numbers of the rows are equal; the authors' script loads an aligner in the format of LLaVA",
     "compared with the aligner everywhere; the row of LLaVA-1.5-7B is not judged"),
    ("hyperparameters are tuned on 1,000 pairs of SugarCrepe", "SugarCrepe is then reported, with these pairs",
     "`tune` evaluates on the other pairs"),
    ("gains of 2 to 3 % in other domains", "MSD gains 1.6 and 1.4, Soft-MSD 3.2 and 2.9", "values compared, not gains"),
    ("no LLM at inference", "its rows with LLaVA and Qwen run the language model", "such encoders run theirs"),
    ("text tokens come from CLIP, and from LLaMA", "implementation details and overview figure differ",
     "two recipes, `paper` and `paper-llama`"),
    ("20 to 50 patches per image", "ViT-L/14 has 256", "256"),
    ("small alpha lets the global prior dominate", "alpha d can exceed g", "alpha 0.1"),
    ("K (3, 2) on SugarCrepe", "the authors' scripts run (4, 2)", "forms `paper` and `authors`"),
    ("temperature 0.5 of the judge as in CapArena's set-up", "CapArena's script has 0.1", "0.5"),
)  # fmt: skip
