//! The entries of a chunk, checked as `veen.verify.label` checks them one by one: frame, MSG, RECEIPT, hashes, tree,
//! writers and signatures (I1, I2, I3, I6, I8, I9, I10).
//!
//! `scan` answers only for entries without any fault. At the first thing that is not as it must be it gives up, and
//! Python reads the chunk again to name the fault.

use std::{collections::HashMap, thread};

use crate::{
    ed25519::{Claim, KeyCache, verify_all},
    layout::{BSTR32, BSTR64, ENTRY_TAG, Hash, LEAF_TAG, Reader, SIG_TAG, parse, sha256},
};

const HEADER: usize = 82; // of a frame: version, flags, label, stream_seq, two lengths, entry_hash
const MAX_RECEIPT: usize = 256;
const NODE_TAG: &[u8] = b"veen/mmr-node\0";
const ROOT_TAG: &[u8] = b"veen/mmr-root\0";
const NUMBERS: u64 = 1 << 63; // no number of the log reaches it (D-07)
const TOGETHER: usize = 32; // entries whose signatures are verified with shared inversions

/// A key of the hub and the seconds in which it may sign, the last one not included.
pub struct HubKey {
    pub public: Hash,
    pub valid_from: u64,
    pub valid_until: u64,
}

/// Which entries are asked for, and what they are held to.
pub struct Request {
    pub label: Hash,
    pub start_seq: u64,
    pub most: usize,
    pub max_msg_bytes: usize,
    pub peaks: Vec<Hash>,              // of the tree before `start_seq`, by increasing height
    pub hub_keys: Option<Vec<HubKey>>, // none: receipts are not verified
    pub signatures: bool,
    pub threads: usize,
}

/// The first and the last entry of a client, and the places of all.
pub struct Writer {
    pub client_id: Hash,
    pub first_ts: u64,
    pub first_seq: u64,
    pub first_ack: u64,
    pub last_seq: u64,
    pub last_ack: u64,
    pub places: Vec<u64>,
}

/// How often a client used a token in a second.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Use {
    pub auth_ref: Hash,
    pub client_id: Hash,
    pub hub_ts: u64,
}

/// What entries without faults add up to.
#[derive(Default)]
pub struct Scanned {
    pub end: usize,
    pub first_ts: u64,
    pub last_ts: u64,
    pub lengths: Vec<u32>,
    pub entry_hashes: Vec<Hash>,
    pub roots: Vec<Hash>,
    pub nodes: Vec<Hash>, // in the order of the file of all nodes
    pub peaks: Vec<Hash>,
    pub hash_peaks: Vec<Hash>, // of the tree of entry hashes of this chunk
    pub writers: Vec<Writer>,
    pub uses: Vec<(Use, u64)>,
}

struct Frame<'a> {
    stream_seq: u64,
    msg: &'a [u8],
    receipt: &'a [u8],
    entry_hash: Hash,
}

struct Entry {
    client_id: Hash,
    client_seq: u64,
    prev_ack: u64,
    auth_ref: Option<Hash>,
    hub_ts: u64,
    leaf_hash: Hash,
    root: Hash,
}

/// A signature that is verified with others.
struct Signed {
    public: Hash,
    digest: Hash,
    signature: [u8; 64],
}

/// A tree that grows by leaves: its size and its peaks, the smallest last.
struct Tree {
    size: u64,
    stack: Vec<Hash>,
}

impl Tree {
    fn new(size: u64, peaks: &[Hash]) -> Option<Self> {
        (size.count_ones() as usize == peaks.len()).then(|| Self { size, stack: peaks.iter().rev().copied().collect() })
    }

    fn append(&mut self, leaf: Hash, created: &mut Vec<Hash>) -> Option<()> {
        created.push(leaf);
        let (mut node, mut carry) = (leaf, self.size);
        while carry & 1 == 1 {
            node = sha256(&[NODE_TAG, &self.stack.pop()?, &node]);
            created.push(node);
            carry >>= 1;
        }
        self.stack.push(node);
        self.size += 1;
        Some(())
    }

    fn peaks(&self) -> Vec<Hash> {
        self.stack.iter().rev().copied().collect()
    }

    fn root(&self) -> Option<Hash> {
        if let [only] = self.stack[..] {
            return Some(only);
        }
        let peaks = self.peaks().concat();
        (!peaks.is_empty()).then(|| sha256(&[ROOT_TAG, &peaks]))
    }
}

