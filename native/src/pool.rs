//! Worker threads that check messages and seal entries while the ordering thread goes on.
//!
//! Verdicts come back in the order of submission, whichever worker was faster. A byte on a socket pair tells the event
//! loop that the next verdict is there; one byte stands for all that came since the last `take`.
//!
//! The ordering thread never waits for a worker to leave a lock when it hands over work, as a worker may lose its core
//! while it holds one: jobs go through channels, whose sending side has no lock, and a group counts its entries in an
//! atomic. Verdicts are under a mutex, which is held for a few pushes and pops and never while hashing or signing. The
//! flag `woken` is set by whoever makes the next verdict available and cleared by `take`, both under that mutex, so no
//! verdict can be left behind without a byte on its way. How sleeping workers are woken is said at `Queue`.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Write},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{Builder, JoinHandle},
};

use crate::{
    ed25519::{KeyCache, SigningKey},
    layout::{Fault, Msg, Place, Rules, Sealed, check_all, fits, seal},
};

pub type Verdict = Result<Msg, Fault>;

const BATCH: usize = 8; // jobs of one kind that a worker takes at once: few hand-offs, short turns

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
    Seal(Vec<SealJob<B>>),
}

/// Work for the workers, from one thread.
///
/// A worker that finds nothing counts itself in `sleeping`, then looks at `jobs` once more, then waits; whoever queues
/// counts the job in `jobs`, then looks at `sleeping`. Both are sequentially consistent, so one of the two sees the
/// other: no job is left to workers that all sleep. `sleeping` changes under `calls` alone, so it is exact: whoever
/// wakes a worker takes it off `sleeping` and adds a call, and the worker that wakes uses the call up. Whoever queues
/// takes that mutex only if a worker sleeps.
struct Queue<B> {
    checks: Mutex<Receiver<CheckJob<B>>>,
    seals: Mutex<Receiver<SealJob<B>>>, // served first: their group waits for nothing else
    waiting_checks: AtomicUsize,        // counted before they are sent, until they are received
    waiting_seals: AtomicUsize,         // the same
    jobs: AtomicUsize,                  // the same of both kinds
    sleeping: AtomicUsize,
    closing: AtomicBool,
    calls: Mutex<usize>, // workers that were called and have not woken yet
    work: Condvar,       // there is a call, or the end
}

struct Senders<B> {
    checks: Sender<CheckJob<B>>,
    seals: Sender<SealJob<B>>,
}

#[derive(Default)]
struct State {
    verdicts: VecDeque<Option<Verdict>>, // of tickets first, first + 1, …; None, or not there yet, while on its way
    first: u64,                          // ticket of verdicts[0]
    woken: bool,                         // a byte is on its way to the event loop
    broken: bool,
}

struct Shared<B> {
    queue: Queue<B>,
    state: Mutex<State>,
    wake: UnixStream,
    workers: usize,
}

/// The entries that one sync makes durable; parts keep the order in which they were added.
///
/// One thread adds parts, and none is added any more once somebody waits: then `count` is final.
#[derive(Default)]
pub struct Group {
    count: AtomicUsize, // parts that were added
    parts: Mutex<Parts>,
    complete: Condvar,
}

#[derive(Default)]
struct Parts {
    items: Vec<Option<Part>>, // by index, as far as they are there
    filled: usize,
    awaited: bool, // somebody waits
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

impl Group {
    pub fn add_record(&self, data: Vec<u8>) {
        let index = self.reserve();
        self.fill([(index, Some(Part::Record(data)))].into_iter());
    }

    fn reserve(&self) -> usize {
        self.count.fetch_add(1, SeqCst)
    }

    /// Put parts in their places; None: it could not be made.
    fn fill(&self, made: impl Iterator<Item = (usize, Option<Part>)>) {
        let mut parts = lock(&self.parts);
        for (index, part) in made {
            if parts.items.len() <= index {
                parts.items.resize_with(index + 1, || None);
            }
            parts.broken |= part.is_none();
            parts.items[index] = part;
            parts.filled += 1;
        }
        if parts.awaited && parts.filled == self.count.load(SeqCst) {
            self.complete.notify_all();
        }
    }

