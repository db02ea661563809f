"""One secret key, and what it does for each caller: thoughts and compacted conversations sealed, thoughts signed.

A key of its own is derived (HKDF-SHA256) for each purpose and each owner of an API key, so that nothing made for one
of them is worth anything to another. Sealing is AES-256-GCM under a random nonce; signing is HMAC-SHA256.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..dialects.sealing import Check, Purpose

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED, SIGNED = b"\x01", b"\x02"
"""First bytes: what follows and in which version of the format."""
NONCE = 12


@dataclass(frozen=True, slots=True)
class Seals:
    """key: any text or bytes that cannot be guessed."""

    key: bytes
    check: Check = Check.LENIENT

    def of(self, owner: str) -> OwnersSeals:
        return OwnersSeals(self.key, owner, self.check)


@dataclass(frozen=True, slots=True)
class OwnersSeals:
    """See `Sealing`."""

    key: bytes
    owner: str
    check: Check

    def seal(self, purpose: Purpose, text: str) -> str:
        nonce = secrets.token_bytes(NONCE)
        hidden = _cipher(self._derived(purpose)).encrypt(nonce, text.encode("utf-8", "surrogatepass"), SEALED)
        return base64.b64encode(SEALED + nonce + hidden).decode()

    def unseal(self, purpose: Purpose, sealed: str) -> str | None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see `_derived`

        data = _decoded(sealed)
        nonce, hidden = data[1 : 1 + NONCE], data[1 + NONCE :]
        if data[:1] != SEALED or len(nonce) < NONCE:
            return None
        try:
            return _cipher(self._derived(purpose)).decrypt(nonce, hidden, SEALED).decode("utf-8", "surrogatepass")
        except InvalidTag:
            return None

    def sign(self, thought: str) -> str:
        return base64.b64encode(SIGNED + self._digest(thought)).decode()

    def has_signed(self, thought: str, signature: str) -> bool:
        return hmac.compare_digest(_decoded(signature), SIGNED + self._digest(thought))

    def _digest(self, thought: str) -> bytes:
        return hmac.digest(self._derived("signature"), thought.encode("utf-8", "surrogatepass"), "sha256")

    def _derived(self, purpose: str) -> bytes:
        # Imported when first needed: most servers seal nothing, and all of them shall start at once.
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        info = f"dragoman 1 {purpose}\n{self.owner}".encode()
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self.key)


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

    return AESGCM(key)


def _decoded(text: str) -> bytes:
    """Nothing for what is no base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
