"""The run as a page: one HTML file with its figures, the drawing, its rebalances, and what might have been.

It stands by itself: no network, no fonts, no libraries; without its few lines of script it only loses the
quick tooltips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from coterie.simulate.what_if.what_if import WhatIf
from pipeline.report.picture import Frame, draw, el
from pipeline.report.scene import Scene
from pipeline.report.what_if import CALLED, in_words, seconds
from pipeline.watch.story import Rebalance, because

PAGE_STYLE = """
:root{color-scheme:light dark} *{box-sizing:border-box}
body{margin:0 auto;padding:28px 24px 60px;max-width:1230px;background:#f4f6fa;color:#172033;
font:15px/1.5 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
h1{font-size:26px;margin:0 0 4px} h2{font-size:17px;margin:30px 0 10px} p{margin:0 0 18px;color:#5b6780}
.cards{display:flex;flex-wrap:wrap;gap:10px;margin:0 0 18px}
.card{background:#fff;border:1px solid #e1e6ee;border-radius:10px;padding:10px 16px;min-width:118px}
.card b{display:block;font-size:21px;font-variant-numeric:tabular-nums}
.card span{color:#5b6780;font-size:13px}
.picture{overflow-x:auto;border:1px solid #e1e6ee;border-radius:12px;background:#fff} svg{display:block}
table{border-collapse:collapse;width:100%;background:#fff;border:1px solid #e1e6ee;font-size:14px}
th,td{padding:7px 12px;text-align:left;border-bottom:1px solid #edf0f5;vertical-align:top}
th{color:#5b6780;font-weight:600} .n{text-align:right;font-variant-numeric:tabular-nums}
i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
.who{white-space:nowrap;margin-right:14px}
code{font-size:13px;color:#5b6780}
#tip{position:fixed;pointer-events:none;white-space:pre-line;background:#172033;color:#fff;padding:7px 10px;
border-radius:7px;font-size:13px;line-height:1.4;max-width:360px;opacity:0;transition:opacity .08s}
.dim [data-member]:not(.lit){opacity:.25} g[data-member]{transition:opacity .12s}
@media (prefers-color-scheme:dark){body{background:#0a0e15;color:#e8ecf4} p,.card span,th,code{color:#9aa6bb}
.card,.picture,table{background:#10151f;border-color:#2a3446} th,td{border-color:#1f2837}
#tip{background:#e8ecf4;color:#10151f}}
"""

# Native tooltips come late; these come at once, and light up everything of the member under the pointer.
PAGE_SCRIPT = """
const tip=document.getElementById('tip'),svg=document.querySelector('svg');
for(const g of document.querySelectorAll('g.tip')){
 const t=g.querySelector('title'),words=t.textContent;t.remove();
 g.addEventListener('pointermove',e=>{tip.textContent=words;tip.style.opacity=1;
  tip.style.left=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8)+'px';tip.style.top=e.clientY+16+'px'});
 g.addEventListener('pointerenter',()=>{const m=g.dataset.member;if(!m)return;svg.classList.add('dim');
  for(const o of svg.querySelectorAll('[data-member]'))o.classList.toggle('lit',o.dataset.member===m)});
 g.addEventListener('pointerleave',()=>{tip.style.opacity=0;svg.classList.remove('dim')});
}
"""


def page(
    scene: Scene, *, title: str, subtitle: str, figures: Mapping[str, Any], answers: Sequence[WhatIf] = ()
) -> str:
    """Return the picture as an HTML file that stands by itself."""
    frame = Frame(scene)
    cards = [
        el("div", el("b", figure_of(value)), el("span", escape(name)), class_="card")
        for name, value in figures.items()
    ]
    inside = [
        el("h1", escape(title)),
        el("p", escape(subtitle)),
        el("div", *cards, class_="cards"),
        el(
            "div",
            draw(scene, title="Which member owned which partition", subtitle=subtitle),
            class_="picture",
        ),
        el("h2", "Rebalances"),
        rebalance_table(frame, scene.rebalances),
        *what_if(answers),
        '<div id="tip"></div>',
        el("script", PAGE_SCRIPT),
    ]
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        el("title", escape(title)),
        el("style", PAGE_STYLE),
    ]
    return "<!doctype html>\n" + el("html", el("head", *head), el("body", *inside), lang="en") + "\n"


def figure_of(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def rebalance_table(frame: Frame, rebalances: Sequence[Rebalance]) -> str:
    """Return the list of rebalances, a row each."""
    titles = ["generation", "at", "why", "who got what", "nobody worked for", "longest stand-still", "moved"]
    head = el("tr", *(el("th", title, class_="n" if title in titles[4:] else "") for title in titles))
    return el("table", head, *(rebalance_row(frame, one) for one in rebalances))


def rebalance_row(frame: Frame, rebalance: Rebalance) -> str:
    members = (
        el(
            "span",
            f'<i style="background:{frame.colour(name)}"></i>',
            escape(f"{name} {', '.join(map(str, got))}"),
            class_="who",
        )
        for name, got in rebalance.members.items()
    )
    slugs = el("code", escape(", ".join(rebalance.why)))
    cells = [
        el("td", str(rebalance.generation)),
        el("td", f"{frame.scene.seconds(rebalance.at_ms):.1f} s"),
        el("td", escape(because(rebalance)), "<br>", slugs),
        el("td", *members) if rebalance.members else el("td", "nobody is left"),
        el("td", "new group" if rebalance.new else f"{rebalance.idle_ms:,} ms", class_="n"),
        el("td", f"{max(rebalance.longest_ms, rebalance.idle_ms):,} ms", class_="n"),
        el("td", str(rebalance.moved), class_="n"),
    ]
    return el("tr", *cells)


def what_if(answers: Sequence[WhatIf]) -> Iterator[str]:
    """Yield the last part: what the run would have come to with other settings."""
    if not answers:
        return
    yield el("h2", "What if the members were static?")
    yield el("p", escape(in_words(answers)))
    titles = ["settings", "rebalances", "stood still", "longest", "partitions moved", "why"]
    head = el("tr", *(el("th", title, class_="n" if title in titles[1:5] else "") for title in titles))
    yield el("table", head, *(what_if_row(one) for one in answers if one.rebalances is not None))


def what_if_row(one: WhatIf) -> str:
    figures = one.rebalances, seconds(one.stood_still_ms), seconds(one.longest_still_ms), one.moves
    cells = [el("td", escape(CALLED[one.setting]))]
    cells += [el("td", str(figure), class_="n") for figure in figures]
    return el("tr", *cells, el("td", el("code", escape(", ".join(one.causes)))))
