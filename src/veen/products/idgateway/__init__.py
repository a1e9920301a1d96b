"""The gateway of external logins: turns accounts of an OpenID provider into links in the log (001 ID §10.2).

`gateway` talks to the provider, decides and writes; `http` serves browsers and applications.
"""

from veen.ext import Product

PRODUCT = Product(
    name="idgateway",
    about="External logins by OpenID Connect.",
    extra="oidc",
)
