"""Encryption of data that clients hold: reasoning, compacted conversations.

Each purpose and each owner of an API key has its own key, derived by HKDF-SHA256, so
that data of one is invalid for another. Encryption is AES-256-GCM with a random nonce;
signatures are HMAC-SHA256.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from typing import TYPE_CHECKING

from msgspec import Struct

from ..dialects.sealing import Purpose, VerificationMode

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED_PREFIX = b"\x01"
SIGNED_PREFIX = b"\x02"
"""First byte: the kind of data and the version of its format."""
NONCE_SIZE = 12


class Sealer(Struct, frozen=True):
    """Creates an `OwnerSealer` for each owner.

    key: secret bytes from which all keys are derived.
    check: how strictly signatures of reasoning are verified.
    """

    key: bytes
    check: VerificationMode = VerificationMode.LENIENT

    def for_owner(self, owner: str) -> OwnerSealer:
        return OwnerSealer(self.key, owner, self.check)


class OwnerSealer(Struct, frozen=True):
    """Encrypts and signs for one owner. Implements `Sealing`."""

    key: bytes
    owner: str
    check: VerificationMode

    def seal(self, purpose: Purpose, text: str) -> str:
        # 96 random bits, as NIST SP 800-38D recommends; a key belongs to one owner, so
        # collisions are negligible.
        nonce = secrets.token_bytes(NONCE_SIZE)
        ciphertext = _build_cipher(self._derive_key(purpose)).encrypt(
            nonce, text.encode("utf-8", "surrogatepass"), SEALED_PREFIX
        )
        return base64.b64encode(SEALED_PREFIX + nonce + ciphertext).decode()

    def unseal(self, purpose: Purpose, sealed: str) -> str | None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see `_derive_key`

        data = _decode_base64(sealed)
        nonce = data[1 : 1 + NONCE_SIZE]
        ciphertext = data[1 + NONCE_SIZE :]
        # Clients also send data that other servers, or later versions of this one, have
        # encrypted.
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
        return hmac.compare_digest(
            _decode_base64(signature), SIGNED_PREFIX + self._compute_signature(thought)
        )

    def _compute_signature(self, thought: str) -> bytes:
        return hmac.digest(
            self._derive_key("signature"), thought.encode("utf-8", "surrogatepass"), "sha256"
        )

    def _derive_key(self, purpose: str) -> bytes:
        # Imported lazily, to keep startup fast: most servers encrypt nothing.
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        # A line break separates the two parts unambiguously: purposes contain none.
        info = f"dragoman 1 {purpose}\n{self.owner}".encode()
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self.key)


def _build_cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

    return AESGCM(key)


def _decode_base64(text: str) -> bytes:
    """Decode base64; b"" if it is invalid."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
