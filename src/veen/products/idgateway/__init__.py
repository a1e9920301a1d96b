"""The gateway of external logins: an OpenID provider on one side, links in the log on the other (001 ID §10.2).

`provider` talks to the provider, `gateway` decides and writes, `http` is what browsers and applications call.
"""

from veen.ext import Product

PRODUCT = Product(
    name="idgateway",
    about="External logins by OpenID Connect.",
    extra="oidc",
)
