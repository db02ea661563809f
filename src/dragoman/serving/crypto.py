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

from ..dialects.sealing import Purpose, VerificationMode

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED_PREFIX, SIGNED_PREFIX = b"\x01", b"\x02"
"""First bytes: what follows and in which version of the format."""
NONCE_SIZE = 12


@dataclass(frozen=True, slots=True)
class Sealer:
    """key: any text or bytes that cannot be guessed."""

    key: bytes
    check: VerificationMode = VerificationMode.LENIENT

    def for_owner(self, owner: str) -> OwnerSealer:
        return OwnerSealer(self.key, owner, self.check)


@dataclass(frozen=True, slots=True)
class OwnerSealer:
    """See `Sealing`."""

    key: bytes
    owner: str
    check: VerificationMode

    def seal(self, purpose: Purpose, text: str) -> str:
        nonce = secrets.token_bytes(NONCE_SIZE)
        ciphertext = _build_cipher(self._derive_key(purpose)).encrypt(
            nonce, text.encode("utf-8", "surrogatepass"), SEALED_PREFIX
        )
        return base64.b64encode(SEALED_PREFIX + nonce + ciphertext).decode()

    def unseal(self, purpose: Purpose, sealed: str) -> str | None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see `_derived`

        data = _decode_base64(sealed)
        nonce, ciphertext = data[1 : 1 + NONCE_SIZE], data[1 + NONCE_SIZE :]
        if data[:1] != SEALED_PREFIX or len(nonce) < NONCE_SIZE:
            return None
        try:
            return (
                _build_cipher(self._derive_key(purpose))
                .decrypt(nonce, ciphertext, SEALED_PREFIX)
                .decode("utf-8", "surrogatepass")
            )
        except InvalidTag:
            return None

    def sign(self, thought: str) -> str:
        return base64.b64encode(SIGNED_PREFIX + self._compute_signature(thought)).decode()

    def verify_signature(self, thought: str, signature: str) -> bool:
        return hmac.compare_digest(_decode_base64(signature), SIGNED_PREFIX + self._compute_signature(thought))

    def _compute_signature(self, thought: str) -> bytes:
        return hmac.digest(self._derive_key("signature"), thought.encode("utf-8", "surrogatepass"), "sha256")

    def _derive_key(self, purpose: str) -> bytes:
        # Imported when first needed: most servers seal nothing, and all of them shall start at once.
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        info = f"dragoman 1 {purpose}\n{self.owner}".encode()
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self.key)


def _build_cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

    return AESGCM(key)


def _decode_base64(text: str) -> bytes:
    """Nothing for what is no base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