    /// Wait until every entry is sealed, then hand the parts to `take`.
    pub fn wait<R>(&self, take: impl FnOnce(&mut dyn Iterator<Item = &Part>) -> R) -> Result<R, Broken> {
        let mut parts = lock(&self.parts);
        parts.awaited = true;
        while parts.filled < self.count.load(SeqCst) {
            parts = self.complete.wait(parts).unwrap_or_else(PoisonError::into_inner);
        }
        if parts.broken { Err(Broken) } else { Ok(take(&mut parts.items.iter().flatten())) }
    }
}

pub struct Pool<B: AsRef<[u8]> + Send + 'static> {
    shared: Arc<Shared<B>>,
    senders: Senders<B>,
    rules: Mutex<Arc<Rules>>,
    next: AtomicU64, // ticket of the next submission
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<B: AsRef<[u8]> + Send + 'static> Pool<B> {
    /// Start `workers` threads; the stream is readable when `take` has something to give.
    pub fn start(workers: usize, nice: i32, rules: Rules) -> std::io::Result<(Self, UnixStream)> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let (checks, checks_out) = channel();
        let (seals, seals_out) = channel();
        let queue = Queue {
            checks: Mutex::new(checks_out),
            seals: Mutex::new(seals_out),
            waiting_checks: AtomicUsize::new(0),
            waiting_seals: AtomicUsize::new(0),
            jobs: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            calls: Mutex::new(0),
            work: Condvar::new(),
        };
        let workers = workers.max(1);
        let shared = Arc::new(Shared { queue, state: Mutex::default(), wake, workers });
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
        let pool = Self {
            shared,
            senders: Senders { checks, seals },
            rules: Mutex::new(Arc::new(rules)),
            next: AtomicU64::new(0),
            threads: Mutex::new(threads),
        };
        Ok((pool, woken))
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
        let ticket = self.next.fetch_add(1, SeqCst);
        self.shared.queue.waiting_checks.fetch_add(1, SeqCst);
        self.shared.queue.add(|| self.senders.checks.send(CheckJob { ticket, raw, rules }).is_ok());
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
        self.shared.queue.waiting_seals.fetch_add(1, SeqCst);
        self.shared.queue.add(|| self.senders.seals.send(job).is_ok());
    }

    /// Submissions without a verdict yet, and verdicts not taken yet.
    pub fn outstanding(&self) -> usize {
        usize::try_from(self.next.load(SeqCst) - lock(&self.shared.state).first).unwrap_or(usize::MAX)
    }

    /// Finish what was begun and end the threads. Further submissions would never be answered.
    pub fn close(&self) {
        self.shared.queue.close();
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

/// None if sealing panicked, or the entry is too large to be one.
fn sealed_part<B: AsRef<[u8]>>(job: &SealJob<B>) -> Option<Part> {
    catch_unwind(AssertUnwindSafe(|| seal(&job.key, job.raw.as_ref(), &job.place))).ok().flatten().map(Part::Entry)
}

impl<B> Queue<B> {
    /// Count a job, send it, and wake a worker if one sleeps.
    fn add(&self, send: impl FnOnce() -> bool) {
        self.jobs.fetch_add(1, SeqCst);
        let sent = send();
        debug_assert!(sent, "the receivers live as long as the pool");
        if self.sleeping.load(SeqCst) == 0 {
            return;
        }
        let mut calls = lock(&self.calls);
        if self.sleeping.load(SeqCst) > 0 {
            self.sleeping.fetch_sub(1, SeqCst);
            *calls += 1;
            drop(calls);
            self.work.notify_one();
        }
    }

    fn close(&self) {
        self.closing.store(true, SeqCst);
        drop(lock(&self.calls)); // a worker that has looked at `closing` waits by now
        self.work.notify_all();
    }

    /// The next work, or None at the end, when nothing is left.
    fn next(&self, workers: usize) -> Option<Work<B>> {
        loop {
            if let Some(work) = self.receive(workers) {
                return Some(work);
            }
            if !self.sleep() {
                return None;
            }
        }
    }

    /// Wait for a call; false at the end, when nothing is left. Returns at once if there are jobs.
    fn sleep(&self) -> bool {
        let mut calls = lock(&self.calls);
        self.sleeping.fetch_add(1, SeqCst);
        if self.jobs.load(SeqCst) > 0 {
            self.sleeping.fetch_sub(1, SeqCst);
            drop(calls);
            std::thread::yield_now(); // a job was counted and is being sent
            return true;
        }
        while *calls == 0 && !self.closing.load(SeqCst) {
            calls = self.work.wait(calls).unwrap_or_else(PoisonError::into_inner);
        }
        if *calls > 0 {
            *calls -= 1;
            return true;
        }
        self.sleeping.fetch_sub(1, SeqCst);
        self.jobs.load(SeqCst) > 0
    }

    fn receive(&self, workers: usize) -> Option<Work<B>> {
        let seals = self.share(&self.seals, &self.waiting_seals, workers);
        if !seals.is_empty() {
            return Some(Work::Seal(seals));
        }
        let checks = self.share(&self.checks, &self.waiting_checks, workers);
        (!checks.is_empty()).then_some(Work::Check(checks))
    }

    /// One worker's share of what waits.
    fn share<T>(&self, receiver: &Mutex<Receiver<T>>, waiting: &AtomicUsize, workers: usize) -> Vec<T> {
        let share = waiting.load(SeqCst).div_ceil(workers).min(BATCH);
        if share == 0 {
            return Vec::new();
        }
        let jobs: Vec<_> = lock(receiver).try_iter().take(share).collect();
        waiting.fetch_sub(jobs.len(), SeqCst);
        self.jobs.fetch_sub(jobs.len(), SeqCst);
        jobs
    }
}

impl<B: AsRef<[u8]> + Send + 'static> Shared<B> {
    fn serve(&self) {
        let mut keys = KeyCache::default();
        while let Some(work) = self.queue.next(self.workers) {
            match work {
                Work::Seal(jobs) => {
                    let sealed: Vec<_> = jobs.iter().map(sealed_part).collect();
                    if sealed.iter().any(Option::is_none) {
                        self.report(|state| state.broken = true);
                    }
                    let mut parts = sealed.into_iter();
                    for run in jobs.chunk_by(|job, next| Arc::ptr_eq(&job.group, &next.group)) {
                        run[0].group.fill(run.iter().map(|job| job.index).zip(parts.by_ref()));
                    }
                }
                Work::Check(jobs) => {
                    let verdicts = catch_unwind(AssertUnwindSafe(|| {
                        check_all(jobs.iter().map(|job| (job.raw.as_ref(), &*job.rules)), &mut keys)
                    }));
                    self.report(|state| match verdicts {
                        Ok(verdicts) => {
                            for (job, verdict) in jobs.iter().zip(verdicts) {
                                let at = usize::try_from(job.ticket - state.first).unwrap_or(usize::MAX);
                                if state.verdicts.len() <= at {
                                    state.verdicts.resize_with(at + 1, || None);
                                }
                                state.verdicts[at] = Some(verdict);
                            }
                        }
                        Err(_) => state.broken = true,
                    });
                }
            }
        }
    }

    /// Change the state and wake the event loop if it has something to take.
    fn report(&self, change: impl FnOnce(&mut State)) {
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
        for _ in 0..60_000 {
            // Every worker sleeps in the end and is counted: none is forgotten, none counted twice.
            if pool.shared.queue.sleeping.load(SeqCst) == 4 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(pool.shared.queue.sleeping.load(SeqCst), 4);
        assert_eq!((pool.shared.queue.jobs.load(SeqCst), *lock(&pool.shared.queue.calls)), (0, 0));
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
