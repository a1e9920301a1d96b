"""The console: a log in a browser, served from the user's own machine (docs/console.md).

`app` has the routes, `guard` admits requests, `views` turns verified entries into pages, `writes` verifies
uploaded files and carries out forms. What it shows was read by `veen.client`, which verifies against the pinned key.
"""

from veen.ext import Product

PRODUCT = Product(
    name="console",
    about="Logs in a browser, served from the machine of the user.",
    extra="console",
    commands={"console": "veen.products.console.commands.group:console"},
)
