"""The Python call that makes the service's scorer again."""

from typing import Any

from msdscore.scoring.spec import ScorerSpec


def scorer_code(spec: ScorerSpec) -> str:
    """Python that gives a scorer with the same numbers; a bank is named by its file alone.

    >>> scorer_code(ScorerSpec())
    'Scorer("mini")'
    >>> scorer_code(ScorerSpec(encoder="clip-l14", config="long", bank="/srv/bank.safetensors"))
    'Scorer("clip-l14", "long", bank="bank.safetensors")'
    >>> scorer_code(ScorerSpec(changes={"alpha": 0.2}))
    'Scorer.from_spec(ScorerSpec(encoder="mini", changes={"alpha": 0.2}))'
    """
    bank = None if spec.bank is None else spec.bank.replace("\\", "/").rpartition("/")[2]
    named: dict[str, Any] = {"bank": bank, "revision": spec.revision} | (
        {} if spec.dtype == "auto" else {"dtype": spec.dtype}
    )
    given = [f"{name}={_quoted(value)}" for name, value in named.items() if value is not None]
    options = dict(spec.options)
    if not spec.changes:
        config = [] if spec.config is None else [_quoted(spec.config)]
        more = [f"{name}={_quoted(value)}" for name, value in options.items()]
        return f"Scorer({', '.join([_quoted(spec.encoder), *config, *given, *more])})"
    parts = [f"encoder={_quoted(spec.encoder)}"]
    parts += [] if spec.config is None else [f"config={_quoted(spec.config)}"]
    parts += [f"changes={_quoted(dict(spec.changes))}", *given]
    parts += [f"options={_quoted(options)}"] if options else []
    return f"Scorer.from_spec(ScorerSpec({', '.join(parts)}))"


def _quoted(value: Any) -> str:
    """A value as Python writes it, texts in double quotes."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {_quoted(item)}" for key, item in value.items()) + "}"
    return repr(value)