/// The frames that were asked for, and where the last one ends.
fn frames<'a>(data: &'a [u8], request: &Request) -> Option<(Vec<Frame<'a>>, usize)> {
    let mut reader = Reader { data, pos: 0 };
    let (mut frames, mut stream_seq) = (Vec::new(), request.start_seq);
    while reader.pos < data.len() && frames.len() < request.most {
        reader.expect(&[1, 0])?;
        reader.expect(&request.label)?;
        reader.expect(&stream_seq.to_be_bytes())?;
        let msg_bytes = usize::try_from(u32::from_be_bytes(reader.array()?)).ok()?;
        let receipt_bytes = usize::try_from(u32::from_be_bytes(reader.array()?)).ok()?;
        if msg_bytes > request.max_msg_bytes || receipt_bytes > MAX_RECEIPT {
            return None;
        }
        let entry_hash = reader.array()?;
        let (msg, receipt) = (reader.bytes(msg_bytes)?, reader.bytes(receipt_bytes)?);
        frames.push(Frame { stream_seq, msg, receipt, entry_hash });
        stream_seq += 1;
    }
    Some((frames, reader.pos))
}

fn below(number: u64) -> Option<u64> {
    (number < NUMBERS).then_some(number)
}

/// One entry as far as it can be judged by itself; its signatures go to `signed`.
fn entry_of(frame: &Frame<'_>, request: &Request, signed: &mut Vec<Signed>) -> Option<Entry> {
    let label = &request.label;
    if sha256(&[ENTRY_TAG, frame.msg, frame.receipt]) != frame.entry_hash {
        return None;
    }
    let msg = parse(frame.msg)?;
    if msg.label != *label || sha256(&[msg.ciphertext]) != msg.ct_hash {
        return None;
    }
    let client_seq = below(msg.client_seq)?;
    let leaf = [LEAF_TAG, label, &msg.profile_id, &msg.ct_hash, &msg.client_id, &client_seq.to_be_bytes()];
    let leaf_hash = sha256(&leaf);

    let mut receipt = Reader { data: frame.receipt, pos: 0 };
    receipt.expect(&[0x87, 0x01, 0x58, 0x20])?;
    receipt.expect(label)?;
    if receipt.uint(0)? != frame.stream_seq {
        return None;
    }
    receipt.expect(&BSTR32)?;
    receipt.expect(&leaf_hash)?;
    receipt.expect(&BSTR32)?;
    let root = receipt.array()?;
    let hub_ts = below(receipt.uint(0)?)?;
    let signed_bytes = receipt.pos;
    receipt.expect(&BSTR64)?;
    let hub_sig = receipt.array()?;
    if receipt.pos != frame.receipt.len() || msg.prev_ack >= frame.stream_seq {
        return None;
    }
    if request.signatures {
        let digest = sha256(&[SIG_TAG, &[0x89], &frame.msg[1..frame.msg.len() - 66]]);
        signed.push(Signed { public: msg.client_id, digest, signature: msg.sig });
        if let Some(hub_keys) = &request.hub_keys {
            let mut valid = hub_keys.iter().filter(|key| key.valid_from <= hub_ts && hub_ts < key.valid_until);
            let (Some(key), None) = (valid.next(), valid.next()) else {
                return None; // whichever of several has signed, Python finds out
            };
            let digest = sha256(&[SIG_TAG, &[0x86], &frame.receipt[1..signed_bytes]]);
            signed.push(Signed { public: key.public, digest, signature: hub_sig });
        }
    }
    Some(Entry {
        client_id: msg.client_id,
        client_seq,
        prev_ack: msg.prev_ack,
        auth_ref: msg.auth_ref,
        hub_ts,
        leaf_hash,
        root,
    })
}

