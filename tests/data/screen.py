"""Turns a captured terminal screen into an SVG picture. Reads the text of `tmux capture-pane -e -p` on stdin.

    tmux capture-pane -e -p -t SESSION | python3 tests/data/screen.py "dtrain run recipe.toml" > docs/screen.svg
"""

import html
import re
import sys

COLUMN, LINE, MARGIN = 8.43, 18, 14  # pixels of a 14 px monospace font
COLOURS = {"31": "red", "32": "green", "33": "yellow", "34": "blue", "35": "magenta", "36": "cyan"}
STYLE = """\
    rect { fill: #16181d }
    text { fill: #d7dae0; font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace }
    .title { fill: #8b919c }
    .bold { font-weight: bold }
    .dim { opacity: 0.55 }
    .red { fill: #f07178 } .green { fill: #a5d36c } .yellow { fill: #e9c46a }
    .blue { fill: #7aa8f0 } .magenta { fill: #c792ea } .cyan { fill: #6cc7d4 }"""


def classes(state, codes):
    """The set of classes after the codes of one escape sequence."""
    for code in codes.split(";"):
        if code in ("", "0"):
            state = set()
        elif code == "1":
            state = state | {"bold"}
        elif code == "2":
            state = state | {"dim"}
        elif code == "22":
            state = state - {"bold", "dim"}
        elif code == "39":
            state = state - set(COLOURS.values())
        elif code in COLOURS:
            state = (state - set(COLOURS.values())) | {COLOURS[code]}
    return state


def spans(line, state):
    """A line as SVG, and the classes that hold after it."""
    parts = re.split(r"\x1b\[([0-9;]*)m", line)
    out = []
    for index, part in enumerate(parts):
        if index % 2:
            state = classes(state, part)
        elif part and state:
            out.append(f'<tspan class="{" ".join(sorted(state))}">{html.escape(part, quote=False)}</tspan>')
        else:
            out.append(html.escape(part, quote=False))
    return "".join(out), state


def main():
    title = html.escape(sys.argv[1], quote=False)
    lines = sys.stdin.read().rstrip().split("\n")
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    width = round(max(map(len, plain)) * COLUMN + 2 * MARGIN)
    height = (len(lines) + 2) * LINE + 2 * MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {width} {height}" width="{width}" height="{height}">')
    print(f"  <title>{title}</title>\n  <style>\n{STYLE}\n  </style>")
    print(f'  <rect width="{width}" height="{height}" rx="8"/>')
    print(f'  <text class="title" x="{MARGIN}" y="{MARGIN + 14}">$ {title}</text>')
    state = set()
    for number, line in enumerate(lines, 2):
        text, state = spans(line.rstrip(), state)
        print(f'  <text x="{MARGIN}" y="{MARGIN + 14 + number * LINE}">{text}</text>')
    print("</svg>")


main()
