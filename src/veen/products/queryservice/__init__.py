"""The query service: the whole of the query API over HTTP (001 query §7, §8), for people who hold no keys themselves.

It reads a log with keys of its own, so it is a reading party and no part of a hub. What it says need not be believed:
requests and digests are receipted events, and `veen query verify` computes a result again from the log.

    principals   who may ask, and for what
    history      what the log says of queries: a fold
    service      submit, execute, cancel, deliver; durable and audited
    slots        places for executions, shared fairly
    http         the routes; `openapi` describes them
    serving      the server: TLS and client certificates
    observe      metrics and log lines
"""

from veen.ext import Product

PRODUCT = Product(
    name="queryservice",
    about="Queries over HTTP with results that can be verified.",
    extra="query",
    pages="veen.products.queryservice.page:PAGES",
)
