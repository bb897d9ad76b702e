"""Interpolation between classes of captions by their number of content words.

The evidence of a word and the score of a caption grow with the sentence, since vectors of tokens are contextual. So
p-values, probabilities and `match` are calibrated separately for captions of 1, 2, 3 to 4, 5 to 8 and more content
words. Between the typical lengths of these classes, values are linear in the logarithm of the number of words.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

LENGTHS = (1.0, 2.0, 3.5, 6.5, 12.0)  # typical numbers of content words of the classes
_LIMITS = (2, 3, 5, 9)  # least numbers of content words of all classes but the first


def length_class(words: int) -> int:
    """Return the class of captions with a number of content words.

    >>> [length_class(words) for words in (0, 1, 2, 4, 8, 40)]
    [0, 0, 1, 2, 3, 4]
    """
    return sum(words >= limit for limit in _LIMITS)


def by_length(counts: Floats, value: Callable[[int, Flags], Floats]) -> Floats:
    """Interpolate values between classes; `value(number, chosen)` are those of a class for the chosen entries.

    >>> by_length(np.array([1.0, 2.0, 7.0 ** 0.5, 99.0]), lambda number, chosen: np.full(chosen.sum(), float(number)))
    array([0. , 1. , 1.5, 4. ])
    """
    at = np.interp(np.log(np.maximum(counts, 1)), np.log(LENGTHS), np.arange(len(LENGTHS)))
    result = np.zeros(counts.shape)
    for number in range(len(LENGTHS)):
        share = np.maximum(1 - np.abs(at - number), 0)
        chosen = share > 0
        result[chosen] += share[chosen] * value(number, chosen)
    return result


def length_weights(counts: Floats) -> Floats:
    """Return the weights of the classes, lengths by classes; rows add up to 1.

    >>> length_weights(np.array([1.0, 99.0])).tolist()
    [[1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    """
    at = np.interp(np.log(np.maximum(counts, 1)), np.log(LENGTHS), np.arange(len(LENGTHS)))
    return np.maximum(1 - np.abs(at[:, None] - np.arange(len(LENGTHS))), 0)
