"""`veen bench`: it counts what was verified."""

from veen.cli.shared.output import Exit


def test_submit_counts_verified_messages_and_tells_sealing_apart(talk):
    result = talk.json("bench", "submit", "--count", 30, "--batch", 8, "--size", "1KiB")
    assert (result["messages"], result["batch"], result["body_bytes"], result["verified"]) == (30, 8, 1024, True)
    assert result["messages_per_second"] > 0
    assert result["seal_us_each"] > 0


def test_a_stream_can_be_named_and_holds_the_messages(talk):
    stream = talk.new_stream("bench/named")
    talk.json("bench", "submit", "--stream", stream, "--count", 5, "--size", 3)
    assert [entry["body"] for entry in talk.entries(stream)] == ["\0\0\0"] * 5
    assert talk.json("bench", "submit", "--stream", "bench/unknown", code=Exit.LOCAL)["code"] == "E.LOCAL.STREAM"
    talk.run("bench", "submit", "--size", "huge", code=Exit.USAGE)
