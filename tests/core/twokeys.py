"""A ciphertext that opens under two keys: ChaCha20-Poly1305 does not commit to a key (D-170).

Poly1305 is linear in the blocks of its message. With two blocks left open, and the one-time keys of both readers known
to the sender, a tag that is right under both is the solution of two equations.
"""

import struct
from itertools import count

from veen.core import cbor
from veen.core.crypto import hpke
from veen.core.hashing import H, u32be
from veen.core.objects.payload_hdr import PayloadHdr

P = (1 << 130) - 5


def _quarter(x, a, b, c, d):
    for first, other, third, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x[first] = (x[first] + x[other]) & 0xFFFFFFFF
        mixed = x[third] ^ x[first]
        x[third] = ((mixed << turn) | (mixed >> (32 - turn))) & 0xFFFFFFFF


def _rounds(state):
    x = list(state)
    for _ in range(10):
        for lane in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
            _quarter(x, *lane)
        for lane in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            _quarter(x, *lane)
    return x


def _words(key, tail):
    return [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *struct.unpack("<8I", key), *struct.unpack("<4I", tail)]


def stream(key, nonce, size):
    """The key of Poly1305 (block 0) and the key stream behind it (RFC 8439)."""
    data = b""
    for block in range(1 + -(-size // 64)):
        state = _words(key, struct.pack("<I", block) + nonce)
        data += struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(_rounds(state), state, strict=True)))
    return data[:32], data[64 : 64 + size]


def hchacha(key, nonce):
    x = _rounds(_words(key, nonce))
    return struct.pack("<8I", *x[:4], *x[12:])


def _padded(data):
    return data + bytes(-len(data) % 16)


def _clamped(key):
    return int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF, int.from_bytes(key[16:], "little")


def for_both(keys, aad, ciphertext, free):
    """The ciphertext with its blocks `free` (two offsets) changed, and one tag that holds under both Poly1305 keys."""
    (r1, s1), (r2, s2) = map(_clamped, keys)
    data = bytearray(ciphertext)
    for offset in free:
        data[offset : offset + 16] = bytes(16)
    message = _padded(aad) + _padded(bytes(data)) + struct.pack("<QQ", len(aad), len(data))
    blocks = [int.from_bytes(message[at : at + 16], "little") + (1 << 128) for at in range(0, len(message), 16)]
    places = [(len(_padded(aad)) + offset) // 16 for offset in free]
    for place in places:
        blocks[place] = 0
    powers = [[pow(r, len(blocks) - place, P) for place in places] for r in (r1, r2)]
    rest = [sum(block * pow(r, len(blocks) - at, P) for at, block in enumerate(blocks)) % P for r in (r1, r2)]
    (a, b), (c, d) = powers
    inverse = pow(a * d - b * c, -1, P)
    for seed in count():
        tag = int.from_bytes(H(b"tag %d" % seed)[:16], "little")
        v1, v2 = ((tag - s) % (1 << 128) - part for s, part in ((s1, rest[0]), (s2, rest[1])))
        x, y = (v1 * d - b * v2) * inverse % P, (a * v2 - c * v1) * inverse % P
        if x >> 128 == 1 and y >> 128 == 1:  # as blocks of 16 bytes are
            for offset, value in zip(free, (x, y), strict=True):
                data[offset : offset + 16] = (value - (1 << 128)).to_bytes(16, "little")
            return bytes(data), tag.to_bytes(16, "little")
    raise AssertionError


def _xor(a, b):
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def seal_for_both(first_pk, second_pk, binding, *, schema, body):
    """A ciphertext that the first reader opens to `schema` and `body` + 32 bytes, and that the second opens, too."""
    ikm = H(b"ikm")
    _, enc = hpke.derive_key_pair(ikm)
    contexts = [hpke.setup_sender(pk, ikm)[1] for pk in (first_pk, second_pk)]
    aad = binding.aad()
    header = cbor.encode(PayloadHdr(schema=schema, parent_id=bytes(32), att_root=bytes(32)).to_tree())
    streams = [stream(context._key, context._nonce(), len(header)) for context in contexts]
    zeros = [at for at in range(0, len(header) - 15, 16) if not any(header[at : at + 16])]
    free = (zeros[0], zeros[-1])
    sealed_header, tag = for_both([key for key, _ in streams], aad, _xor(header, streams[0][1]), free)
    text = body.ljust(-(-len(body) // 16) * 16) + bytes(32)
    nonce = binding.nonce()
    keys = [hchacha(context.export(b"veen/body-k", 32), nonce[:16]) for context in contexts]
    streams = [stream(key, bytes(4) + nonce[16:], len(text)) for key in keys]
    sealed_body, body_tag = for_both(
        [key for key, _ in streams], aad, _xor(text, streams[0][1]), (len(text) - 32, len(text) - 16)
    )
    sealed_header, sealed_body = sealed_header + tag, sealed_body + body_tag
    return enc + u32be(len(sealed_header)) + u32be(len(sealed_body)) + sealed_header + sealed_body
