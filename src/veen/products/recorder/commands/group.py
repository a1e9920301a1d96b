"""`veen recorder`: the group."""

from veen.cli.lazy import LazyGroup

recorder = LazyGroup(
    "recorder",
    help="""Record events of any source in record/* streams, each exactly once, with evidence (SDR0).

    \b
    veen recorder init --producer web=record/app/web
    veen recorder emit record/app/web --identity web --type login --subject alice '{"ip":"10.0.0.7"}'
    """,
    table={
        "agent": ("veen.products.recorder.commands.agent:agent", "Record events of sources until stopped."),
        "checkpoint": (
            "veen.products.recorder.commands.writing:checkpoint",
            "Write one root over all streams, now or regularly.",
        ),
        "emit": (
            "veen.products.recorder.commands.writing:emit",
            "Record one event, or the lines of standard input, with receipts.",
        ),
        "init": (
            "veen.products.recorder.commands.init:init",
            "Create roles, keys and tokens; write the configuration.",
        ),
        "map": (
            "veen.products.recorder.commands.writing:map_",
            "Assign event types to streams; rename or split streams.",
        ),
        "replay": (
            "veen.products.recorder.commands.reading:replay",
            "Show the events of a range or time window, with proven edges.",
        ),
        "status": (
            "veen.products.recorder.commands.reading:status",
            "Show streams, the last checkpoint, agents and due work.",
        ),
        "verify": (
            "veen.products.recorder.commands.reading:verify",
            "Verify all streams, period by period.",
        ),
    },
)
