"""What a person sees while a sweep runs: a live table on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from accum_sweeps.jobs.board import Board, Running
from accum_sweeps.plan.words import counted
from accum_sweeps.record.events import DONE

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

DRAW_S = 0.25
DRAW_PAUSE = 50  # drawing takes at most one part in so many of the time, however large the plan
FIRST_LINE_S, LONGEST_LINE_S = 10.0, 120.0
MOST_ROWS = 20
COLUMNS = ("planned", "running", "finished", "diverged", "failed", "lost")


@contextmanager
def shown_progress(stream: TextIO) -> Iterator[Callable[[Board], None]]:
    """A function that shows a board on ``stream``; it may be called as often as one likes."""
    if not stream.isatty():
        lines = Lines(stream)
        yield lines
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveTable(live)


class Lines:
    """Plain lines: what happens is said at once, how far it is at growing intervals."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.now = stream, now
        self.due, self.interval_s = 0.0, FIRST_LINE_S
        self.told = 0
        self.last = ""

    def __call__(self, board: Board) -> None:
        """Write what is new."""
        for note in board.notes[self.told :]:
            self._write(note)
        self.told = len(board.notes)
        if self.now() < self.due or not board.status:
            return
        self.due = self.now() + self.interval_s
        self.interval_s = min(1.5 * self.interval_s, LONGEST_LINE_S)
        if (line := "; ".join([summary(board), *([] if board.running else waiting_lines(board))])) != self.last:
            self._write(line)
            self.last = line

    def _write(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()


class LiveTable:
    """Setups by status, what is running, and how long it will take, redrawn in place."""

    def __init__(self, live: "Live") -> None:
        self.live, self.due, self.told = live, 0.0, 0

    def __call__(self, board: Board) -> None:
        """Redraw, if the last time was long enough ago."""
        for note in board.notes[self.told :]:
            self.live.console.print(note, markup=False, highlight=False)
        self.told = len(board.notes)
        if time.monotonic() >= self.due and board.status:
            began = time.monotonic()
            self.live.update(table(board), refresh=True)
            ended = time.monotonic()
            self.due = ended + max(DRAW_S, DRAW_PAUSE * (ended - began))


def table(board: Board) -> "Table":
    """The live table."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(summary(board)), caption=Text("\n".join(running_lines(board))), caption_justify="left")
    drawn.add_column("setup", overflow="fold")
    counts = board.counts_by_setup()
    shown = [status for status in COLUMNS if any(status in counter for counter in counts)]
    for status in shown:
        drawn.add_column(status, justify="right")
    rows = list(zip(board.plan.labels, counts, strict=True))
    for label, counter in rows[:MOST_ROWS]:
        drawn.add_row(Text(label), *(str(counter.get(status, "")) for status in shown))
    if len(rows) > MOST_ROWS:
        rest = [sum(counter.get(status, 0) for _, counter in rows[MOST_ROWS:]) for status in shown]
        drawn.add_row(counted(len(rows) - MOST_ROWS, "more setup"), *map(str, rest))
    return drawn


def summary(board: Board) -> str:
    """One line: done of all, what else there is, estimated time left."""
    counts = board.counts()
    done = sum(counts.get(status, 0) for status in DONE)
    others = [f"{counts[status]} {status}" for status in ("diverged", "running", "failed", "lost") if counts.get(status)]
    left = board.remaining_s() if done < len(board.status) else None
    runs = counted(len(board.status), "run")
    return ", ".join([f"{done} of {runs} done", *others]) + (f"; about {duration(left)} left" if left is not None else "")


def running_lines(board: Board) -> list[str]:
    """One line for each worker: its run, step and loss, or what it waits for."""
    lines = [_running_line(board, running) for running in board.running.values()]
    return lines + waiting_lines(board)


def waiting_lines(board: Board) -> list[str]:
    """What workers wait for, each reason once."""
    return [f"waiting: {reason}" for reason in sorted(set(board.waiting.values()))]


def _running_line(board: Board, running: Running) -> str:
    steps = board.plan.setups[board.plan.by_id[running.run_id].setup].steps
    loss = running.values.get("train_loss")
    words = [running.slot, board.name_of(running.run_id), f"step {running.step}/{steps}"]
    words += [f"loss {loss:.4g}"] if loss is not None else []
    words += [f"attempt {running.attempt}"] if running.attempt > 1 else []
    return "  ".join(word for word in words if word)


def duration(seconds: float) -> str:
    """In words of one unit: 40 s, 12 min, 3.5 h, 2.1 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
