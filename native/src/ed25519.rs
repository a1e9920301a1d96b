//! Ed25519 with the one acceptance rule of VEEN (`veen.core.ed25519` states it; libsodium 1.0.20 implements it).
//!
//! Arithmetic is curve25519-dalek's; this file only spells out which signatures count:
//!
//! - S < L; A is canonical (y < p) and on the curve; neither A nor R is of small order, in any encoding;
//! - S*B - h*A, encoded, is byte for byte R, with h = SHA-512(R || A || M) mod L: the cofactorless equation.
//!
//! One signature at a time: a batch equation accepts or refuses some signatures by chance.

use std::sync::LazyLock;

use curve25519_dalek::{
    constants::{ED25519_BASEPOINT_TABLE, EIGHT_TORSION},
    edwards::{CompressedEdwardsY, EdwardsPoint},
    scalar::{Scalar, clamp_integer},
};
use sha2::{Digest, Sha512};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// p = 2^255 - 19, little-endian.
const P: [u8; 32] = [
    0xed, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f,
];

/// Whether the y coordinate of an encoded point is below p; the sign bit does not count.
fn is_canonical(encoded: &[u8; 32]) -> bool {
    let mut y = *encoded;
    y[31] &= 0x7f;
    for i in (0..32).rev() {
        if y[i] != P[i] {
            return y[i] < P[i];
        }
    }
    false
}

/// Whether an encoded point is one of the eight of small order.
fn is_small_order(encoded: &[u8; 32]) -> bool {
    static TORSION: LazyLock<[[u8; 32]; 8]> = LazyLock::new(|| EIGHT_TORSION.map(|point| point.compress().0));
    TORSION.contains(encoded)
}

/// -A for a public key that may count: canonical, on the curve, not of small order.
fn negated(public: &[u8; 32]) -> Option<EdwardsPoint> {
    if !is_canonical(public) || is_small_order(public) {
        return None;
    }
    // The encodings that are left are canonical but for x = 0 with the sign bit, and those points are of small order.
    let point = CompressedEdwardsY(*public).decompress()?;
    (!point.is_small_order()).then(|| -point)
}

/// One signature to verify.
pub struct Claim<'a> {
    pub public: &'a [u8; 32],
    pub message: &'a [u8],
    pub signature: &'a [u8; 64],
}

/// Public keys that were used lately, decompressed. Direct-mapped and of a fixed size: whoever makes up keys can only
/// evict others, which costs them a decompression.
pub struct KeyCache {
    slots: Vec<Option<([u8; 32], EdwardsPoint)>>,
}

const SLOTS: usize = 1024; // about 200 KB

impl Default for KeyCache {
    fn default() -> Self {
        Self { slots: vec![None; SLOTS] }
    }
}

impl KeyCache {
    fn negated(&mut self, public: &[u8; 32]) -> Option<EdwardsPoint> {
        let slot = usize::from(u16::from_le_bytes([public[0], public[1]])) % SLOTS;
        if let Some((key, point)) = &self.slots[slot]
            && key == public
        {
            return Some(*point);
        }
        let point = negated(public)?;
        self.slots[slot] = Some((*public, point));
        Some(point)
    }
}

/// Verdicts on claims, each by itself: only the final inversions of the encodings are shared.
pub fn verify_all(claims: &[Claim<'_>], keys: &mut KeyCache) -> Vec<bool> {
    let mut verdicts = vec![false; claims.len()];
    let (mut places, mut points) = (Vec::with_capacity(claims.len()), Vec::with_capacity(claims.len()));
    for (place, claim) in claims.iter().enumerate() {
        let (r, s) = halves(claim.signature);
        if let Some(s) = Option::<Scalar>::from(Scalar::from_canonical_bytes(s))
            && let Some(minus_a) = keys.negated(claim.public)
        {
            let h = challenge(&r, claim.public, claim.message);
            places.push(place);
            points.push(EdwardsPoint::vartime_double_scalar_mul_basepoint(&h, &minus_a, &s));
        }
    }
    for (place, expected) in places.into_iter().zip(EdwardsPoint::compress_batch_alloc(&points)) {
        // An R of small order, in whatever encoding, is refused; a non-canonical one equals no encoding of ours.
        verdicts[place] = expected.0 == claims[place].signature[..32] && !is_small_order(&expected.0);
    }
    verdicts
}

/// Whether `signature` is good for `message` under `public`.
pub fn verify(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    let (r, s) = halves(signature);
    let Some(s) = Option::<Scalar>::from(Scalar::from_canonical_bytes(s)) else {
        return false;
    };
    let Some(minus_a) = negated(public) else {
        return false;
    };
    let h = challenge(&r, public, message);
    let expected = EdwardsPoint::vartime_double_scalar_mul_basepoint(&h, &minus_a, &s).compress().0;
    expected == r && !is_small_order(&expected)
}

fn halves(signature: &[u8; 64]) -> ([u8; 32], [u8; 32]) {
    let (mut r, mut s) = ([0; 32], [0; 32]);
    r.copy_from_slice(&signature[..32]);
    s.copy_from_slice(&signature[32..]);
    (r, s)
}

fn challenge(r: &[u8; 32], public: &[u8; 32], message: &[u8]) -> Scalar {
    let hash = Sha512::new().chain_update(r).chain_update(public).chain_update(message).finalize();
    Scalar::from_bytes_mod_order_wide(&hash.into())
}

/// A secret key, expanded once (RFC 8032 §5.1.6). Signing takes the same time for every key and message of a length.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct SigningKey {
    scalar: Scalar,
    prefix: [u8; 32],
    #[zeroize(skip)]
    pub public: [u8; 32],
}

