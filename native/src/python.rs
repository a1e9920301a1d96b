//! The module `veen_native` as Python sees it.

use std::os::fd::IntoRawFd;
use std::sync::Arc;

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyBytes, PyList},
};

use crate::{
    chunk, ed25519,
    layout::{Fault, Place, Rules, end_of},
    pool::{self, Broken, Part},
};

fn exactly<const N: usize>(name: &str, data: &[u8]) -> PyResult<[u8; N]> {
    data.try_into().map_err(|_| PyValueError::new_err(format!("{name}: expected {N} bytes, found {}", data.len())))
}

fn broken(_: Broken) -> PyErr {
    PyRuntimeError::new_err("a worker thread of veen_native failed; what it worked on does not count")
}

/// Whether `signature` is good for `message` under `public`; False for wrong lengths, never an exception.
#[pyfunction]
fn verify(public: &[u8], message: &[u8], signature: &[u8]) -> bool {
    match (public.try_into(), signature.try_into()) {
        (Ok(public), Ok(signature)) => ed25519::verify(public, message, signature),
        _ => false,
    }
}

fn claim_of(job: &[u8; 128]) -> Option<ed25519::Claim<'_>> {
    let (signature, rest) = job.split_first_chunk()?;
    let (message, rest) = rest.split_at(32);
    Some(ed25519::Claim { public: rest.first_chunk()?, message, signature })
}

/// A byte for each job of 128 bytes (signature 64, digest 32, key 32), 1 if its signature is good.
#[pyfunction]
fn verify_many<'py>(py: Python<'py>, jobs: PyBackedBytes) -> PyResult<Bound<'py, PyBytes>> {
    if !jobs.len().is_multiple_of(128) {
        return Err(PyValueError::new_err(format!("jobs: expected a multiple of 128 bytes, found {}", jobs.len())));
    }
    let verdicts: Vec<u8> = py.detach(|| {
        let mut keys = ed25519::KeyCache::default();
        let mut verdicts = Vec::with_capacity(jobs.len() / 128);
        let (jobs, _) = jobs.as_chunks::<128>();
        for part in jobs.chunks(64) {
            let claims: Vec<_> = part.iter().filter_map(claim_of).collect();
            verdicts.extend(ed25519::verify_all(&claims, &mut keys).into_iter().map(u8::from));
        }
        verdicts
    });
    Ok(PyBytes::new(py, &verdicts))
}

/// The messages of a CBOR sequence from `start` on, `most` at most, and where the next item begins: the end, or what
/// does not have the outline of a MSG.
#[pyfunction]
fn split<'py>(py: Python<'py>, data: &[u8], start: usize, most: usize) -> PyResult<(Bound<'py, PyList>, usize)> {
    let list = PyList::empty(py);
    let mut pos = start;
    while list.len() < most {
        let Some(end) = end_of(data, pos) else { break };
        list.append(PyBytes::new(py, &data[pos..end]))?;
        pos = end;
    }
    Ok((list, pos))
}

/// What the entries of a chunk add up to, none of which has a fault.
#[pyclass(frozen, module = "veen_native", get_all)]
struct ScannedChunk {
    entries: usize,
    end: usize,
    first_ts: u64,
    last_ts: u64,
    first_length: u32,
    entry_hashes: Py<PyBytes>,
    roots: Py<PyBytes>,
    nodes: Py<PyBytes>,
    locations: Py<PyBytes>,
    peaks: Py<PyBytes>,
    hash_peaks: Py<PyBytes>,
    writers: Py<PyList>,
    uses: Py<PyList>,
}

