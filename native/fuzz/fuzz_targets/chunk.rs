//! Any bytes as a chunk: no panic, the same answer on one thread and on two, and never more entries than asked for.
//!
//! The hash of each frame is put right first: otherwise nothing behind it would be looked at.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use veen_native::chunk::{self, Request};

const HEADER: usize = 82; // version, flags, label, stream_seq, two lengths, entry_hash

fn with_hashes(mut data: Vec<u8>) -> Vec<u8> {
    let length_at = |data: &[u8], at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap()) as usize;
    let mut start = 0;
    while let Some(head) = data.get(start..start + HEADER) {
        let end = start + HEADER + length_at(head, 42) + length_at(head, 46);
        let Some(parts) = data.get(start + HEADER..end) else { break };
        let hash = Sha256::new().chain_update(b"veen/entry").chain_update(parts).finalize();
        data[start + HEADER - 32..start + HEADER].copy_from_slice(&hash);
        start = end;
    }
    data
}

fuzz_target!(|data: &[u8]| {
    let data = &with_hashes(data.to_vec());
    let Some(label) = data.get(2..34) else { return };
    let ask = |threads: usize, most: usize| {
        let request = Request {
            label: label.try_into().unwrap(),
            start_seq: 1,
            most,
            max_msg_bytes: 1 << 20,
            peaks: vec![],
            hub_keys: None,
            signatures: true,
            threads,
        };
        chunk::scan(data, &request)
    };
    let (alone, together) = (ask(1, 16), ask(2, 16));
    assert_eq!(alone.is_some(), together.is_some());
    let (Some(alone), Some(together)) = (alone, together) else { return };
    assert!(alone.end <= data.len() && alone.lengths.len() <= 16);
    assert_eq!(alone.end, alone.lengths.iter().map(|length| *length as usize).sum::<usize>());
    assert_eq!((alone.end, &alone.entry_hashes, &alone.roots), (together.end, &together.entry_hashes, &together.roots));
    if let Some(first) = ask(1, 1) {
        assert_eq!(first.entry_hashes[..], alone.entry_hashes[..1]);
    }
});