impl SigningKey {
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let hash = Zeroizing::new(<[u8; 64]>::from(Sha512::digest(seed)));
        let mut half = Zeroizing::new([0; 32]);
        half.copy_from_slice(&hash[..32]);
        let scalar = Scalar::from_bytes_mod_order(clamp_integer(*half));
        let mut prefix = [0; 32];
        prefix.copy_from_slice(&hash[32..]);
        let public = (&scalar * ED25519_BASEPOINT_TABLE).compress().0;
        Self { scalar, prefix, public }
    }

    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let hash = Sha512::new().chain_update(self.prefix).chain_update(message).finalize();
        let nonce = Zeroizing::new(Scalar::from_bytes_mod_order_wide(&hash.into()));
        let r = (&*nonce * ED25519_BASEPOINT_TABLE).compress().0;
        let s = challenge(&r, &self.public, message) * self.scalar + *nonce;
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&r);
        signature[32..].copy_from_slice(s.as_bytes());
        signature
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_verifies_and_a_changed_bit_does_not() {
        let key = SigningKey::from_seed(&[7; 32]);
        let signature = key.sign(b"message");
        assert!(verify(&key.public, b"message", &signature));
        for bit in 0..512 {
            let mut other = signature;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&key.public, b"message", &other), "bit {bit}");
        }
        assert!(!verify(&key.public, b"another", &signature));
    }

    #[test]
    fn many_claims_get_the_verdicts_of_each_alone() {
        let mut keys = KeyCache::default();
        let signers: Vec<_> = (0..5).map(|number| SigningKey::from_seed(&[number; 32])).collect();
        for round in 0..20_u8 {
            let mut signed: Vec<_> =
                signers.iter().map(|key| (key.public, [round; 9], key.sign(&[round; 9]))).collect();
            signed[usize::from(round % 5)].2[usize::from(round)] ^= 1;
            signed[usize::from(round % 3)].0 = if round % 2 == 0 { [0xff; 32] } else { signers[4].public };
            let claims: Vec<_> =
                signed.iter().map(|(public, message, signature)| Claim { public, message, signature }).collect();
            let alone: Vec<_> =
                claims.iter().map(|claim| verify(claim.public, claim.message, claim.signature)).collect();
            assert_eq!(verify_all(&claims, &mut keys), alone);
            assert!(alone.contains(&true) && alone.contains(&false));
        }
    }

    #[test]
    fn the_bound_of_canonical_encodings_is_p() {
        let mut y = P;
        assert!(!is_canonical(&y));
        y[0] -= 1;
        assert!(is_canonical(&y));
        y[31] |= 0x80;
        assert!(is_canonical(&y), "the sign bit does not count");
        assert!(!is_canonical(&[0xff; 32]));
        assert!(is_canonical(&[0; 32]));
    }

    #[test]
    fn keys_and_signatures_of_small_order_are_refused() {
        let key = SigningKey::from_seed(&[1; 32]);
        let signature = key.sign(b"m");
        for point in EIGHT_TORSION {
            let encoded = point.compress().0;
            assert!(!verify(&encoded, b"m", &signature));
            let mut forged = [0; 64];
            forged[..32].copy_from_slice(&encoded); // S = 0: holds for A of small order without the check
            assert!(!verify(&encoded, b"m", &forged));
            assert!(!verify(&key.public, b"m", &forged));
        }
    }
}
