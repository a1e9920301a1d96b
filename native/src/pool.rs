//! Worker threads that check messages and seal entries while the ordering thread goes on.
//!
//! Verdicts come back in the order of submission, whichever worker was faster. A byte on a socket pair tells the event
//! loop that the next verdict is there; one byte stands for all that came since the last `take`.
//!
//! All hand-offs are under one mutex, which is held for a few pushes and pops and never while hashing or signing. The
//! flag `woken` is set by whoever makes the next verdict available and cleared by `take`, both under that mutex, so no
//! verdict can be left behind without a byte on its way.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Write},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{Builder, JoinHandle},
};

use crate::{
    ed25519::{KeyCache, SigningKey},
    layout::{Fault, Msg, Place, Rules, Sealed, check_all, fits, seal},
};

pub type Verdict = Result<Msg, Fault>;

const BATCH: usize = 8; // messages a worker takes at once: few hand-offs, short turns

/// A worker panicked: a defect of this crate. Nothing that it worked on counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

struct CheckJob<B> {
    ticket: u64,
    raw: B,
    rules: Arc<Rules>,
}

struct SealJob<B> {
    key: Arc<SigningKey>,
    raw: B,
    place: Place,
    group: Arc<Group>,
    index: usize,
}

enum Work<B> {
    Check(Vec<CheckJob<B>>),
    Seal(SealJob<B>),
}

struct State<B> {
    checks: VecDeque<CheckJob<B>>,       // submitted, not taken by a worker
    seals: VecDeque<SealJob<B>>,         // served first: their group waits for nothing else
    verdicts: VecDeque<Option<Verdict>>, // of tickets first, first + 1, …; None while a worker has it
    first: u64,                          // ticket of verdicts[0]
    next: u64,                           // ticket of the next submission
    woken: bool,                         // a byte is on its way to the event loop
    broken: bool,
    closing: bool,
}

struct Shared<B> {
    state: Mutex<State<B>>,
    work: Condvar, // there is something to do, or the end
    wake: UnixStream,
    workers: usize,
}

/// The entries that one sync makes durable; parts keep the order in which they were added.
pub struct Group {
    parts: Mutex<Parts>,
    complete: Condvar,
}

#[derive(Default)]
struct Parts {
    items: Vec<Option<Part>>,
    pending: usize,
    broken: bool,
}

#[derive(Clone, Debug)]
pub enum Part {
    Entry(Sealed),
    Record(Vec<u8>),
}

impl Part {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Part::Entry(sealed) => &sealed.frame,
            Part::Record(data) => data,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Jobs run outside of the locks, so a poisoned one guards data that is whole; `broken` says what happened.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Group {
    fn default() -> Self {
        Self { parts: Mutex::new(Parts::default()), complete: Condvar::new() }
    }
}

impl Group {
    pub fn add_record(&self, data: Vec<u8>) {
        lock(&self.parts).items.push(Some(Part::Record(data)));
    }

    fn reserve(&self) -> usize {
        let mut parts = lock(&self.parts);
        parts.items.push(None);
        parts.pending += 1;
        parts.items.len() - 1
    }

    fn fill(&self, index: usize, sealed: Option<Sealed>) {
        let mut parts = lock(&self.parts);
        parts.pending -= 1;
        match sealed {
            Some(sealed) => parts.items[index] = Some(Part::Entry(sealed)),
            None => parts.broken = true,
        }
        if parts.pending == 0 {
            self.complete.notify_all();
        }
    }

