"""The first thing a visitor sees: real photographs, captions good and bad, and what the score says of each word."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from msdscore.explain.colours import css
from msdscore.explain.overlay import fit, word_scale
from msdscore.explain.page import head
from msdscore.explain.snippet import data_uri, words_html
from msdscore.explain.terms import Explanation, Explanations
from msdscore.report.photographs import KINDS, PHOTOGRAPHS, Photograph, locate

if TYPE_CHECKING:
    from msdscore.scorer import Scorer

PICTURE_PIXELS = 420
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:1080px;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.6rem;margin:0}section{display:flex;gap:1.5rem;margin:2rem 0;align-items:flex-start;flex-wrap:wrap}
figure{margin:0;flex:0 0 300px}figure img{width:100%;border-radius:8px}figcaption{font-size:.75rem;color:#777}
table{border-collapse:collapse;flex:1 1 420px}td{padding:.35rem .5rem;border-bottom:1px solid #eee;vertical-align:top}
td.k{color:#777;white-space:nowrap}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr.best td.n{font-weight:700}.bar{height:6px;border-radius:3px;background:#2a6f97;margin-top:.35rem}
code{font-size:.75rem;word-break:break-all}p.key span{border-radius:3px;padding:1px 6px}
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """One photograph with its explained captions."""

    photograph: Photograph
    explained: Explanations

    @property
    def ranked(self) -> list[tuple[str, Explanation]]:
        """Kinds and captions from best to worst Soft-MSD."""
        pairs = list(zip(KINDS, self.explained, strict=True))
        return sorted(pairs, key=lambda pair: -pair[1].score.soft_msd)


def show(scorer: "Scorer") -> list[Shown]:
    """Explain all captions of all photographs."""
    return [Shown(one, scorer.contrast(locate(one), list(one.captions))) for one in PHOTOGRAPHS]


def write(shown: Sequence[Shown], folder: Path) -> Path:
    """Write the page and a figure a photograph; the page's path comes back."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in shown:
        good, _, invents, _ = one.explained.items
        Explanations((good, invents)).save(folder / f"{one.photograph.name}.png")
    target = folder / "index.html"
    target.write_text(page(shown), encoding="utf-8")
    return target


def page(shown: Sequence[Shown]) -> str:
    """The whole page, self-contained."""
    signature = escape(shown[0].explained[0].score.signature)
    key = (
        f"<p class='key'>Words the picture <span style='background:{css('support', 0.7)}'>supports</span> and words it "
        f"<span style='background:{css('penalty', 0.7)};color:#fff'>does not</span>; bars are Soft-MSD.</p>"
    )
    body = "".join(map(_section, shown))
    return (
        f"{head('msdscore demo', STYLE, '')}<body><h1>Which caption does the picture support?</h1>{key}{body}"
        f"<p><code>{signature}</code></p></body></html>\n"
    )


def _section(one: Shown) -> str:
    items, scale = one.explained.items, word_scale(one.explained)
    low, high = (limit(item.score.soft_msd for item in items) for limit in (min, max))
    rows = "".join(_row(kind, item, words_html(item, scale), (low, high)) for kind, item in one.ranked)
    picture = data_uri(fit(items[0].picture, PICTURE_PIXELS))
    return (
        f"<section><figure><img alt='{escape(one.photograph.name)}' src='{picture}'>"
        f"<figcaption>{escape(one.photograph.credit)}</figcaption></figure><table>{rows}</table></section>"
    )


def _row(kind: str, item: Explanation, words: str, span: tuple[float, float]) -> str:
    low, high = span
    share = 100 * (item.score.soft_msd - low) / (high - low) if high > low else 100.0
    best = " class='best'" if item.score.soft_msd == high else ""
    return (
        f"<tr{best}><td class='k'>{kind}</td><td>{words}<div class='bar' style='width:{max(share, 1):.0f}%'></div></td>"
        f"<td class='n'>{item.score.soft_msd:+.3f}</td></tr>"
    )
