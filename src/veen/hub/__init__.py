"""The hub: it admits, orders, signs and answers, and cannot read (spec §8).

Admission is a pure function of log, control journal, limits and hub_ts; replaying a log through it accepts every entry
again. All state belongs to one thread, which is the order. A hub sees neither client nor overlays: bodies mean nothing
to it.

It imports `veen.core`, `veen.io`, `veen.storage` and `veen.verify`. Start with `admission.decide` (may this message
enter?), then `sequencer.sequencer` (verified in parallel, ordered once, durable before answered). `api` holds the
operations, `http` and `transports` carry them, `process` is configuration, start, reload and housekeeping.
"""
