"""Labels of every word in every image: present, absent, or unsure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from msdscore.core.arrays import Bool, Float, Int
from msdscore.core.embeddings import unit
from msdscore.text.words import stem
from msdscore_lab.pairs import Pairs
from train_mini.phrases import Lexicon
from train_mini.texts import TextPool

PRESENT, ABSENT, UNSURE = 1, 0, -1
_ROWS = 2048  # images that are compared with all words at once

Labels = Int[Tensor, "images words"]


@dataclass(frozen=True, slots=True)
class WordFacts:
    """Facts that do not depend on the encoder: counts of words, classes of objects, the objects of each image."""

    counts: npt.NDArray[np.int32]  # images whose captions contain each word
    class_of: npt.NDArray[np.int32]  # the class that each word names; −1: none
    class_word: npt.NDArray[np.int32]  # the word that names each class; −1: the name has several words
    objects: npt.NDArray[np.bool_]  # [images, classes]: annotated there
    annotated: npt.NDArray[np.bool_]  # images whose objects are known


def word_facts(pairs: Pairs, lexicon: Lexicon) -> WordFacts:
    """Return facts about the words of a lexicon in the pairs."""
    class_index = {name: number for number, name in enumerate(lexicon.classes)}
    objects = np.zeros((len(pairs), len(lexicon.classes)), dtype=np.bool_)
    for row, pair in enumerate(pairs.items):
        for name in pair.objects or ():
            if name in class_index:
                objects[row, class_index[name]] = True
    own = [-1 if " " in name else lexicon.number.get(stem(name), -1) for name in lexicon.classes]
    class_of = [lexicon.class_of.get(word, -1) for word in lexicon.stems]
    counts, classes, words = (np.array(values, dtype=np.int32) for values in (lexicon.counts, class_of, own))
    annotated = np.array([pair.objects is not None for pair in pairs.items], dtype=np.bool_)
    return WordFacts(counts, classes, words, objects, annotated)


def caption_words(captions: TextPool, images: int, words: int) -> Bool[Tensor, "images words"]:
    """Return the words in the captions of each image."""
    owner = captions.owners.repeat_interleave(captions.sizes[: len(captions)])
    word_ids = captions.words[: len(owner)]
    real = word_ids >= 0
    mentioned = torch.zeros(images, words, dtype=torch.bool, device=owner.device)
    mentioned[owner[real], word_ids[real].long()] = True
    return mentioned


def word_labels(
    mentioned: Bool[Tensor, "images words"], facts: WordFacts, alike: Bool[Tensor, "words words"]
) -> Labels:
    """Return PRESENT, ABSENT or UNSURE for every image and word.

    Words of captions and names of annotated classes are present. Words similar to a present one, and other names of
    its class, are unsure.
    """
    device, words = mentioned.device, mentioned.shape[1]
    class_of = torch.from_numpy(facts.class_of).to(device).long()
    class_word = torch.from_numpy(facts.class_word).to(device).long()
    objects = torch.from_numpy(facts.objects).to(device)
    names = class_of >= 0
    member = torch.zeros(words, objects.shape[1], device=device)
    member[names.nonzero().squeeze(1), class_of[names]] = 1.0
    own = torch.zeros(objects.shape[1], words, device=device)
    single = class_word >= 0
    own[single.nonzero().squeeze(1), class_word[single]] = 1.0
    near = alike.float()
    labels = torch.empty(mentioned.shape, dtype=torch.int8, device=device)
    for part in torch.arange(len(mentioned), device=device).split(_ROWS):
        in_captions, annotated = mentioned[part].float(), objects[part].float()
        present = mentioned[part] | (annotated @ own > 0)
        touched = ((in_captions @ member) + annotated) @ member.mT > 0
        unsure = (in_captions @ near > 0) | touched
        labels[part] = torch.where(present, PRESENT, torch.where(unsure, UNSURE, ABSENT)).to(torch.int8)
    return labels


def alike_words(
    captions: TextPool, embeddings: Float[Tensor, "vocabulary dim"], *, words: int, limit: float
) -> Bool[Tensor, "words words"]:
    """Return True for words of similar meaning: the cosine of their centred frozen embeddings exceeds the limit."""
    real = captions.words >= 0
    number = captions.words[real].long()
    vectors = unit(embeddings[captions.ids[real].long()].float())
    sums = vectors.new_zeros(words, vectors.shape[1]).index_add(0, number, vectors)
    seen = torch.bincount(number, minlength=words) > 0
    means = sums / torch.bincount(number, minlength=words).clamp_min(1).unsqueeze(1)
    centred = unit(means - means[seen].mean(dim=0))
    alike = (centred @ centred.mT > limit) & seen.unsqueeze(0) & seen.unsqueeze(1)
    return alike | torch.eye(words, dtype=torch.bool, device=alike.device)
