#!/usr/bin/env python3
"""A chart of bench/recipe.py's results: for every variant, how much of the oracle's mass the selection of each layer
keeps (a dot a layer, a bar at their mean, the worst layer filled), best mean on top.

    bench/recipe_chart.py results.jsonl chart.svg [--rename "old name=new name" ...] [--mark "name" ...]"""

import argparse
import json
import math
import xml.sax.saxutils

WIDTH, LEFT, RIGHT, TOP, ROW, BOTTOM = 860, 250, 130, 64, 30, 52
TEXT, QUIET, GRID, DOT, WORST, MARKED = "#1f2328", "#656d76", "#d8dee4", "#5b8fd6", "#c2410c", "#eef4ff"


def escaped(text):
    return xml.sax.saxutils.escape(text, {'"': "&quot;"})


def text(x, y, words, size=13, anchor="start", colour=TEXT, weight="normal"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
        f'font-weight="{weight}">{escaped(words)}</text>'
    )


def chart(rows, marked):
    """rows: (name, kept over oracle by layer, in percent), best first."""
    low = 2 * math.floor(min(min(layers) for _, layers in rows) / 2)
    height = TOP + ROW * len(rows) + BOTTOM
    right = WIDTH - RIGHT
    bottom = TOP + ROW * len(rows)

    def at(percent):
        return LEFT + (percent - low) / (100 - low) * (right - LEFT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text(16, 26, "Attention mass that the selection keeps, of what the best one of its size would", 15, weight="bold"),
        text(right + 46, TOP - 10, "mean", 12, "end", QUIET),
        text(right + 104, TOP - 10, "worst", 12, "end", QUIET),
    ]
    for y, (name, _) in enumerate(rows):
        if name in marked:
            parts.append(f'<rect x="8" y="{TOP + ROW * y}" width="{WIDTH - 16}" height="{ROW}" fill="{MARKED}" rx="4"/>')
    for tick in range(low, 101, 2):
        parts.append(f'<line x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{TOP}" y2="{bottom}" stroke="{GRID}"/>')
        parts.append(text(at(tick), bottom + 18, f"{tick} %", 12, "middle", QUIET))
    for y, (name, layers) in enumerate(rows):
        middle = TOP + ROW * (y + 0.5)
        mean, worst = sum(layers) / len(layers), min(layers)
        parts.append(text(LEFT - 14, middle + 4.5, name, 13, "end", weight="bold" if name in marked else "normal"))
        parts.append(
            f'<line x1="{at(worst):.1f}" x2="{at(max(layers)):.1f}" y1="{middle}" y2="{middle}" stroke="{GRID}" stroke-width="2"/>'
        )
        for number, layer in enumerate(layers):
            fill = WORST if layer == worst else "#ffffff"
            parts.append(
                f'<circle cx="{at(layer):.1f}" cy="{middle}" r="4.5" fill="{fill}" stroke="{WORST if layer == worst else DOT}" '
                f'stroke-width="1.6"><title>{escaped(name)}, layer {number}: {layer:.1f} %</title></circle>'
            )
        parts.append(f'<rect x="{at(mean) - 1.5:.1f}" y="{middle - 9}" width="3" height="18" fill="{TEXT}"/>')
        parts.append(text(right + 46, middle + 4.5, f"{mean:.1f}", 13, "end"))
        parts.append(text(right + 104, middle + 4.5, f"{worst:.1f}", 13, "end", WORST))
    parts.append(text(LEFT, bottom + 40, "a dot a layer; bar: mean of the layers; filled: the worst layer", 12, colour=QUIET))
    return "\n".join([*parts, "</svg>", ""])


def pair(argument):
    old, equals, new = argument.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, got {argument!r}")
    return old, new


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="results.jsonl of bench/recipe.py")
    parser.add_argument("chart", help="the SVG file to write")
    parser.add_argument("--rename", action="append", type=pair, default=[], metavar="OLD=NEW", help="a variant's name in the chart")
    parser.add_argument("--mark", action="append", default=[], metavar="NAME", help="a variant (by its new name) that stands out")
    args = parser.parse_args()
    with open(args.results) as file:
        results = {row["name"]: [100 * x for x in row["kept_over_oracle"]] for row in map(json.loads, file)}
    names = dict(args.rename)
    shown = {names.get(name, name) for name in results}
    for name in [*names, *args.mark]:
        if name not in results and name not in shown:
            parser.error(f"expected one of {', '.join(results)}, got {name!r}")
    rows = [(names.get(name, name), layers) for name, layers in results.items()]
    rows.sort(key=lambda row: -sum(row[1]) / len(row[1]))
    with open(args.chart, "w") as file:
        file.write(chart(rows, args.mark))


if __name__ == "__main__":
    main()