/// The entries at the beginning of `data`, `most` at most, if every check of `veen.verify.chunk_scan` holds; else None.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // what entries are held to
fn scan_chunk<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    label: &[u8],
    start_seq: u64,
    most: usize,
    max_msg_bytes: usize,
    peaks: &[u8],
    hub_keys: Option<Vec<(PyBackedBytes, u64, Option<u64>)>>,
    signatures: bool,
    threads: usize,
) -> PyResult<Option<ScannedChunk>> {
    let (peaks, rest) = peaks.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err("peaks: expected a multiple of 32 bytes"));
    }
    let to_key = |(public, valid_from, valid_until): (PyBackedBytes, u64, Option<u64>)| -> PyResult<chunk::HubKey> {
        let (public, valid_until) = (exactly("hub_pk", &public)?, valid_until.unwrap_or(u64::MAX));
        Ok(chunk::HubKey { public, valid_from, valid_until })
    };
    let hub_keys = hub_keys.map(|keys| keys.into_iter().map(to_key).collect::<PyResult<_>>()).transpose()?;
    let request = chunk::Request {
        label: exactly("label", label)?,
        start_seq,
        most,
        max_msg_bytes,
        peaks: peaks.to_vec(),
        hub_keys,
        signatures,
        threads,
    };
    let Some(scanned) = py.detach(|| chunk::scan(&data, &request)) else {
        return Ok(None);
    };
    let (mut locations, mut offset) = (Vec::with_capacity(16 * scanned.lengths.len()), 0_u32);
    for length in &scanned.lengths {
        locations.extend_from_slice(&start_seq.to_be_bytes());
        locations.extend_from_slice(&offset.to_be_bytes());
        locations.extend_from_slice(&length.to_be_bytes());
        let Some(next) = offset.checked_add(*length) else {
            return Ok(None);
        };
        offset = next;
    }
    let hashes = |hashes: &[[u8; 32]]| PyBytes::new(py, hashes.as_flattened()).unbind();
    let (writers, uses) = (PyList::empty(py), PyList::empty(py));
    for writer in &scanned.writers {
        writers.append((
            PyBytes::new(py, &writer.client_id),
            writer.first_ts,
            writer.first_seq,
            writer.first_ack,
            writer.last_seq,
            writer.last_ack,
            &writer.places,
        ))?;
    }
    for (key, count) in &scanned.uses {
        uses.append((PyBytes::new(py, &key.auth_ref), PyBytes::new(py, &key.client_id), key.hub_ts, count))?;
    }
    Ok(Some(ScannedChunk {
        entries: scanned.lengths.len(),
        end: scanned.end,
        first_ts: scanned.first_ts,
        last_ts: scanned.last_ts,
        first_length: scanned.lengths.first().copied().unwrap_or_default(),
        entry_hashes: hashes(&scanned.entry_hashes),
        roots: hashes(&scanned.roots),
        nodes: hashes(&scanned.nodes),
        locations: PyBytes::new(py, &locations).unbind(),
        peaks: hashes(&scanned.peaks),
        hash_peaks: hashes(&scanned.hash_peaks),
        writers: writers.unbind(),
        uses: uses.unbind(),
    }))
}

/// A secret key that signs; it never leaves this object.
#[pyclass(frozen, module = "veen_native")]
struct Signer {
    key: Arc<ed25519::SigningKey>,
}

#[pymethods]
impl Signer {
    #[new]
    fn new(seed: &[u8]) -> PyResult<Self> {
        Ok(Self { key: Arc::new(ed25519::SigningKey::from_seed(&exactly("seed", seed)?)) })
    }

    #[getter]
    fn public<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key.public)
    }

    fn sign<'py>(&self, py: Python<'py>, message: &[u8]) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key.sign(message))
    }
}

/// A MSG that passed the structural stage, with a good signature: what ordering needs of it.
#[pyclass(frozen, module = "veen_native", get_all)]
struct CheckedMsg {
    profile_id: Py<PyBytes>,
    label: Py<PyBytes>,
    client_id: Py<PyBytes>,
    client_seq: u64,
    prev_ack: u64,
    auth_ref: Option<Py<PyBytes>>,
    leaf: Py<PyBytes>,
}

#[pymethods]
impl CheckedMsg {
    /// msg_id, under the name that MSG has it.
    fn leaf_hash(&self, py: Python<'_>) -> Py<PyBytes> {
        self.leaf.clone_ref(py)
    }
}

/// What one sync makes durable: entries and control records in the order they were decided.
#[pyclass(frozen, module = "veen_native")]
struct Group {
    group: Arc<pool::Group>,
}

#[pymethods]
impl Group {
    #[new]
    fn new() -> Self {
        Self { group: Arc::default() }
    }

    fn add_record(&self, data: &[u8]) {
        self.group.add_record(data.to_vec());
    }

    /// For each part (bytes, entry_hash, receipt), or (bytes, None, None) for a record; waits for the workers.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        py.detach(|| self.group.wait(|_| ())).map_err(broken)?; // the workers need no interpreter, others do
        let list = PyList::empty(py);
        let fill = |parts: &mut dyn Iterator<Item = &Part>| -> PyResult<()> {
            for part in parts {
                match part {
                    Part::Entry(sealed) => list.append((
                        PyBytes::new(py, &sealed.frame),
                        PyBytes::new(py, &sealed.entry_hash),
                        PyBytes::new(py, &sealed.receipt),
                    ))?,
                    Part::Record(data) => list.append((PyBytes::new(py, data), py.None(), py.None()))?,
                }
            }
            Ok(())
        };
        self.group.wait(fill).map_err(broken)??;
        Ok(list)
    }
}

/// Worker threads for checking and sealing; see `pool.rs`.
#[pyclass(frozen, module = "veen_native")]
struct Pool {
    pool: pool::Pool<PyBackedBytes>,
    wake_fd: i32,
}

