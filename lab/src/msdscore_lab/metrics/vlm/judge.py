"""A vision-language model as a judge of which of two captions is better, in both orders or in one."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from PIL.Image import Image

from msdscore.errors import ConfigError, RunError
from msdscore.io.files import pixel_key, text_key, write_bytes
from msdscore_lab.metrics.base import Cases, CaseScores, Loaded
from msdscore_lab.metrics.registry import choice, number
from msdscore_lab.metrics.vlm.endpoint import Endpoint
from msdscore_lab.metrics.vlm.model import Sampling, load_local
from msdscore_lab.metrics.vlm.prompts import fill_prompt, read_prompt

# CapArena's criteria, reworded.
SYSTEM = """You compare two captions of one picture and say which describes it better. Look closely at it first.

Weigh, in this order of importance:
- Truth: what a caption says must be there. Wrong colours, counts, positions, actions or poses count against it.
- Nothing invented: naming things that the picture does not show is the gravest fault.
- What matters is told: the striking parts of the picture should be named, as specifically as the picture allows; a
  vague word is worse than the right one.
- Detail that can be checked in the picture is worth more than general phrases.
- Use: which caption would serve someone who cannot see the picture better, and from which could the picture be
  imagined more faithfully?
If, after weighing all this, neither is better, call it a tie; do not call a tie to avoid a decision.

