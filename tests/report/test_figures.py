"""The report's figures: cells read and keep their numbers, labels stay with their lines, nothing is cut off unsaid."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from synthetic import alone_in_process_0

from attnlab import figures
from attnlab.report.analysis import analyse
from attnlab.report.run_figures import ceiling, heat_maps, latency, trailing

SAME = dict.fromkeys("ab", lambda w: 1e-4)


@pytest.mark.parametrize("colour", [*figures.COLOURS.values(), *figures.OTHERS, figures.BLUE])
def test_words_read_on_every_ground_that_a_cell_may_have(colour):
    """At a contrast of 4.5, from white to the full colour."""
    grounds = [figures.mixed(colour, part / 50) for part in range(51)]
    assert min(figures.contrast(figures.ink(one), one) for one in grounds) >= 4.5
    assert figures.contrast("#000000", "#FFFFFF") == pytest.approx(21)


def test_cells_that_are_not_decided_differ_without_colour_and_keep_their_numbers(made):
    costs = {"a": lambda w: 1e-4 if w.keys > 64 else 2e-4, "b": lambda w: 1e-4}
    run = alone_in_process_0(made(costs=costs, lengths=(64, 128, 256), heads=(1,), memory=False), 256)
    axes = heat_maps(analyse(run))["winners"].figure.axes[0]
    cells = [one for one in axes.patches if isinstance(one, Rectangle)]
    assert [one.get_linestyle() for one in cells] == ["-", "--", ":"]
    texts = [one.get_text() for one in axes.texts]
    assert all("." in one for one in texts[1::2]) and {"≈", "≟"} & set(texts[3]) and "no interval" in texts[5]
    for cell, *written in zip(cells, axes.texts[::2], axes.texts[1::2], strict=True):
        ground = to_hex(cell.get_facecolor())
        assert all(figures.contrast(to_hex(one.get_color()), ground) >= 4.5 for one in written)


def test_both_maps_call_the_same_cells_decided(made):
    """A lead of 0.5 % is known to be one, and counts as none."""
    costs = {"a": lambda w: 1.005e-4 if w.keys == 64 else 2e-4, "b": lambda w: 1e-4}
    run = made(costs=costs, lengths=(64, 128), heads=(1,), noise=1e-4, memory=False)
    for drawn in heat_maps(analyse(run)).values():
        cells = [one for one in drawn.figure.axes[0].patches if isinstance(one, Rectangle)]
        assert [one.get_linestyle() for one in cells] == ["--", "-"]


def test_a_line_joins_each_label_to_the_end_of_its_curve(made):
    """Where ten curves coincide, and their labels are moved far apart."""
    run = made(costs={f"backend_{at}": lambda w: 1e-4 * w.keys for at in range(10)}, heads=(1,))
    axes = latency(analyse(run)).figure.axes[0]
    assert len({one.xyann for one in axes.texts if one.arrow_patch}) == len(axes.texts) == 10
    assert {one.xy for one in axes.texts} == {(1024, one.get_ydata()[-1]) for one in axes.lines}


def test_an_interval_that_leaves_the_axis_ends_in_an_arrow_and_another_size_is_named(made):
    """The longest length has no interval: the figure shows the one before, and its title says so."""
    wide = made(costs=SAME, noise=0.5, processes=2, heads=(1,), lengths=(64, 256))
    figure = trailing(analyse(alone_in_process_0(wide, 256))).figure
    figures.lay_out(figure)
    title = figure.axes[0].get_title("left").replace("\n", " ")
    assert "1 head at n = 64, not compared at longer ones" in title
    assert {"<", ">"} & {one.get_marker() for one in figure.axes[0].lines}


def test_a_long_title_of_one_narrow_panel_stays_within_the_figure(made):
    costs = {"a": lambda w: 1e-4 * w.keys, "b": lambda w: 1e-4 * w.keys if w.keys < 1024 else 9.0}
    figure = ceiling(analyse(made(costs=costs, heads=(1,)))).figure
    figure.canvas.draw()
    within, title = figure.bbox, figure._suptitle.get_window_extent()
    assert "dotted" in figure.get_suptitle() and within.x0 <= title.x0 and title.x1 <= within.x1
