"""`veen recorder`: the group."""

from veen.cli.lazy import LazyGroup

recorder = LazyGroup(
    "recorder",
    help="""The recorder: events of any source in record/* streams, each exactly once, with evidence (SDR0).

    \b
    veen recorder init --producer web=record/app/web
    veen recorder emit record/app/web --identity web --type login --subject alice '{"ip":"10.0.0.7"}'
    """,
    table={
        "agent": ("veen.products.recorder.commands.agent:agent", "Record what sources say, until stopped."),
        "checkpoint": (
            "veen.products.recorder.commands.checkpoint:checkpoint",
            "Bind all streams into one root, now or regularly.",
        ),
        "emit": (
            "veen.products.recorder.commands.emit:emit",
            "Record one event, or the lines of standard input, with receipts.",
        ),
        "init": (
            "veen.products.recorder.commands.init:init",
            "Make the roles, keys and tokens, and write the configuration.",
        ),
        "map": (
            "veen.products.recorder.commands.mapping:map_",
            "Say which stream an event type belongs to; renames and splits.",
        ),
        "replay": (
            "veen.products.recorder.commands.replay:replay",
            "Events of a range or a window of time, with proven edges.",
        ),
        "status": (
            "veen.products.recorder.commands.status:status",
            "The streams, the last checkpoint, the agents and what is due.",
        ),
        "verify": (
            "veen.products.recorder.commands.verify:verify",
            "Check all streams: valid, invalid or missing, per period.",
        ),
    },
)