Answer in two lines:
Because: your reasons in one or two sentences
Verdict: 1, 2 or tie"""
QUESTION = "Caption 1: {first}\n\nCaption 2: {second}\n\nWhich caption is better?"
MAX_TOKENS = 600
# `own` has the temperature of CapArena's script (0.1), and both orders. `caparena` is the setup in its paper and in
# MSD-Score's: one order, temperature 0.5. Its prompt cannot be distributed here: pass the script as prompt=SCRIPT.py.
SETUPS: Mapping[str, Mapping[str, float]] = {
    "own": {"temperature": 0.1, "top_p": 0.9, "orders": 2},
    "caparena": {"temperature": 0.5, "top_p": 0.9, "orders": 1},
}
OPENAI = "https://api.openai.com/v1"
_VERDICT = re.compile(r"(?:verdict|judge?ment)\W*(?:caption\W*)?(1|2|tie)\b(?![.,]\d)", re.IGNORECASE)
# Variables of CapArena's script: the system message without and with a reference; the question has one name for both.
_SCRIPT_SYSTEM, _SCRIPT_QUESTION = ("system_prompt_without_ref", "system_prompt_with_ref"), "compare_prompt"
_PLAIN = re.compile(r"caption\W*([12])\W+is\s+better|^\W*(tie)\W*$", re.IGNORECASE | re.MULTILINE)  # CapArena's format
_CREDIT = {"1": 1.0, "2": 0.0, "tie": 0.5}
_MAX_ATTEMPTS = 3

Ask = Callable[[Image, str, int], str]
_Prompt = tuple[int, str]  # index of the image, question


def load_judge(model: str, backend: str = "endpoint", setup: str = "own", **options: str) -> Loaded:
    """Load the metric with a model at an endpoint, or a local one; see `read_prompts` for the prompts."""
    local = choice("backend", backend, ("endpoint", "local")) == "local"
    defaults = SETUPS[choice("setup", setup, tuple(SETUPS))]
    values = {name: number(name, options.get(name, value), least=0.0) for name, value in defaults.items()}
    if values["orders"] not in (1, 2):
        raise ConfigError(f"orders must be 1 or 2, got {values['orders']:g}")
    sampling = Sampling(values["temperature"], values["top_p"], MAX_TOKENS)
    home_folder = os.environ.get("MSDSCORE_HOME")
    default = (Path(home_folder) if home_folder else Path.home() / ".cache" / "msdscore") / "judge"
    workers = int(number("workers", options.get("workers", 4), least=1))
    for name in ("url", "key_env", "retries") if local else ("device", "dtype"):
        if name in options:
            raise ConfigError(f"option {name} needs backend={'endpoint' if local else 'local'}")
    prompts = read_prompts(**{name: options[name] for name in ("prompt", "system", "reference") if name in options})
    connect = _local if local else _endpoint
    ask, identity = connect(model, prompts[0], sampling, options)
    # A local model runs one request at a time: threads would interleave its random draws.
    folder, workers = Path(options.get("cache", "") or default), 1 if local else workers
    orders = int(values["orders"])
    judge = Judge(ask, identity, prompts, orders, sampling, folder, workers)
    file = options.get("prompt", "")
    prompt_id = f"{Path(file).name if file else 'own'}@{text_key(''.join(prompts)) % 16**8:08x}"
    choices = f"model:{identity}|t:{sampling.temperature:g}|p:{sampling.top_p:g}|orders:{orders}|prompt:{prompt_id}"
    return Loaded(judge.score, choices)


def read_prompts(prompt: str = "", system: str = "", reference: str = "false") -> tuple[str, str]:
    """Return the system message and the question with {first}, {second} and, with `reference`, {reference}.

    `prompt` is a text file with these fields, `SCRIPT.py:NAME`, or CapArena's script, of which both the question and
    the system message are those with or without a reference. `system` is a text file or `SCRIPT.py:NAME`.
    """
    with_reference = choice("reference", reference, ("true", "false")) == "true"
    fields = ("first", "second", *(("reference",) if with_reference else ()))
    if prompt.endswith(".py"):
        system = system or f"{prompt}:{_SCRIPT_SYSTEM[with_reference]}"
        prompt = f"{prompt}:{_SCRIPT_QUESTION}"
    if with_reference and not prompt:
        raise ConfigError("reference=true needs prompt=FILE with {reference}; our own question has none")
    question = read_prompt(prompt, *fields) if prompt else QUESTION
    return read_prompt(system) if system else "" if prompt else SYSTEM, question


def _endpoint(model: str, system: str, sampling: Sampling, options: Mapping[str, str]) -> tuple[Ask, str]:
    retries = int(number("retries", options.get("retries", 5), least=1))
    key_env = options.get("key_env", "OPENAI_API_KEY")
    endpoint = Endpoint(url=options.get("url", OPENAI), model=model, key_env=key_env, retries=retries)
    return lambda image, question, seed: endpoint.ask(image, system, question, sampling), f"{model}@{endpoint.url}"


def _local(model: str, system: str, sampling: Sampling, options: Mapping[str, str]) -> tuple[Ask, str]:
    loaded = load_local(model, device=options.get("device", "auto"), dtype=options.get("dtype", "auto"))

    def ask(image: Image, question: str, seed: int) -> str:
        return loaded.answer(image, "\n\n".join(filter(None, (system, question))), sampling, seed=seed % 2**32)

    return ask, loaded.signature


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge: model, prompt (system message and question), number of orders, and folder of stored answers.

    `workers` is the number of concurrent requests.
    """

    ask: Ask
    identity: str
    prompts: tuple[str, str]  # system message, question
    orders: int
    sampling: Sampling
    folder: Path
    workers: int

    def score(self, batch: Cases) -> CaseScores:
        """Return the share of orders won by each caption, NaN without a verdict.

        A question shared by several cases is sent once.
        """
        questions: dict[int, tuple[_Prompt, ...]] = {}
        for case in range(len(batch)):
            if batch.image(case) is not None:
                image, captions = int(batch.owner[case]), batch.candidates(case)
                orders = [captions, captions[::-1]][: self.orders]
                reference = self._reference(batch, case)
                questions[case] = tuple((image, self._question(first, second, reference)) for first, second in orders)
        distinct = list(dict.fromkeys(question for case_questions in questions.values() for question in case_questions))
        with ThreadPoolExecutor(self.workers) as pool:
            answers = pool.map(lambda question: self._verdict(batch.images[question[0]], question[1]), distinct)
            verdicts = dict(zip(distinct, answers, strict=True))
        values = np.full((len(batch), 2), np.nan)
        for case, prompts in questions.items():
            first = [verdicts[prompt] if order == 0 else 1 - verdicts[prompt] for order, prompt in enumerate(prompts)]
            values[case] = sum(first) / len(first), 1 - sum(first) / len(first)
        return CaseScores(values)

    def _question(self, first: str, second: str, reference: str) -> str:
        return fill_prompt(self.prompts[1], {"first": first, "second": second, "reference": reference})

    def _reference(self, batch: Cases, case: int) -> str:
        """Return the first reference of a case if the question has one."""
        if "{reference}" not in self.prompts[1]:
            return ""
        if not batch.references[case]:
            raise ConfigError(f"reference=true needs a reference of every item; {batch.ids[case]!r} has none")
        return batch.references[case][0]

    def _verdict(self, image: Image | None, question: str) -> float:
        """Return the credit of the first caption (NaN: no verdict)."""
        assert image is not None, "cases without an image have no question"
        *_, answer = self._answers(image, question)
        verdict = read_verdict(answer)
        return float("nan") if verdict is None else _CREDIT[verdict]

    def _answers(self, image: Image, question: str) -> Iterator[str]:
        """Yield answers until one has a verdict; each is stored on disk, so that no question is sent twice."""
        pixels = pixel_key(image)
        for attempt in range(_MAX_ATTEMPTS):
            # The key contains everything that can change an answer.
            content = json.dumps({
                "model": self.identity, "system": self.prompts[0], "question": question, "picture": str(pixels),
                "sampling": str(self.sampling), "attempt": str(attempt),
            }, sort_keys=True, ensure_ascii=False)  # fmt: skip
            key = blake2b(content.encode(), digest_size=16).hexdigest()
            path = self.folder / key[:2] / f"{key}.json"
            try:
                answer = str(json.loads(path.read_text(encoding="utf-8"))["text"])
            except (OSError, ValueError, KeyError, TypeError):  # no stored answer
                answer = self.ask(image, question, text_key(key))
                self._store(path, answer)
            yield answer
            if read_verdict(answer) is not None:
                return

    def _store(self, path: Path, answer: str) -> None:
        content = json.dumps({"text": answer}, ensure_ascii=False).encode() + b"\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content, folder=path.parent)
        except OSError as error:
            reason = error.strerror or error
            raise RunError(f"{self.folder}: cannot store answers here ({reason}); pass cache=FOLDER") from error


def read_verdict(text: str) -> str | None:
    """Return the last verdict of an answer; without the word "verdict", a plain "Caption 1 is better." or "Tie."

    >>> read_verdict("Because: the dog is brown.\\nVerdict: Caption 2"), read_verdict("Caption 1 is better.")
    ('2', '1')
    """
    verdicts = _VERDICT.findall(text) or ["".join(groups) for groups in _PLAIN.findall(text)]
    return str(verdicts[-1]).lower() if verdicts else None
