"""The query service: the whole query API over HTTP (001 query §7, §8), for people without keys.

It reads a log with its own keys, so it is a reader and not part of a hub. Its answers can be checked: requests and
digests are receipted events, and `veen query verify` computes a result again from the log.

    principals   the callers and their rights
    history      a fold of the queries in the log
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
