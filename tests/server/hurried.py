"""A server in a hurry: deadlines short enough for a test. Run as a module, it serves memory; given
a number, within TLS whose handshake may take so many seconds; given `tokens`, only to callers with
a token, and a connection of others is idle for a second at most."""

import sys

from msgspec.structs import replace

from tenure.coordinator.service import Coordinator
from tenure.core.tokens import TOKEN_ENTROPY_BYTES, NewToken, mint
from tenure.core.vocabulary import Role
from tenure.server.lifetime import ServeOptions, serve
from tenure.server.limits import ServerSettings
from tenure.stores.sqlite.memory import MemoryStore
from tests.server.processes import CERTIFICATE, KEY

TOKEN_ENTROPY = bytes([7]) * TOKEN_ENTROPY_BYTES
SETTINGS = ServerSettings(
    head_within_s=0.5,
    body_within_s=0.5,
    idle_s=1,
    max_connections=20,
    max_connections_per_address=15,
    max_header_bytes=4096,
)


def announce(address: str) -> None:
    """As `tenure serve` does."""
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    coordinator = Coordinator(MemoryStore())
    options = ServeOptions(port=0, authenticated=False, settings=SETTINGS)
    if sys.argv[1:] == ["tokens"]:
        token_id, digest, _ = mint(TOKEN_ENTROPY)
        new = NewToken(id=token_id, secret_sha256=digest, name="app", role=Role.CLIENT)
        coordinator.store.tokens.create(new)
        patient = replace(SETTINGS, idle_s=600, unknown_idle_s=1)
        options = replace(options, authenticated=True, settings=patient)
    elif len(sys.argv) > 1:
        options = replace(
            options,
            tls_certificate=CERTIFICATE,
            tls_key=KEY,
            settings=replace(SETTINGS, handshake_within_s=float(sys.argv[1])),
        )
    serve(coordinator, options, announce=announce)
    coordinator.close()
