"""A real OpenID provider on loopback: Django OAuth Toolkit with a database of its own, in a process of its own.

    python -m tests.products.idgateway.provider DIRECTORY REDIRECT_URI

prints its issuer, then serves until it is ended. The people of DIRECTORY are alice and bob, with the password PASSWORD.
"""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import httpx2

PASSWORD = "correct horse battery"
CLIENT_ID, CLIENT_SECRET = "veen-gateway", "a client secret of this test"


class ProviderProcess:
    """The provider, and what people do at it."""

    def __init__(self, directory: Path, redirect_uri: str) -> None:
        self.log = (directory / "provider.log").open("wb")
        command = [sys.executable, "-m", __spec__.name, str(directory), redirect_uri]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert self.process.stdout is not None
        self.issuer = self.process.stdout.readline().strip()
        assert self.issuer, (directory / "provider.log").read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()

    def log_in(self, url: str, name: str) -> str:
        """Log somebody in with a browser of her own; return where the provider sends the browser to."""
        with httpx2.Client(follow_redirects=False) as browser:
            answer = browser.get(url)
            while True:
                if answer.status_code in (301, 302, 303):
                    target = urljoin(str(answer.url), answer.headers["location"])
                    if not target.startswith(self.issuer.removesuffix("/o")):
                        return target
                    answer = browser.get(target)
                    continue
                assert answer.status_code == 200, answer.text
                fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', answer.text))
                form = {key: unescape(value) for key, value in fields.items()}
                form |= {"username": name, "password": PASSWORD}
                answer = browser.post(str(answer.url), data=form)

    def end_all_sessions(self) -> None:
        """Delete every access token, as an administrator does."""
        base = self.issuer.removesuffix("/o")
        assert httpx2.post(f"{base}/end-all").status_code == 204


def serve(directory: Path, redirect_uri: str) -> None:
    import django
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from django.conf import settings

    pem = rsa.generate_private_key(65_537, 2_048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    settings.configure(
        SECRET_KEY="x" * 50,
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF="tests.products.idgateway.provider_urls",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(directory / "provider.sqlite3")}},
        INSTALLED_APPS=[
            "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "oauth2_provider",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {
                    "loaders": [
                        ("django.template.loaders.locmem.Loader", {
                            "registration/login.html":
                                '<form method="post">{% csrf_token %}{{ form }}'
                                '<input type="hidden" name="next" value="{{ next }}"></form>',
                        }),
                    ],
                    "context_processors": ["django.template.context_processors.request"],
                },
            }
        ],
        LOGIN_URL="/login/",
        USE_TZ=True,
        LOGGING={"version": 1, "handlers": {"err": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["err"]}},
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_RSA_PRIVATE_KEY": pem.decode(),
            "PKCE_REQUIRED": True,
            "SCOPES": {"openid": "who you are", "introspection": "ask about tokens"},
        },
    )  # fmt: skip
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import User
    from django.core.wsgi import get_wsgi_application
    from oauth2_provider.models import Application
    from werkzeug.serving import make_server

    owner = User.objects.create_user("alice", password=PASSWORD)
    User.objects.create_user("bob", password=PASSWORD)
    Application.objects.create(
        name="gateway", user=owner, client_id=CLIENT_ID, client_secret=CLIENT_SECRET,
        client_type=Application.CLIENT_CONFIDENTIAL, authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        redirect_uris=redirect_uri, algorithm=Application.RS256_ALGORITHM, skip_authorization=True,
    )  # fmt: skip
    server = make_server("127.0.0.1", 0, get_wsgi_application(), threaded=True)
    print(f"http://127.0.0.1:{server.server_port}/o", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
