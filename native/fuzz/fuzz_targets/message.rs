//! Any bytes as a message: no panic, and the reader by layout agrees with itself.

#![no_main]

use libfuzzer_sys::fuzz_target;
use veen_native::{
    chunk::{self, HubKey},
    ed25519::{KeyCache, SigningKey},
    layout::{self, Fault, Place, Rules},
};

fuzz_target!(|data: &[u8]| {
    // The profile that the message names is a known one, so that more than its first bytes is looked at.
    let profiles = data.get(4..36).map_or(vec![], |part| vec![part.try_into().unwrap()]);
    let rules = Rules { profiles, max_msg_bytes: 1 << 20, max_hdr_bytes: 1 << 14, max_body_bytes: 1 << 20 };
    let check = |data: &[u8]| layout::check_all([(data, &rules)].into_iter(), &mut KeyCache::default()).remove(0);
    let verdict = check(data);
    let fits = layout::fits(data, &rules);
    assert!(fits || verdict == Err(Fault::Other));
    if fits {
        assert_eq!(layout::end_of(data, 0), Some(data.len()));
        let twice = [data, data].concat();
        assert_eq!(layout::end_of(&twice, data.len()), Some(twice.len()));
        assert!(!layout::fits(&twice, &rules));
        assert!(!layout::fits(&data[..data.len() - 1], &rules));
    }
    assert_eq!(verdict, check(data)); // the same bytes, the same verdict
    if let Ok(msg) = verdict {
        seal_and_scan(data, &msg);
    }
});

/// What a hub makes of a good message is a chunk that `verify-data` accepts.
fn seal_and_scan(raw: &[u8], msg: &layout::Msg) {
    if msg.client_seq >= 1 << 63 || msg.prev_ack != 0 {
        return; // no hub admits it as the first message of a label
    }
    let key = SigningKey::from_seed(&[7; 32]);
    let place = Place {
        label: msg.label,
        stream_seq: 1,
        leaf_hash: msg.leaf_hash,
        mmr_root: msg.leaf_hash, // of a tree of one leaf
        hub_ts: 1_700_000_000,
    };
    let sealed = layout::seal(&key, raw, &place).expect("lengths fit");
    let request = chunk::Request {
        label: msg.label,
        start_seq: 1,
        most: 2,
        max_msg_bytes: 1 << 20,
        peaks: vec![],
        hub_keys: Some(vec![HubKey { public: key.public, valid_from: 0, valid_until: u64::MAX }]),
        signatures: true,
        threads: 1,
    };
    let scanned = chunk::scan(&sealed.frame, &request).expect("a good entry");
    assert_eq!(scanned.end, sealed.frame.len());
    assert_eq!(scanned.entry_hashes, [sealed.entry_hash]);
}
