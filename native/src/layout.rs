//! MSG, RECEIPT and the frame of an entry by their fixed layout (spec §4.1, §4.3, §4.8.1).
//!
//! Following the layout is the canonical check, as in `veen.core.msg`. Whatever departs from it anywhere is not judged
//! here: `Fault::Other` sends it to the Python reader, which names the fault. So this file decides only what is fine.

use sha2::{Digest, Sha256};

use crate::ed25519::{Claim, KeyCache, SigningKey, verify_all};

pub(crate) const BSTR32: [u8; 2] = [0x58, 0x20];
pub(crate) const BSTR64: [u8; 2] = [0x58, 0x40];
const INTEGERS: usize = 4 + 32 + 2 + 32 + 2 + 32; // where client_seq begins
const PREFIX: usize = 40; // of a ciphertext: enc, hdr_len, body_len
pub(crate) const SIG_TAG: &[u8] = b"veen/sig\0";
pub(crate) const LEAF_TAG: &[u8] = b"veen/leaf\0";
pub(crate) const ENTRY_TAG: &[u8] = b"veen/entry"; // H, not Ht: no zero byte (D-68)

pub(crate) type Hash = [u8; 32];

/// The parts of a MSG that ordering needs, and its leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Msg {
    pub profile_id: [u8; 32],
    pub label: [u8; 32],
    pub client_id: [u8; 32],
    pub client_seq: u64,
    pub prev_ack: u64,
    pub auth_ref: Option<[u8; 32]>,
    pub leaf_hash: [u8; 32],
}

/// Why a message does not pass here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It departs from the layout, a limit or a hash: the Python reader looks again and says how.
    Other,
    /// All is well but the signature.
    Signature,
}

/// What a hub accepts: the sizes of its limit registry and its profiles.
#[derive(Clone, Debug)]
pub struct Rules {
    pub profiles: Vec<[u8; 32]>,
    pub max_msg_bytes: usize,
    pub max_hdr_bytes: usize,
    pub max_body_bytes: usize,
}

/// A cursor over bytes; None at the first that does not fit.
pub(crate) struct Reader<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) pos: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.pos.checked_add(count)?;
        let part = self.data.get(self.pos..end)?;
        self.pos = end;
        Some(part)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn expect(&mut self, expected: &[u8]) -> Option<()> {
        (self.bytes(expected.len())? == expected).then_some(())
    }

    /// An integer of a major type, in its shortest form.
    pub(crate) fn uint(&mut self, major: u8) -> Option<u64> {
        let head = *self.bytes(1)?.first()? ^ major;
        let (value, least) = match head {
            0..=23 => return Some(u64::from(head)),
            24 => (u64::from(self.array::<1>()?[0]), 24),
            25 => (u64::from(u16::from_be_bytes(self.array()?)), 0x100),
            26 => (u64::from(u32::from_be_bytes(self.array()?)), 0x1_0000),
            27 => (u64::from_be_bytes(self.array()?), 0x1_0000_0000),
            _ => return None,
        };
        (value >= least).then_some(value)
    }
}

pub(crate) struct Parsed<'a> {
    pub(crate) profile_id: [u8; 32],
    pub(crate) label: [u8; 32],
    pub(crate) client_id: [u8; 32],
    pub(crate) client_seq: u64,
    pub(crate) prev_ack: u64,
    pub(crate) auth_ref: Option<[u8; 32]>,
    pub(crate) ct_hash: [u8; 32],
    pub(crate) ciphertext: &'a [u8],
    pub(crate) sig: [u8; 64],
}

/// Where the MSG that begins at `start` ends, if it has the outline of one and is whole.
pub fn end_of(data: &[u8], start: usize) -> Option<usize> {
    let mut reader = Reader { data, pos: start };
    reader.expect(&[0x8a, 0x01, 0x58, 0x20])?;
    reader.bytes(32)?;
    for _ in 0..2 {
        reader.expect(&BSTR32)?;
        reader.bytes(32)?;
    }
    reader.uint(0)?;
    reader.uint(0)?;
    if reader.data.get(reader.pos) == Some(&0xf6) {
        reader.pos += 1;
    } else {
        reader.expect(&BSTR32)?;
        reader.bytes(32)?;
    }
    reader.expect(&BSTR32)?;
    reader.bytes(32)?;
    let length = usize::try_from(reader.uint(0x40)?).ok()?;
    reader.bytes(length)?;
    reader.expect(&BSTR64)?;
    reader.bytes(64)?;
    Some(reader.pos)
}

