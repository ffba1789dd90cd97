"""A receiver of webhooks that owes the relay nothing: standard library only.

    http_receiver.py PORT DIRECTORY

Appends each event that it accepts to DIRECTORY/log, one line of JSON, before it answers 200. DIRECTORY/rules.json says
what it does not accept; it is read anew when it changes:

    {"destinations": [names; any other is 404], "secrets": [whsec_…], "failures": {aggregate id: [status, {header: value}]}}

With DIRECTORY/server.pem it speaks TLS, and with DIRECTORY/clients.pem asks for a certificate that is signed by it.
A request of a bad signature is 401. Each request is also a line "ID STATUS SECONDS" in DIRECTORY/attempts.
"""

import base64
import hashlib
import hmac
import json
import os
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, DIRECTORY = int(sys.argv[1]), sys.argv[2]
LOCK = threading.Lock()
LOG = open(os.path.join(DIRECTORY, "log"), "ab", buffering=0)
ATTEMPTS = open(os.path.join(DIRECTORY, "attempts"), "ab", buffering=0)
RULES_PATH = os.path.join(DIRECTORY, "rules.json")


class Rules:
    read_at = None
    rules = {}

    @classmethod
    def now(cls):
        stamp = os.stat(RULES_PATH)
        stamp = (stamp.st_ino, stamp.st_mtime_ns)
        if stamp != cls.read_at:
            with open(RULES_PATH, encoding="utf-8") as file:
                cls.rules = json.load(file)
            cls.read_at = stamp
        return cls.rules


def is_signed(headers, body, secrets):
    """By the specification of Standard Webhooks: each of the secrets must have signed."""
    message_id, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
    if abs(time.time() - int(timestamp)) > 300:
        return False
    given = headers.get("webhook-signature", "").split(" ")
    content = message_id.encode() + b"." + timestamp.encode() + b"." + body
    for secret in secrets:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        digest = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        if not any(hmac.compare_digest(one, "v1," + digest) for one in given):
            return False
    return True


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_HEAD(self):
        self.answer(405, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        # A header's bytes are UTF-8 where the relay sent them; this library reads them as Latin-1.
        headers = {name.lower(): value.encode("latin-1").decode() for name, value in self.headers.items()}
        with LOCK:
            rules = Rules.now()
            status, more = self.judge(headers, body, rules)
            ATTEMPTS.write(f"{headers['webhook-id']} {status} {time.monotonic()}\n".encode())
            if status == 200:
                # Neither a body nor a type: a tombstone.
                has_body = body or "content-type" in headers
                line = {
                    "position": "200",
                    "key": None,
                    "headers": headers,
                    "body": base64.b64encode(body).decode() if has_body else None,
                }
                LOG.write(json.dumps(line).encode() + b"\n")
        self.answer(status, more)

    @staticmethod
    def judge(headers, body, rules):
        if rules.get("secrets") and not is_signed(headers, body, rules["secrets"]):
            return 401, {}
        if headers.get("outbox-destination") not in rules.get("destinations", []):
            return 404, {}
        return rules.get("failures", {}).get(headers.get("outbox-aggregate-id"), (200, {}))

    def answer(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        print(f"http_receiver: {sys.exc_info()[1]}", file=sys.stderr)


def main():
    server = Server(("127.0.0.1", PORT), Receiver)
    certificate = os.path.join(DIRECTORY, "server.pem")
    clients = os.path.join(DIRECTORY, "clients.pem")
    if os.path.exists(certificate):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        if os.path.exists(clients):
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


main()
