"""Helpers for tests of untrusted inputs: a pickle that runs code, and a parser that lists the tags of a page."""

from html.parser import HTMLParser
from pathlib import Path


class Bomb:
    """Object that creates a file when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


class Tags(HTMLParser):
    """Parser that collects all tags and attributes."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