    /// Wait until every entry is sealed, then hand the parts to `take`.
    pub fn wait<R>(&self, take: impl FnOnce(&mut dyn Iterator<Item = &Part>) -> R) -> Result<R, Broken> {
        let mut parts = lock(&self.parts);
        while parts.pending > 0 {
            parts = self.complete.wait(parts).unwrap_or_else(PoisonError::into_inner);
        }
        if parts.broken { Err(Broken) } else { Ok(take(&mut parts.items.iter().flatten())) }
    }
}

pub struct Pool<B: AsRef<[u8]> + Send + 'static> {
    shared: Arc<Shared<B>>,
    rules: Mutex<Arc<Rules>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<B: AsRef<[u8]> + Send + 'static> Pool<B> {
    /// Start `workers` threads; the stream is readable when `take` has something to give.
    pub fn start(workers: usize, nice: i32, rules: Rules) -> std::io::Result<(Self, UnixStream)> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let state = State {
            checks: VecDeque::new(),
            seals: VecDeque::new(),
            verdicts: VecDeque::new(),
            first: 0,
            next: 0,
            woken: false,
            broken: false,
            closing: false,
        };
        let workers = workers.max(1);
        let shared = Arc::new(Shared { state: Mutex::new(state), work: Condvar::new(), wake, workers });
        let mut threads = Vec::new();
        for number in 0..workers {
            let shared = Arc::clone(&shared);
            let thread = Builder::new().name(format!("veen-worker-{number}")).spawn(move || {
                // A lower priority than the ordering thread, for whom everybody waits. Best effort.
                let _ = rustix::process::setpriority_process(None, nice);
                shared.serve();
            })?;
            threads.push(thread);
        }
        Ok((Self { shared, rules: Mutex::new(Arc::new(rules)), threads: Mutex::new(threads) }, woken))
    }

    /// Messages that are submitted from now on are held to these rules.
    pub fn set_rules(&self, rules: Rules) {
        *lock(&self.rules) = Arc::new(rules);
    }

    /// Queue a message, unless its outline alone shows that it is for the Python reader: then false, and no verdict.
    pub fn submit(&self, raw: B) -> bool {
        let rules = Arc::clone(&lock(&self.rules));
        if !fits(raw.as_ref(), &rules) {
            return false;
        }
        let mut state = lock(&self.shared.state);
        let ticket = state.next;
        state.next += 1;
        state.verdicts.push_back(None);
        state.checks.push_back(CheckJob { ticket, raw, rules });
        drop(state);
        self.shared.work.notify_one();
        true
    }

    /// The verdicts that are there, in the order of submission; none is given twice.
    pub fn take(&self) -> Result<Vec<Verdict>, Broken> {
        let mut state = lock(&self.shared.state);
        state.woken = false;
        if state.broken {
            return Err(Broken);
        }
        let ready = state.verdicts.iter().take_while(|verdict| verdict.is_some()).count();
        state.first += ready as u64;
        Ok(state.verdicts.drain(..ready).flatten().collect())
    }

    /// Sign and frame an entry, as the next part of `group`.
    pub fn seal(&self, group: &Arc<Group>, key: Arc<SigningKey>, raw: B, place: Place) {
        let index = group.reserve();
        let job = SealJob { key, raw, place, group: Arc::clone(group), index };
        lock(&self.shared.state).seals.push_back(job);
        self.shared.work.notify_one();
    }

    /// Submissions without a verdict yet, and verdicts not taken yet.
    pub fn outstanding(&self) -> usize {
        lock(&self.shared.state).verdicts.len()
    }

    /// Finish what was begun and end the threads. Further submissions would never be answered.
    pub fn close(&self) {
        lock(&self.shared.state).closing = true;
        self.shared.work.notify_all();
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }
}

impl<B: AsRef<[u8]> + Send + 'static> Drop for Pool<B> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<B: AsRef<[u8]> + Send + 'static> Shared<B> {
    fn serve(&self) {
        let mut keys = KeyCache::default();
        while let Some(work) = self.next() {
            match work {
                Work::Seal(job) => {
                    let SealJob { key, raw, place, group, index } = job;
                    let sealed = catch_unwind(AssertUnwindSafe(|| seal(&key, raw.as_ref(), &place))).ok().flatten();
                    if sealed.is_none() {
                        self.report(|state| state.broken = true);
                    }
                    group.fill(index, sealed);
                }
                Work::Check(jobs) => {
                    let verdicts = catch_unwind(AssertUnwindSafe(|| {
                        check_all(jobs.iter().map(|job| (job.raw.as_ref(), &*job.rules)), &mut keys)
                    }));
                    self.report(|state| match verdicts {
                        Ok(verdicts) => {
                            for (job, verdict) in jobs.iter().zip(verdicts) {
                                let at = usize::try_from(job.ticket - state.first).unwrap_or(usize::MAX);
                                state.verdicts[at] = Some(verdict);
                            }
                        }
                        Err(_) => state.broken = true,
                    });
                }
            }
        }
    }