fn rules_of(profiles: Vec<PyBackedBytes>, sizes: (usize, usize, usize)) -> PyResult<Rules> {
    let profiles = profiles.iter().map(|profile| exactly("profile_id", profile)).collect::<PyResult<_>>()?;
    let (max_msg_bytes, max_hdr_bytes, max_body_bytes) = sizes;
    Ok(Rules { profiles, max_msg_bytes, max_hdr_bytes, max_body_bytes })
}

#[pymethods]
impl Pool {
    /// `sizes` are max_msg_bytes, max_hdr_bytes and max_body_bytes.
    #[new]
    #[pyo3(signature = (workers, profiles, sizes, nice = 0))]
    fn new(workers: usize, profiles: Vec<PyBackedBytes>, sizes: (usize, usize, usize), nice: i32) -> PyResult<Self> {
        let (pool, woken) = pool::Pool::start(workers, nice, rules_of(profiles, sizes)?)?;
        Ok(Self { pool, wake_fd: woken.into_raw_fd() })
    }

    /// A descriptor of the caller's, readable when `take` has something to give.
    #[getter]
    fn wake_fd(&self) -> i32 {
        self.wake_fd
    }

    fn set_rules(&self, profiles: Vec<PyBackedBytes>, sizes: (usize, usize, usize)) -> PyResult<()> {
        self.pool.set_rules(rules_of(profiles, sizes)?);
        Ok(())
    }

    /// Whether the message was queued. False: layout, lengths or profile do not fit, and no verdict will come.
    fn submit(&self, raw: PyBackedBytes) -> bool {
        self.pool.submit(raw)
    }

    /// Verdicts in the order of submission: a CheckedMsg, False for a bad signature alone, None for anything else.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for verdict in self.pool.take().map_err(broken)? {
            match verdict {
                Ok(msg) => list.append(CheckedMsg {
                    profile_id: PyBytes::new(py, &msg.profile_id).unbind(),
                    label: PyBytes::new(py, &msg.label).unbind(),
                    client_id: PyBytes::new(py, &msg.client_id).unbind(),
                    client_seq: msg.client_seq,
                    prev_ack: msg.prev_ack,
                    auth_ref: msg.auth_ref.map(|auth_ref| PyBytes::new(py, &auth_ref).unbind()),
                    leaf: PyBytes::new(py, &msg.leaf_hash).unbind(),
                })?,
                Err(Fault::Signature) => list.append(false)?,
                Err(Fault::Other) => list.append(py.None())?,
            }
        }
        Ok(list)
    }

    /// Sign and frame an entry as the next part of `group`.
    #[allow(clippy::too_many_arguments)] // the fields of a RECEIPT
    fn seal(
        &self,
        group: &Group,
        signer: &Signer,
        raw: PyBackedBytes,
        label: &[u8],
        stream_seq: u64,
        leaf_hash: &[u8],
        mmr_root: &[u8],
        hub_ts: u64,
    ) -> PyResult<()> {
        let place = Place {
            label: exactly("label", label)?,
            stream_seq,
            leaf_hash: exactly("leaf_hash", leaf_hash)?,
            mmr_root: exactly("mmr_root", mmr_root)?,
            hub_ts,
        };
        self.pool.seal(&group.group, Arc::clone(&signer.key), raw, place);
        Ok(())
    }

    /// Finish what was begun and end the threads.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.pool.close());
    }
}

/// What this build needs of a CPU beyond the least of its kind, as (name, whether this CPU has it).
#[pyfunction]
fn cpu_features() -> Vec<(&'static str, bool)> {
    #[allow(unused_mut)] // where none of these exist
    let mut features = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! needed {
            ($($name:tt),*) => {
                $(if cfg!(target_feature = $name) {
                    features.push(($name, std::arch::is_x86_feature_detected!($name)));
                })*
            };
        }
        needed!("avx2", "bmi2", "adx", "sha", "avx512f", "avx512bw", "avx512vl", "avx512ifma", "avx512vbmi");
    }
    #[cfg(target_arch = "aarch64")]
    {
        macro_rules! needed {
            ($($name:tt),*) => {
                $(if cfg!(target_feature = $name) {
                    features.push(($name, std::arch::is_aarch64_feature_detected!($name)));
                })*
            };
        }
        needed!("sha2", "sha3", "sve");
    }
    features
}

/// Ed25519, MSG checking and receipt sealing for VEEN hubs, on threads without the interpreter.
#[pymodule]
fn veen_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(verify, module)?)?;
    module.add_function(wrap_pyfunction!(verify_many, module)?)?;
    module.add_function(wrap_pyfunction!(split, module)?)?;
    module.add_function(wrap_pyfunction!(scan_chunk, module)?)?;
    module.add_function(wrap_pyfunction!(cpu_features, module)?)?;
    module.add_class::<ScannedChunk>()?;
    module.add_class::<Signer>()?;
    module.add_class::<CheckedMsg>()?;
    module.add_class::<Group>()?;
    module.add_class::<Pool>()
}
