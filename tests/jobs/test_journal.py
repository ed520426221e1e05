"""Journals are tailed: each line once, never half a line."""

from pathlib import Path

from accum_sweeps.jobs.journal import Journal, JournalReader


def test_each_line_is_read_once_and_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "workers" / "w.jsonl"
    reader = JournalReader(path)
    assert reader.read() == []
    journal = Journal(path)
    journal.write("claimed", run="r", attempt=1)
    with path.open("ab") as file:
        file.write(b'{"event":"en')
    events = reader.read()
    assert [(event["event"], event["run"]) for event in events] == [("claimed", "r")]
    assert reader.read() == []
    with path.open("ab") as file:
        file.write(b'ded"}\nno event\n{"event":"left"}\n')
    assert [event["event"] for event in reader.read()] == ["ended", "left"]
    journal.close()
