"""CPU time per caption with five references, one thread, texts only.

python perf/references.py
"""

import sys
import time

from msdscore import Scorer, threads
from msdscore.scoring import references
from msdscore.scoring.references import background_captions

CAPTIONS, COUNT = 60, 5


def main() -> None:
    """Print the milliseconds of encoding and comparing."""
    threads.use(1)
    scorer = Scorer(device="cpu")
    texts = [text.replace("A ", f"{number} ") for number in range(4) for text in background_captions()]
    captions, references_pool = texts[:CAPTIONS], texts[CAPTIONS : CAPTIONS * (COUNT + 1)]
    lists = [references_pool[COUNT * n : COUNT * (n + 1)] for n in range(CAPTIONS)]
    pipeline = scorer.pipeline.remembering()
    references.compare_texts(pipeline.embedder, captions[:1], [["a dog"]])  # the background is encoded once
    times = []
    for _ in range(2):  # the second time every vector is cached
        start = time.process_time()
        references.compare_texts(pipeline.embedder, captions, lists)
        times.append(1000 * (time.process_time() - start) / CAPTIONS)
    sys.stdout.write(
        f"{times[0]:.1f} ms per caption with {COUNT} new references, {times[1]:.1f} ms if all are cached\n"
    )


if __name__ == "__main__":
    main()
