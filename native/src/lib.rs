//! What a VEEN hub does with every message and that needs no Python: check, verify, sign, frame.
//!
//! Python keeps the rules: `veen.hub` decides, orders and refuses. Its own code is the oracle of this crate, and what a
//! machine without it runs.

pub mod chunk;
pub mod ed25519;
pub mod layout;
pub mod pool;

#[cfg(feature = "python")]
mod python;