/// The entries of some frames, if each is good by itself and all signatures are.
fn entries_of(frames: &[Frame<'_>], request: &Request) -> Option<Vec<Entry>> {
    let (mut keys, mut entries) = (KeyCache::default(), Vec::with_capacity(frames.len()));
    for part in frames.chunks(TOGETHER) {
        let mut signed = Vec::with_capacity(2 * part.len());
        for frame in part {
            entries.push(entry_of(frame, request, &mut signed)?);
        }
        let claims: Vec<_> = signed
            .iter()
            .map(|item| Claim { public: &item.public, message: &item.digest, signature: &item.signature })
            .collect();
        if verify_all(&claims, &mut keys).contains(&false) {
            return None;
        }
    }
    Some(entries)
}

/// The same on several threads.
fn entries_on_threads(frames: &[Frame<'_>], request: &Request) -> Option<Vec<Entry>> {
    let share = frames.len().div_ceil(request.threads.max(1)).max(TOGETHER);
    if share >= frames.len() {
        return entries_of(frames, request);
    }
    thread::scope(|scope| {
        let parts: Vec<_> = frames.chunks(share).map(|part| scope.spawn(move || entries_of(part, request))).collect();
        let mut entries = Vec::with_capacity(frames.len());
        let mut good = true;
        for part in parts {
            match part.join().ok().flatten() {
                Some(more) => entries.extend(more),
                None => good = false, // all are joined all the same
            }
        }
        good.then_some(entries)
    })
}

/// What the entries at the beginning of `data` add up to; None if anything is wrong, or cannot be told here.
pub fn scan(data: &[u8], request: &Request) -> Option<Scanned> {
    let (frames, end) = frames(data, request)?;
    let entries = entries_on_threads(&frames, request)?;
    let mut tree = Tree::new(request.start_seq.checked_sub(1)?, &request.peaks)?;
    let (mut hashes, mut hash_nodes) = (Tree::new(0, &[])?, Vec::new());
    let mut by_client: HashMap<Hash, usize> = HashMap::new();
    let mut by_use: HashMap<Use, usize> = HashMap::new();
    let mut scanned = Scanned { end, first_ts: entries.first()?.hub_ts, ..Scanned::default() };
    for (frame, entry) in frames.iter().zip(&entries) {
        tree.append(entry.leaf_hash, &mut scanned.nodes)?;
        if tree.root()? != entry.root || entry.hub_ts < scanned.last_ts {
            return None;
        }
        scanned.last_ts = entry.hub_ts;
        scanned.lengths.push(u32::try_from(HEADER + frame.msg.len() + frame.receipt.len()).ok()?);
        scanned.entry_hashes.push(frame.entry_hash);
        scanned.roots.push(entry.root);
        hash_nodes.clear();
        hashes.append(frame.entry_hash, &mut hash_nodes)?;
        let place = *by_client.entry(entry.client_id).or_insert_with(|| {
            scanned.writers.push(Writer {
                client_id: entry.client_id,
                first_ts: entry.hub_ts,
                first_seq: entry.client_seq,
                last_seq: entry.client_seq.wrapping_sub(1),
                first_ack: entry.prev_ack,
                last_ack: entry.prev_ack,
                places: Vec::new(),
            });
            scanned.writers.len() - 1
        });
        let writer = scanned.writers.get_mut(place)?;
        if entry.client_seq != writer.last_seq.wrapping_add(1) || entry.prev_ack < writer.last_ack {
            return None;
        }
        (writer.last_seq, writer.last_ack) = (entry.client_seq, entry.prev_ack);
        writer.places.push(frame.stream_seq);
        if let Some(auth_ref) = entry.auth_ref {
            let key = Use { auth_ref, client_id: entry.client_id, hub_ts: entry.hub_ts };
            let place = *by_use.entry(key.clone()).or_insert_with(|| {
                scanned.uses.push((key, 0));
                scanned.uses.len() - 1
            });
            scanned.uses.get_mut(place)?.1 += 1;
        }
    }
    (scanned.peaks, scanned.hash_peaks) = (tree.peaks(), hashes.peaks());
    Some(scanned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ed25519::SigningKey,
        layout::{Place, seal, tests::message},
    };

    const LABEL: Hash = [2; 32];

    /// A chunk that begins the log, by two writers, the second with a token.
    fn chunk(count: u64) -> Vec<u8> {
        let (hub, writers) = (hub(), [SigningKey::from_seed(&[5; 32]), SigningKey::from_seed(&[6; 32])]);
        let (mut data, mut tree, mut nodes) = (Vec::new(), Tree::new(0, &[]).unwrap(), Vec::new());
        for number in 0..count {
            let writer = &writers[(number % 2) as usize];
            let raw = message(writer, number / 2 + 1, &[7; 50], number % 2 == 1);
            let msg = parse(&raw).unwrap();
            let parts =
                [LEAF_TAG, &LABEL, &msg.profile_id, &msg.ct_hash, &msg.client_id, &msg.client_seq.to_be_bytes()];
            let leaf_hash = sha256(&parts);
            tree.append(leaf_hash, &mut nodes).unwrap();
            let mmr_root = tree.root().unwrap();
            let place = Place { label: LABEL, stream_seq: number + 1, leaf_hash, mmr_root, hub_ts: 1000 + number / 4 };
            data.extend(seal(&hub, &raw, &place).unwrap().frame);
        }
        data
    }

    fn hub() -> SigningKey {
        SigningKey::from_seed(&[8; 32])
    }

    fn request(threads: usize) -> Request {
        let key = HubKey { public: hub().public, valid_from: 0, valid_until: u64::MAX };
        Request {
            label: LABEL,
            start_seq: 1,
            most: 1 << 20,
            max_msg_bytes: 1 << 20,
            peaks: vec![],
            hub_keys: Some(vec![key]),
            signatures: true,
            threads,
        }
    }

    #[test]
    fn a_good_chunk_adds_up_to_the_same_on_any_number_of_threads() {
        let data = chunk(101);
        for threads in [1, 3] {
            let scanned = scan(&data, &request(threads)).unwrap();
            assert_eq!((scanned.end, scanned.lengths.len()), (data.len(), 101));
            assert_eq!((scanned.first_ts, scanned.last_ts), (1000, 1025));
            assert_eq!((scanned.nodes.len(), scanned.peaks.len(), scanned.hash_peaks.len()), (2 * 101 - 4, 4, 4));
            let writers: Vec<_> = scanned.writers.iter().map(|w| (w.first_seq, w.last_seq, w.places.len())).collect();
            assert_eq!(writers, [(1, 51, 51), (1, 50, 50)]);
            assert_eq!(scanned.uses.iter().map(|(_, count)| count).sum::<u64>(), 50);
            assert_eq!(scanned.uses.len(), 25, "one for each second");
        }
    }

    #[test]
    fn a_chunk_can_be_taken_in_two_parts() {
        let data = chunk(50);
        let whole = scan(&data, &request(1)).unwrap();
        let first = scan(&data, &Request { most: 13, ..request(1) }).unwrap();
        let rest = Request { start_seq: 14, peaks: first.peaks, ..request(1) };
        assert_eq!(scan(&data[first.end..], &rest).unwrap().peaks, whole.peaks);
        assert_eq!(whole.nodes.len(), 2 * 50 - 3);
    }

    #[test]
    fn any_changed_bit_and_any_cut_gives_up() {
        let data = chunk(3);
        let ends: Vec<_> = (0..3).map(|most| scan(&data, &Request { most, ..request(1) }).map(|s| s.end)).collect();
        for bit in 0..data.len() * 8 {
            let mut other = data.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(scan(&other, &request(1)).is_none(), "bit {bit}");
        }
        for end in 0..data.len() {
            assert_eq!(scan(&data[..end], &request(1)).is_some(), ends.contains(&Some(end)), "cut at {end}");
        }
    }

    #[test]
    fn other_keys_peaks_labels_and_places_give_up() {
        let data = chunk(40);
        let key = |public, valid_from, valid_until| HubKey { public, valid_from, valid_until };
        let public = hub().public;
        for request in [
            Request { label: [1; 32], ..request(1) },
            Request { start_seq: 2, ..request(1) },
            Request { start_seq: 0, ..request(1) },
            Request { peaks: vec![[0; 32]], ..request(1) },
            Request { max_msg_bytes: 10, ..request(1) },
            Request { hub_keys: Some(vec![]), ..request(1) },
            Request { hub_keys: Some(vec![key([5; 32], 0, u64::MAX)]), ..request(1) },
            Request { hub_keys: Some(vec![key(public, 1001, u64::MAX)]), ..request(1) },
            Request { hub_keys: Some(vec![key(public, 0, 1009)]), ..request(1) },
            Request { hub_keys: Some(vec![key(public, 0, 2000), key([5; 32], 0, 2000)]), ..request(1) },
        ] {
            assert!(scan(&data, &request).is_none());
        }
        for request in [
            Request { hub_keys: Some(vec![key(public, 1000, 1010)]), ..request(1) },
            Request { hub_keys: None, ..request(1) },
            Request { hub_keys: Some(vec![]), signatures: false, ..request(1) },
        ] {
            assert!(scan(&data, &request).is_some());
        }
    }
}
