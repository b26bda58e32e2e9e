"""Lines reach a log as they are; bars are drawn on a terminal only."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from tta_bench.console import progress_bar, say


def on(terminal):
    return Console(file=io.StringIO(), width=40, force_terminal=terminal, color_system="standard")


@pytest.mark.parametrize(
    "sentence",
    ["no [bold] is lost, nor methods=[tent,cotta] nor [/]", "word " * 30 + "end", "7 runs in '/a/b' :smile:"],
)
@pytest.mark.parametrize("kind", [str, Text])
def test_a_line_is_printed_as_it_is(sentence, kind):
    console = on(terminal=True)
    say(console, kind(sentence))
    assert console.file.getvalue() == f"{sentence}\n"


def test_a_style_is_that_of_the_whole_line():
    console = on(terminal=True)
    say(console, "3 of 4", "yellow")
    assert console.file.getvalue() == "\x1b[33m3 of 4\x1b[0m\n"


def worked(console, *amounts, transient=True):
    with progress_bar(console, *amounts, transient=transient) as bar:
        list(bar.track(range(3), description="fog"))
    return console.file.getvalue()


def test_a_bar_is_drawn_on_a_terminal_only():
    assert "3/3" in worked(on(terminal=True))
    assert worked(on(terminal=False)) == ""


def test_other_columns_take_the_place_of_the_count():
    drawn = worked(on(terminal=True), "{task.percentage:.0f} of a hundred")
    assert "100 of a hundred" in drawn
    assert "3/3" not in drawn


def test_a_bar_stays_where_it_should():
    erase = "\x1b[2K"
    assert worked(on(terminal=True)).rstrip("\n").endswith(erase)
    assert not worked(on(terminal=True), transient=False).rstrip("\n").endswith(erase)
