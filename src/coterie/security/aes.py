"""AES in CBC mode, one way only: Java's keystores are opened with it, and Python brings no AES. Pure.

Fit for some kilobytes of certificates, slow for more.
"""

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["cbc_decrypted"]

BLOCK = 16


def doubled(number: int) -> int:
    """Return the number times x in AES's field of 256 elements."""
    return (number << 1) ^ (0x11B if number & 0x80 else 0)


def product(one: int, other: int) -> int:
    """Return the product in AES's field."""
    found = 0
    while other:
        if other & 1:
            found ^= one
        one, other = doubled(one), other >> 1
    return found


def substitution() -> list[int]:
    """Return AES's S-box: the inverse of each element, turned and mixed."""
    box = []
    for number in range(256):
        inverse = next((one for one in range(256) if product(number, one) == 1), 0)
        spread = inverse | inverse << 8
        turned = spread ^ spread >> 4 ^ spread >> 5 ^ spread >> 6 ^ spread >> 7
        box.append((turned ^ 0x63) & 0xFF)
    return box


SBOX = substitution()
INVERSE_SBOX = [SBOX.index(number) for number in range(256)]
UNMIX = [[product(number, factor) for number in range(256)] for factor in (14, 11, 13, 9)]
# Where each byte of a block comes from when its rows are shifted back.
UNSHIFT = [(column - row) % 4 * 4 + row for column in range(4) for row in range(4)]


def round_keys(key: bytes) -> list[bytes]:
    """Return the keys of all rounds, first to last."""
    words = [key[at : at + 4] for at in range(0, len(key), 4)]
    count, constant = len(words), 1
    while len(words) < 4 * (count + 7):
        word = words[-1]
        if len(words) % count == 0:
            word = bytes(SBOX[byte] for byte in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = doubled(constant)
        elif count > 6 and len(words) % count == 4:
            word = bytes(SBOX[byte] for byte in word)
        words.append(xor(words[-count], word))
    return [b"".join(words[at : at + 4]) for at in range(0, len(words), 4)]


def xor(one: bytes, other: bytes) -> bytes:
    """Return two strings of bytes of the same length, each bit the difference."""
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


def unmixed(block: bytes) -> bytes:
    """Return a block with its columns unmixed."""
    return bytes(
        UNMIX[0][block[at + row]]
        ^ UNMIX[1][block[at + (row + 1) % 4]]
        ^ UNMIX[2][block[at + (row + 2) % 4]]
        ^ UNMIX[3][block[at + (row + 3) % 4]]
        for at in range(0, BLOCK, 4)
        for row in range(4)
    )


def block_decrypted(block: bytes, keys: Sequence[bytes]) -> bytes:
    """Return one block, decrypted."""
    block = xor(block, keys[-1])
    for key in reversed(keys[:-1]):
        block = xor(bytes(INVERSE_SBOX[block[at]] for at in UNSHIFT), key)
        if key is not keys[0]:
            block = unmixed(block)
    return block


def cbc_decrypted(sealed: bytes, *, key: bytes, iv: bytes) -> bytes:
    """Return what was encrypted, without its padding; ValueError if the key cannot be the right one."""
    if len(sealed) % BLOCK or not sealed or len(iv) != BLOCK or len(key) not in (16, 24, 32):
        raise ValueError("AES-CBC takes whole blocks")
    keys = round_keys(key)
    blocks = [sealed[at : at + BLOCK] for at in range(0, len(sealed), BLOCK)]
    plain = b"".join(xor(block_decrypted(block, keys), before) for before, block in pairwise([iv, *blocks]))
    padding = plain[-1]
    if not 1 <= padding <= BLOCK or plain[-padding:] != bytes([padding]) * padding:
        raise ValueError("the padding is none")
    return plain[:-padding]