pub(crate) fn parse(raw: &[u8]) -> Option<Parsed<'_>> {
    let mut reader = Reader { data: raw, pos: 0 };
    reader.expect(&[0x8a, 0x01, 0x58, 0x20])?;
    let profile_id = reader.array()?;
    reader.expect(&BSTR32)?;
    let label = reader.array()?;
    reader.expect(&BSTR32)?;
    let client_id = reader.array()?;
    debug_assert_eq!(reader.pos, INTEGERS);
    let client_seq = reader.uint(0)?;
    let prev_ack = reader.uint(0)?;
    let auth_ref = if reader.data.get(reader.pos) == Some(&0xf6) {
        reader.pos += 1;
        None
    } else {
        reader.expect(&BSTR32)?;
        Some(reader.array()?)
    };
    reader.expect(&BSTR32)?;
    let ct_hash = reader.array()?;
    let length = usize::try_from(reader.uint(0x40)?).ok()?;
    let ciphertext = reader.bytes(length)?;
    reader.expect(&BSTR64)?;
    let sig = reader.array()?;
    if reader.pos != raw.len() {
        return None;
    }
    Some(Parsed { profile_id, label, client_id, client_seq, prev_ack, auth_ref, ct_hash, ciphertext, sig })
}

/// The padding of a ciphertext that keeps its own lengths and the limits.
fn padding_of<'a>(ciphertext: &'a [u8], rules: &Rules) -> Option<&'a [u8]> {
    let lengths = |at: usize| -> Option<usize> {
        let part: [u8; 4] = ciphertext.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_be_bytes(part)).ok()
    };
    let (hdr_len, body_len) = (lengths(32)?, lengths(36)?);
    if hdr_len > rules.max_hdr_bytes || body_len > rules.max_body_bytes {
        return None;
    }
    ciphertext.get(PREFIX.checked_add(hdr_len)?.checked_add(body_len)?..)
}

/// A message and its padding, if all is well that can be told without reading every byte.
fn outline<'a>(raw: &'a [u8], rules: &Rules) -> Option<(Parsed<'a>, &'a [u8])> {
    if raw.len() > rules.max_msg_bytes {
        return None;
    }
    let parsed = parse(raw)?;
    let padding = padding_of(parsed.ciphertext, rules)?;
    rules.profiles.contains(&parsed.profile_id).then_some((parsed, padding))
}

/// Whether layout, lengths and profile of a message fit; takes the same time for a message of any size.
pub fn fits(raw: &[u8], rules: &Rules) -> bool {
    outline(raw, rules).is_some()
}

/// A message that passed the structural stage, and what its signature must sign.
pub struct Structured {
    msg: Msg,
    digest: [u8; 32],
    sig: [u8; 64],
}

fn structure(raw: &[u8], rules: &Rules) -> Result<Structured, Fault> {
    let (parsed, padding) = outline(raw, rules).ok_or(Fault::Other)?;
    if padding.iter().any(|byte| *byte != 0) || sha256(&[parsed.ciphertext]) != parsed.ct_hash {
        return Err(Fault::Other);
    }
    let Parsed { profile_id, label, client_id, client_seq, prev_ack, auth_ref, ct_hash, sig, .. } = parsed;
    let leaf_hash = sha256(&[LEAF_TAG, &label, &profile_id, &ct_hash, &client_id, &client_seq.to_be_bytes()]);
    let digest = sha256(&[SIG_TAG, &[0x89], &raw[1..raw.len() - 66]]);
    Ok(Structured { msg: Msg { profile_id, label, client_id, client_seq, prev_ack, auth_ref, leaf_hash }, digest, sig })
}

/// The structural stage of admission and the signatures of several messages.
pub fn check_all<'a>(
    messages: impl Iterator<Item = (&'a [u8], &'a Rules)>,
    keys: &mut KeyCache,
) -> Vec<Result<Msg, Fault>> {
    let structured: Vec<_> = messages.map(|(raw, rules)| structure(raw, rules)).collect();
    let claims: Vec<_> = structured
        .iter()
        .flatten()
        .map(|item| Claim { public: &item.msg.client_id, message: &item.digest, signature: &item.sig })
        .collect();
    let mut verdicts = verify_all(&claims, keys).into_iter();
    structured
        .into_iter()
        .map(|item| {
            let item = item?;
            if verdicts.next() == Some(true) { Ok(item.msg) } else { Err(Fault::Signature) }
        })
        .collect()
}

/// Where an entry stands: what its RECEIPT says.
#[derive(Clone, Debug)]
pub struct Place {
    pub label: [u8; 32],
    pub stream_seq: u64,
    pub leaf_hash: [u8; 32],
    pub mmr_root: [u8; 32],
    pub hub_ts: u64,
}

/// An entry ready for the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub frame: Vec<u8>,
    pub entry_hash: [u8; 32],
    pub receipt: Vec<u8>,
}

