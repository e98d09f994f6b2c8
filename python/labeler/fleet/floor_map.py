"""A picture of the floor as SVG: what stands on it, the robots by their label, a few robots' rays.

Only draws what it is given: the same fleet and readings give the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np

from labeler.fleet.controller import LABELS, WIDTH
from labeler.fleet.floor import CELL_M, CHARGER, OBSTACLE, RACK, STATION, WALL
from labeler.fleet.sensors import RADIUS_M, RANGE_MAX_M
from labeler.fleet.simulator import Fleet, Readings

__all__ = ["LABEL_COLOURS", "draw_map"]

Array = np.ndarray[Any, Any]

LABEL_COLOURS = dict(
    zip(LABELS, ("#2e7d32", "#ef9f00", "#c62828", "#1565c0", "#7b1fa2"), strict=True)
)
"""Colour of the robots that a label is right for."""

_FLOOR_COLOUR = "#fafafa"
_COLOURS = {
    WALL: ("wall", "#455a64"),
    RACK: ("rack", "#b0bec5"),
    STATION: ("station", "#ffcc80"),
    CHARGER: ("charger", "#80cbc4"),
    OBSTACLE: ("obstacle", "#8d6e63"),
}
_PIXELS_M = 8
_WITH_RAYS = 12  # robots whose rays are shown; of all 2,300 one would see nothing else
_LEGEND_M = 4.0


def draw_map(fleet: Fleet, readings: Readings) -> str:
    """An SVG document: x to the right, y up, 8 pixels a metre; one circle of class `robot` each.

    A robot that is silent is drawn hollow. Rays are of the sensed ranges, those that hit nothing
    left out.
    """
    floor = fleet.floor
    width, height = floor.width_m, floor.height_m + _LEGEND_M
    root = ElementTree.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width * _PIXELS_M:g}",
        height=f"{height * _PIXELS_M:g}",
    )
    ElementTree.SubElement(root, "title").text = f"floor {floor.seed}, {fleet.robots} robots"
    ElementTree.SubElement(root, "rect", width="100%", height="100%", fill=_FLOOR_COLOUR)
    plan = ElementTree.SubElement(
        root, "g", transform=f"translate(0 {floor.height_m:g}) scale(1 -1)"
    )
    for kind, (name, colour) in _COLOURS.items():
        outline = "".join(_rectangles(floor.cells == kind))
        ElementTree.SubElement(plan, "path", {"class": name, "fill": colour, "d": outline})
    rays = {"class": "rays", "stroke": "#000", "stroke-opacity": "0.35", "stroke-width": "0.05"}
    ElementTree.SubElement(plan, "path", {**rays, "d": "".join(_rays(readings))})
    _robots(plan, readings)
    _legend(root, readings, floor.height_m)
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _rectangles(cells: Array) -> Iterator[str]:
    """Outlines of the true cells: runs within a row, equal ones of neighbouring rows as one."""
    started: dict[tuple[int, int], int] = {}
    for row in range(len(cells) + 1):
        runs = set(_runs(cells[row])) if row < len(cells) else set()
        for first, end in sorted(started.keys() - runs):
            base = started.pop((first, end))
            x, y, w, h = (n * CELL_M for n in (first, base, end - first, row - base))
            yield f"M{x:g} {y:g}h{w:g}v{h:g}h{-w:g}z"
        for run in runs - started.keys():
            started[run] = row


def _runs(line: Array) -> list[tuple[int, int]]:
    """First and end column of each run of true cells."""
    edges = np.flatnonzero(np.diff(line.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _robots(plan: ElementTree.Element, readings: Readings) -> None:
    ahead = readings.positions + RADIUS_M * _ways(readings.headings)
    for label, (name, colour) in enumerate(LABEL_COLOURS.items()):
        style = {"class": name, "fill": colour, "stroke": colour, "stroke-width": "0.08"}
        group = ElementTree.SubElement(plan, "g", style)
        for robot in np.flatnonzero(readings.truths == label).tolist():
            x, y = readings.positions[robot].tolist()
            shape = {"class": "robot", "cx": f"{x:.2f}", "cy": f"{y:.2f}", "r": f"{RADIUS_M:g}"}
            if not readings.connected[robot]:
                shape["fill"] = "none"
            ElementTree.SubElement(group, "circle", shape)
        noses = "".join(
            f"M{x:.2f} {y:.2f}L{to_x:.2f} {to_y:.2f}"
            for (x, y), (to_x, to_y), right in zip(
                readings.positions.tolist(), ahead.tolist(), readings.truths.tolist(), strict=True
            )
            if right == label
        )
        ElementTree.SubElement(group, "path", {"class": "noses", "stroke": "#fff", "d": noses})


def _rays(readings: Readings) -> Iterator[str]:
    """Lines from the rims of a few robots, spread over the fleet, to what their sensors report."""
    robots = len(readings.truths)
    for robot in range(0, robots, -(-robots // _WITH_RAYS)):
        turned = readings.headings[robot] + np.arange(WIDTH) * (2 * np.pi / WIDTH)
        ranges = readings.ranges[robot][:, np.newaxis]
        ends = readings.positions[robot] + (RADIUS_M + ranges) * _ways(turned)
        rims = readings.positions[robot] + RADIUS_M * _ways(turned)
        for (x, y), (to_x, to_y), hit in zip(
            rims.tolist(), ends.tolist(), (ranges[:, 0] < RANGE_MAX_M).tolist(), strict=True
        ):
            if hit:
                yield f"M{x:.2f} {y:.2f}L{to_x:.2f} {to_y:.2f}"


def _ways(angles: Array) -> Array:
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _legend(root: ElementTree.Element, readings: Readings, top_m: float) -> None:
    counts = np.bincount(readings.truths, minlength=len(LABELS)).tolist()
    style = {"class": "legend", "font-family": "sans-serif", "font-size": "1.6"}
    legend = ElementTree.SubElement(root, "text", {**style, "x": "1", "y": f"{top_m + 2.5:g}"})
    for (name, colour), count in zip(LABEL_COLOURS.items(), counts, strict=True):
        part = ElementTree.SubElement(legend, "tspan", {"fill": colour})
        part.text = f"{name} {count}"
        part.tail = "  "