    fn next(&self) -> Option<Work<B>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.seals.pop_front() {
                return Some(Work::Seal(job));
            }
            if !state.checks.is_empty() {
                let share = state.checks.len().div_ceil(self.workers).min(BATCH);
                return Some(Work::Check(state.checks.drain(..share).collect()));
            }
            if state.closing {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Change the state and wake the event loop if it has something to take.
    fn report(&self, change: impl FnOnce(&mut State<B>)) {
        let mut state = lock(&self.state);
        change(&mut state);
        let ready = state.broken || matches!(state.verdicts.front(), Some(Some(_)));
        let wake = ready && !state.woken;
        state.woken |= wake;
        drop(state);
        if wake {
            // A full socket already holds a byte that will wake the loop; a closed one has nobody to wake.
            if let Err(error) = (&self.wake).write_all(&[1]) {
                debug_assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{message, rules};
    use std::{io::Read, time::Duration};

    /// A message whose outline fits and whose ct_hash does not: a verdict that costs little.
    fn cheap(size: usize) -> Vec<u8> {
        let mut raw = message(&SigningKey::from_seed(&[5; 32]), 1, &vec![0; 40 + size], false);
        let first = raw.len() - 66 - size - 40;
        raw[first] ^= 1;
        raw
    }

    /// Waits on the stream alone, as the event loop does: a lost byte ends in the time-out.
    fn collect(pool: &Pool<Vec<u8>>, stream: &mut UnixStream, count: usize) -> usize {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (mut total, mut buffer) = (0, [0; 64]);
        while total < count {
            let count = stream.read(&mut buffer).expect("a verdict is there and nobody said so");
            assert!(count > 0);
            total += pool.take().unwrap().len();
        }
        total
    }

    #[test]
    fn no_wake_up_is_lost_however_submissions_and_takes_interleave() {
        let (pool, mut stream) = Pool::<Vec<u8>>::start(4, 0, rules()).unwrap();
        let sizes: Vec<_> = (0..20).map(cheap).collect();
        for round in 0..2_000 {
            let count = 1 + round % 7;
            for _ in 0..count {
                assert!(pool.submit(sizes[round % 20].clone()));
            }
            assert_eq!(collect(&pool, &mut stream, count), count);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50_000).for_each(|number| assert!(pool.submit(sizes[number % 20].clone()))));
            assert_eq!(collect(&pool, &mut stream, 50_000), 50_000);
        });
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn verdicts_keep_the_order_of_submission() {
        let (pool, mut stream) = Pool::<Vec<u8>>::start(3, 0, rules()).unwrap();
        let key = SigningKey::from_seed(&[5; 32]);
        for number in 0..90 {
            assert!(pool.submit(message(&key, number, &vec![0; if number % 3 == 0 { 100_000 } else { 40 }], false)));
        }
        stream.set_nonblocking(false).unwrap();
        let (mut numbers, mut buffer) = (Vec::new(), [0; 64]);
        while numbers.len() < 90 {
            assert!(stream.read(&mut buffer).unwrap() > 0);
            numbers.extend(pool.take().unwrap().into_iter().map(|verdict| verdict.unwrap().client_seq));
        }
        assert_eq!(numbers, (0..90).collect::<Vec<_>>());
    }

    #[test]
    fn what_does_not_fit_gets_no_verdict() {
        let (pool, _stream) = Pool::<Vec<u8>>::start(1, 0, rules()).unwrap();
        assert!(!pool.submit(vec![0x8a; 100]));
        assert_eq!(pool.outstanding(), 0);
        assert!(pool.submit(cheap(0)));
        pool.close();
        assert_eq!(pool.take().unwrap(), vec![Err(Fault::Other)]);
    }

    #[test]
    fn a_group_waits_for_all_its_entries_and_keeps_their_order() {
        let (pool, _stream) = Pool::<Vec<u8>>::start(3, 0, rules()).unwrap();
        let key = Arc::new(SigningKey::from_seed(&[1; 32]));
        for _ in 0..200 {
            let group = Arc::new(Group::default());
            for number in 0..20_u64 {
                if number % 5 == 0 {
                    group.add_record(vec![number as u8]);
                }
                let place =
                    Place { label: [1; 32], stream_seq: number, leaf_hash: [2; 32], mmr_root: [3; 32], hub_ts: 4 };
                pool.seal(&group, Arc::clone(&key), vec![number as u8; 10], place);
            }
            let sizes = group.wait(|parts| parts.map(|part| part.bytes().len()).collect::<Vec<_>>()).unwrap();
            assert_eq!(sizes.len(), 24);
            assert_eq!(sizes.iter().filter(|size| **size == 1).count(), 4);
            assert_eq!(sizes[0], 1);
            assert_eq!(sizes[6], 1);
        }
    }
}
