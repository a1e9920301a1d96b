"""A timestamp authority: openssl's `ts` behind a small HTTP server, and servers that answer otherwise."""

import contextlib
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONFIG = """
[req]
distinguished_name = dn
prompt = no
[dn]
CN = {name}
[root]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[stamp]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[tsa]
default_tsa = one
[one]
serial = {directory}/serial
signer_cert = {directory}/tsa.pem
signer_key = {directory}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ess_cert_id_chain = no
ess_cert_id_alg = sha256
"""


def openssl(*args, **more):
    return subprocess.run(["openssl", *map(str, args)], capture_output=True, check=True, timeout=60, **more)


class Authority:
    """Keys and certificates of a timestamp authority in a directory; `bundle` is what verifiers trust."""

    def __init__(self, directory, name="Test"):
        self.directory = directory
        directory.mkdir(parents=True)
        self.config = directory / "openssl.cnf"
        self.config.write_text(CONFIG.format(directory=directory, name=f"{name} root"))
        (directory / "serial").write_text("01\n")
        days = ("-days", "36500")
        root, stamp = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"), self.directory / "tsa.csr"
        keys = {name: directory / f"{name}.key" for name in ("root", "tsa")}
        openssl("req", "-x509", *root, "-config", self.config, "-extensions", "root", *days,
                "-keyout", keys["root"], "-out", directory / "root.pem")  # fmt: skip
        openssl("req", "-new", *root, "-config", self.config, "-subj", f"/CN={name} authority",
                "-keyout", keys["tsa"], "-out", stamp)  # fmt: skip
        openssl("x509", "-req", "-in", stamp, "-CA", directory / "root.pem", "-CAkey", keys["root"], *days,
                "-CAcreateserial", "-extfile", self.config, "-extensions", "stamp",
                "-out", directory / "tsa.pem")  # fmt: skip
        self.bundle = directory / "bundle.pem"
        self.bundle.write_bytes((directory / "root.pem").read_bytes() + (directory / "tsa.pem").read_bytes())

    def answer(self, query):
        path = self.directory / f"query-{threading.get_ident()}"
        path.write_bytes(query)
        done = openssl("ts", "-reply", "-config", self.config, "-section", "one", "-queryfile", path)
        return done.stdout


@contextlib.contextmanager
def serving(answer):
    """The URL of a server that answers each query with `answer(query)`: bytes, (status, bytes), or None for silence."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            reply = answer(self.rfile.read(int(self.headers["Content-Length"])))
            if reply is None:
                stopped.wait(60)
                return
            status, data = reply if isinstance(reply, tuple) else (200, reply)
            self.send_response(status)
            self.send_header("Content-Type", "application/timestamp-reply")
            self.send_header("Content-Length", str(len(data)))
            if status in (301, 302, 307):
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    stopped = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