/// The signed RECEIPT of a message and the frame around both.
pub fn seal(key: &SigningKey, raw: &[u8], place: &Place) -> Option<Sealed> {
    let mut receipt = Vec::with_capacity(192);
    receipt.extend_from_slice(&[0x87, 0x01, 0x58, 0x20]);
    receipt.extend_from_slice(&place.label);
    push_uint(&mut receipt, place.stream_seq);
    receipt.extend_from_slice(&BSTR32);
    receipt.extend_from_slice(&place.leaf_hash);
    receipt.extend_from_slice(&BSTR32);
    receipt.extend_from_slice(&place.mmr_root);
    push_uint(&mut receipt, place.hub_ts);
    let digest = sha256(&[SIG_TAG, &[0x86], &receipt[1..]]);
    receipt.extend_from_slice(&BSTR64);
    receipt.extend_from_slice(&key.sign(&digest));

    let entry_hash = sha256(&[ENTRY_TAG, raw, &receipt]);
    let mut frame = Vec::with_capacity(82 + raw.len() + receipt.len());
    frame.extend_from_slice(&[1, 0]);
    frame.extend_from_slice(&place.label);
    frame.extend_from_slice(&place.stream_seq.to_be_bytes());
    frame.extend_from_slice(&u32::try_from(raw.len()).ok()?.to_be_bytes());
    frame.extend_from_slice(&u32::try_from(receipt.len()).ok()?.to_be_bytes());
    frame.extend_from_slice(&entry_hash);
    frame.extend_from_slice(raw);
    frame.extend_from_slice(&receipt);
    Some(Sealed { frame, entry_hash, receipt })
}

fn push_uint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=23 => out.push(value as u8),
        24..=0xff => out.extend_from_slice(&[24, value as u8]),
        0x100..=0xffff => {
            out.push(25);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(26);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        _ => {
            out.push(27);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}

pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn rules() -> Rules {
        Rules { profiles: vec![[9; 32]], max_msg_bytes: 1 << 20, max_hdr_bytes: 1 << 14, max_body_bytes: 1 << 20 }
    }

    fn check(raw: &[u8], rules: &Rules) -> Result<Msg, Fault> {
        check_all([(raw, rules)].into_iter(), &mut KeyCache::default()).remove(0)
    }

    pub(crate) fn message(key: &SigningKey, seq: u64, ciphertext: &[u8], auth: bool) -> Vec<u8> {
        let mut raw = vec![0x8a, 0x01, 0x58, 0x20];
        raw.extend_from_slice(&[9; 32]);
        raw.extend_from_slice(&BSTR32);
        raw.extend_from_slice(&[2; 32]);
        raw.extend_from_slice(&BSTR32);
        raw.extend_from_slice(&key.public);
        push_uint(&mut raw, seq);
        push_uint(&mut raw, 0);
        if auth {
            raw.extend_from_slice(&BSTR32);
            raw.extend_from_slice(&[3; 32]);
        } else {
            raw.push(0xf6);
        }
        raw.extend_from_slice(&BSTR32);
        raw.extend_from_slice(&sha256(&[ciphertext]));
        let mut head = Vec::new();
        push_uint(&mut head, ciphertext.len() as u64);
        head[0] |= 0x40;
        raw.extend_from_slice(&head);
        raw.extend_from_slice(ciphertext);
        let digest = sha256(&[SIG_TAG, &[0x89], &raw[1..]]);
        raw.extend_from_slice(&BSTR64);
        raw.extend_from_slice(&key.sign(&digest));
        raw
    }

    #[test]
    fn a_good_message_passes_and_any_changed_bit_does_not() {
        let key = SigningKey::from_seed(&[5; 32]);
        for auth in [false, true] {
            let raw = message(&key, 300, &[0; 64], auth);
            let msg = check(&raw, &rules()).unwrap();
            assert_eq!((msg.client_seq, msg.prev_ack, msg.auth_ref.is_some()), (300, 0, auth));
            for bit in 0..raw.len() * 8 {
                let mut other = raw.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert!(check(&other, &rules()).is_err(), "bit {bit}");
            }
            for end in 0..raw.len() {
                assert_eq!(check(&raw[..end], &rules()), Err(Fault::Other));
            }
        }
    }

    #[test]
    fn lengths_limits_and_padding_are_held() {
        let key = SigningKey::from_seed(&[5; 32]);
        let mut long_header = [0; 64];
        long_header[34] = 0x40;
        long_header[35] = 0x01; // hdr_len = 16,385
        let mut padding = [0; 64];
        padding[63] = 1;
        for ciphertext in [&long_header[..], &padding[..], &[0; 39][..]] {
            assert_eq!(check(&message(&key, 1, ciphertext, false), &rules()), Err(Fault::Other));
        }
        assert!(check(&message(&key, 1, &[0; 40], false), &rules()).is_ok());
        assert_eq!(
            check(&message(&key, 1, &[0; 40], false), &Rules { max_msg_bytes: 10, ..rules() }),
            Err(Fault::Other)
        );
        assert_eq!(
            check(&message(&key, 1, &[0; 40], false), &Rules { profiles: vec![], ..rules() }),
            Err(Fault::Other)
        );
    }

    #[test]
    fn integers_must_be_in_their_shortest_form() {
        for (data, value) in
            [(&[0x17][..], Some(23)), (&[0x18, 23], None), (&[0x18, 24], Some(24)), (&[0x19, 0, 255], None)]
        {
            assert_eq!(Reader { data, pos: 0 }.uint(0), value);
        }
        for value in [0, 23, 24, 255, 256, 65_535, 65_536, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            let mut data = Vec::new();
            push_uint(&mut data, value);
            assert_eq!(Reader { data: &data, pos: 0 }.uint(0), Some(value));
        }
    }
}
