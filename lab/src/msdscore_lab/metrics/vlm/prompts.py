"""Prompts in text files, or in the scripts of their authors, which are parsed and never run."""

import ast
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msdscore.errors import ConfigError


def read_prompt(path: str, *fields: str) -> str:
    """Return the prompt in a text file, or in a variable of a script (`FILE.py:NAME`), with `{FIELD}` for every field.

    A script may assign several texts to the variable, for example with and without a reference: the one with as many
    placeholders as fields is returned, exactly as written, and the fields replace its placeholders in order.
    """
    file, _, variable = path.partition(".py:")
    source = Path(f"{file}.py" if variable else path)
    if not source.is_file():
        raise ConfigError(f"{source}: no such prompt file")
    text = source.read_text(encoding="utf-8")
    if variable:
        return script_prompt(text, variable, fields)
    prompt = text.strip()
    placeholders = [f"{{{field}}}" for field in fields]
    if not all(placeholder in prompt for placeholder in placeholders):
        raise ConfigError(f"{path}: expected {' and '.join(placeholders)} in the prompt")
    return prompt


def script_prompt(code: str, variable: str, fields: Sequence[str]) -> str:
    """Return the text assigned to a variable in Python code, with the names of `fields` as placeholders.

    The text is a string, with `{}` for `str.format` if there are fields, or an f-string.

    >>> script_prompt('ask = f"Rate {text_1} and {text_2}:"', "ask", ("first", "second"))
    'Rate {first} and {second}:'
    """
    try:
        texts = [_pieces(value, has_fields=bool(fields)) for value in _assigned(ast.parse(code), variable)]
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"expected a Python script with the prompt {variable}: {error}") from error
    if not texts:
        raise ConfigError(f"expected a string or f-string that is assigned to {variable} in the script, found none")
    names = [list(dict.fromkeys(name for _, name in pieces if name is not None)) for pieces in texts]
    fitting = [number for number, placeholders in enumerate(names) if len(placeholders) == len(fields)]
    if len(fitting) != 1:
        found = "; ".join(", ".join(placeholders) or "no placeholder" for placeholders in names)
        raise ConfigError(
            f"expected one text {variable} with {len(fields)} placeholders ({', '.join(fields) or 'none'}), "
            f"found {len(texts)}: {found}"
        )
    field = dict(zip(names[fitting[0]], fields, strict=True))
    return "".join(text + ("" if name is None else f"{{{field[name]}}}") for text, name in texts[fitting[0]])


def fill_prompt(prompt: str, values: Mapping[str, str]) -> str:
    """Replace `{FIELD}` by its value, in one pass, so that a value that contains a placeholder is not changed.

    >>> fill_prompt("1: {first}, 2: {second}", {"first": "a {second}", "second": "b"})
    '1: a {second}, 2: b'
    """
    placeholder = re.compile("|".join(re.escape(f"{{{name}}}") for name in values))
    return placeholder.sub(lambda match: values[match[0][1:-1]], prompt)


def _assigned(tree: ast.Module, variable: str) -> Iterator[ast.expr]:
    """Yield the strings and f-strings that are assigned to a variable, in the order of the script."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        is_text = isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))
        if is_text and any(isinstance(target, ast.Name) and target.id == variable for target in targets):
            yield value


def _pieces(value: ast.expr, *, has_fields: bool) -> list[tuple[str, str | None]]:
    """Return the texts of a string or f-string, each with the name of the placeholder behind it."""
    if isinstance(value, ast.JoinedStr):
        return [
            (str(part.value), None) if isinstance(part, ast.Constant) else ("", ast.unparse(part))
            for part in value.values
        ]
    text = str(ast.literal_eval(value))
    if not has_fields:
        return [(text, None)]
    parsed = string.Formatter().parse(text)
    return [
        (literal, None if name is None else name or str(number)) for number, (literal, name, *_) in enumerate(parsed)
    ]
