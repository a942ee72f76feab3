//! One backend, shared by all threads: the control thread writes its state, shards count their use
//! of it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use throng_io::PeerAddress;

use serde::{Deserialize, Serialize};

use crate::recent::Recent;
use crate::wait_line::WaitLine;

/// The value of one unit of weight in [`Backend::share`]: a slow start rises in steps of a
/// hundredth.
pub const SHARES_PER_WEIGHT: u32 = 100;

/// The largest weight: shares of many backends still add up within 32 bits.
pub const MAX_WEIGHT: u32 = 1000;

/// Whether a backend is picked, and the fate of its tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The backend is picked.
    Up,
    /// Its health checks or its connections failed: it is picked only where no backend is up.
    /// Failed checks also close its tunnels, spread out.
    Down,
    /// An operator took it out: it is not picked, and its tunnels are closed within the drain's
    /// window.
    Draining,
    /// No longer wanted by the file, an operator or its own registration: it is not picked, and
    /// exists until its last tunnel ends.
    Removed,
}

impl State {
    /// Returns its word in the API, the metrics and the status page.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Draining => "draining",
            Self::Removed => "removed",
        }
    }
}

/// The kind of exchange that a client wants from a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A response.
    Request,
    /// A tunnel: a WebSocket handshake, or a connection that is passed through.
    Tunnel,
}

/// A backend. Tunnels and requests refer to it by an `Arc`, never by its index in a configuration,
/// so a change of the configuration affects none of them, and its counts survive the change.
#[derive(Debug)]
pub struct Backend {
    /// Unlike the address, each has its own: two pools may have the same address.
    id: u64,
    address: PeerAddress,
    key: u64,
    weight: AtomicU32,
    share: AtomicU32,
    state: AtomicU8,
    handshakes: AtomicU32,
    /// Live tunnels in the upper half, requests under way in the lower one: their sum is limited,
    /// and a request that becomes a tunnel must not count twice, nor not at all.
    open: AtomicU64,
    /// The limit of their sum; 0: none.
    max_open: AtomicU32,
    upgrades: AtomicU32,
    /// Whether it serves only while no other of its pool is up.
    is_backup: AtomicBool,
    /// Requests that wait for this backend alone.
    line: WaitLine,
    /// Failed connections since the last successful one.
    refusals: AtomicU32,
    /// Requests on reused connections without an answer in time.
    silences: AtomicU32,
    totals: Totals,
    /// Times from the first byte sent to the head of the answer.
    handshake_times: Mutex<Recent>,
    began: Instant,
}

/// Counters of a backend since it was added; they never decrease.
#[derive(Debug, Default)]
pub struct Totals {
    /// Tunnels opened.
    pub tunnels: AtomicU64,
    /// HTTP requests answered (not upgraded).
    pub requests: AtomicU64,
    /// Connections begun.
    pub connects: AtomicU64,
    /// Connects, handshakes and answers that failed: refused, timed out, or an answer that broke a
    /// rule.
    pub failures: AtomicU64,
    /// Tunnels that the balancer closed: of a drained, crowded or dead backend.
    pub closed: AtomicU64,
    /// Tunnels that ended without a Close frame from the backend's side.
    pub lost: AtomicU64,
    /// Final responses, 101 included, by class: 1xx to 5xx.
    pub statuses: [AtomicU64; 5],
    /// The times to their heads.
    pub first_bytes: FirstBytes,
}

/// The counters of [`Totals`] at a moment, for a successor of this process to count on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct CarriedTotals {
    tunnels: u64,
    requests: u64,
    connects: u64,
    failures: u64,
    closed: u64,
    lost: u64,
    statuses: [u64; 5],
    /// By the bounds of [`FIRST_BYTE_BOUNDS`].
    first_bytes: Vec<u64>,
    micros: u64,
}

impl CarriedTotals {
    /// Returns the tunnels that were closed.
    pub(crate) fn closed(&self) -> u64 {
        self.closed
    }

    /// Returns the successful answers.
    pub(crate) fn answered(&self) -> u64 {
        self.tunnels.wrapping_add(self.requests)
    }
}

impl Totals {
    /// Returns all counters, to be carried to a successor.
    pub(crate) fn carried(&self) -> CarriedTotals {
        let Self {
            tunnels,
            requests,
            connects,
            failures,
            closed,
            lost,
            statuses,
            first_bytes: FirstBytes { buckets, micros },
        } = self;
        let read = |count: &AtomicU64| count.load(Relaxed);
        CarriedTotals {
            tunnels: read(tunnels),
            requests: read(requests),
            connects: read(connects),
            failures: read(failures),
            closed: read(closed),
            lost: read(lost),
            statuses: statuses.each_ref().map(read),
            first_bytes: buckets.iter().map(read).collect(),
            micros: read(micros),
        }
    }

    /// Counts on from a predecessor's counters.
    pub(crate) fn add(&self, carried: &CarriedTotals) {
        let Self {
            tunnels,
            requests,
            connects,
            failures,
            closed,
            lost,
            statuses,
            first_bytes: FirstBytes { buckets, micros },
        } = self;
        for (count, more) in [
            (tunnels, carried.tunnels),
            (requests, carried.requests),
            (connects, carried.connects),
            (failures, carried.failures),
            (closed, carried.closed),
            (lost, carried.lost),
            (micros, carried.micros),
        ] {
            count.fetch_add(more, Relaxed);
        }
        let of_statuses = statuses.iter().zip(&carried.statuses);
        for (count, more) in of_statuses.chain(buckets.iter().zip(&carried.first_bytes)) {
            count.fetch_add(*more, Relaxed);
        }
    }
}

/// Bounds of [`FirstBytes::buckets`], in microseconds.
pub(crate) const FIRST_BYTE_BOUNDS: [u64; 12] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 2_500_000,
    10_000_000, 60_000_000,
];

/// Times from the first byte sent to a backend, or the beginning of its connection, to the head of
/// its final response. Plain counts without a lock: all shards record here.
#[derive(Debug, Default)]
pub struct FirstBytes {
    /// The number of times up to each bound and above the previous one; the last: longer times.
    buckets: [AtomicU64; FIRST_BYTE_BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl FirstBytes {
    pub(crate) fn note(&self, micros: u64) {
        let at = FIRST_BYTE_BOUNDS.partition_point(|&bound| bound < micros);
        self.buckets[at].fetch_add(1, Relaxed);
        self.micros.fetch_add(micros, Relaxed);
    }

    /// Returns for each bound, in microseconds, the number of times up to it.
    pub(crate) fn up_to(&self) -> [(u64, u64); FIRST_BYTE_BOUNDS.len()] {
        let mut sum = 0;
        std::array::from_fn(|at| {
            sum += self.buckets[at].load(Relaxed);
            (FIRST_BYTE_BOUNDS[at], sum)
        })
    }

    /// Returns the numbers of times by bucket, and their sum in microseconds, for a successor.
    pub(crate) fn carried(&self) -> (Vec<u64>, u64) {
        let buckets = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        (buckets, self.micros.load(Relaxed))
    }

    /// Counts on from the numbers and the sum of a predecessor.
    pub(crate) fn add(&self, buckets: &[u64], micros: u64) {
        for (bucket, more) in self.buckets.iter().zip(buckets) {
            bucket.fetch_add(*more, Relaxed);
        }
        self.micros.fetch_add(micros, Relaxed);
    }

    /// Returns the number of all times, and their sum in microseconds.
    pub(crate) fn all(&self) -> (u64, u64) {
        let count = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum();
        (count, self.micros.load(Relaxed))
    }
}

/// The times of [`FirstBytes`] at a moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FirstByteTimes {
    /// For each of 12 bounds in microseconds, the number of responses that took no longer.
    pub up_to_micros: [(u64, u64); FIRST_BYTE_BOUNDS.len()],
    /// The number of responses.
    pub count: u64,
    /// The sum of the response times, in microseconds.
    pub sum_micros: u64,
}

impl FirstByteTimes {
    pub(crate) fn of(times: &FirstBytes) -> Self {
        let (count, sum_micros) = times.all();
        Self { up_to_micros: times.up_to(), count, sum_micros }
    }
}

impl Backend {
    /// Creates a backend that is up, with nothing open. `weight` is clamped to 1..=[`MAX_WEIGHT`].
    #[must_use]
    pub fn new(address: impl Into<PeerAddress>, weight: u32) -> Self {
        let address = address.into();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let weight = weight.clamp(1, MAX_WEIGHT);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            address,
            key: key_of(address),
            weight: weight.into(),
            share: (weight * SHARES_PER_WEIGHT).into(),
            state: AtomicU8::new(State::Up as u8),
            handshakes: AtomicU32::new(0),
            open: AtomicU64::new(0),
            max_open: AtomicU32::new(0),
            upgrades: AtomicU32::new(0),
            is_backup: AtomicBool::new(false),
            line: WaitLine::default(),
            refusals: AtomicU32::new(0),
            silences: AtomicU32::new(0),
            totals: Totals::default(),
            handshake_times: Mutex::new(Recent::new()),
            began: Instant::now(),
        }
    }

    /// Returns its number in this process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns its address, which is also its name.
    #[must_use]
    pub fn address(&self) -> PeerAddress {
        self.address
    }

    /// Returns a hash of its address alone, the same in every process, for rendezvous hashing and
    /// cookies.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Returns the configured weight, 1 to [`MAX_WEIGHT`].
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed)
    }

    /// Sets the weight, clamped as in [`Backend::new`], and the whole share for it.
    pub fn set_weight(&self, weight: u32) {
        let weight = weight.clamp(1, MAX_WEIGHT);
        self.weight.store(weight, Relaxed);
        self.share.store(weight * SHARES_PER_WEIGHT, Relaxed);
    }

    /// Returns its current share of new connections, in hundredths of a weight: less than its
    /// weight during a slow start.
    #[must_use]
    pub fn share(&self) -> u32 {
        self.share.load(Relaxed)
    }

    /// Sets its current share; never less than 1.
    pub fn set_share(&self, share: u32) {
        self.share.store(share.max(1), Relaxed);
    }

    /// Returns its state.
    #[must_use]
    pub fn state(&self) -> State {
        match self.state.load(Relaxed) {
            0 => State::Up,
            1 => State::Down,
            2 => State::Draining,
            _ => State::Removed,
        }
    }

    /// Sets its state. Only the control thread does this.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u8, Relaxed);
    }

    /// Connects and handshakes under way.
    #[must_use]
    pub fn handshakes(&self) -> u32 {
        self.handshakes.load(Relaxed)
    }

    /// Live tunnels.
    #[must_use]
    pub fn tunnels(&self) -> u32 {
        (self.open.load(Relaxed) >> 32) as u32
    }

    /// HTTP requests under way, handshakes included.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.open.load(Relaxed) as u32
    }

    /// Returns the limit of requests under way and live tunnels together; 0: none.
    #[must_use]
    pub fn max_connections(&self) -> u32 {
        self.max_open.load(Relaxed)
    }

    /// Sets the limit of requests under way and live tunnels together; 0: none. What is open
    /// beyond a lower limit stays.
    pub fn set_max_connections(&self, most: u32) {
        self.max_open.store(most, Relaxed);
    }

    /// Returns whether it takes one more request or tunnel, and one more handshake of at most `cap`
    /// (0: no cap).
    #[must_use]
    pub fn has_free_permits(&self, cap: u32) -> bool {
        let most = self.max_connections();
        (cap == 0 || self.handshakes() < cap)
            && (most == 0 || open_of(self.open.load(Relaxed)) < u64::from(most))
    }

    /// Returns the number that picks for `wanted` compare. Tunnels do not count for requests: most
    /// of them are idle.
    #[must_use]
    pub fn load(&self, wanted: Wanted) -> u32 {
        match wanted {
            Wanted::Request => self.requests(),
            Wanted::Tunnel => self.tunnels().saturating_add(self.upgrades.load(Relaxed)),
        }
    }

    /// Returns its counters since it was added.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the connections in a row that it did not accept: they decide between two backends
    /// that are down.
    #[must_use]
    pub fn refusals(&self) -> u32 {
        self.refusals.load(Relaxed)
    }

    /// Records a connection that was refused or timed out.
    pub fn note_refusal(&self) {
        let _ = self.refusals.fetch_update(Relaxed, Relaxed, |now| now.checked_add(1));
    }

    /// Records a connection that was established.
    pub fn note_connection(&self) {
        // Read first: all shards share the cache line, and it is nearly always 0.
        if self.refusals() != 0 {
            self.refusals.store(0, Relaxed);
        }
    }

    /// Records a request on a reused connection without an answer in time.
    pub(crate) fn note_silence(&self) {
        self.silences.fetch_add(1, Relaxed);
    }

    /// Returns the generation of its connections: with every second silence a new one begins, and
    /// idle connections of earlier ones are not used again.
    pub(crate) fn generation(&self) -> u32 {
        self.silences.load(Relaxed) / 2
    }

    /// Returns whether it gets clients only while no other backend of its pool is up.
    #[must_use]
    pub fn is_backup(&self) -> bool {
        self.is_backup.load(Relaxed)
    }

    /// Sets whether it gets clients only while no other backend of its pool is up.
    pub fn set_backup(&self, is_backup: bool) {
        self.is_backup.store(is_backup, Relaxed);
    }

    /// Returns the requests that wait for this backend alone.
    pub(crate) fn line(&self) -> &WaitLine {
        &self.line
    }

    /// Begins one of at most `cap` handshakes in progress (0: no cap). Returns false if the cap is
    /// reached.
    #[must_use]
    pub fn begin_handshake(&self, cap: u32) -> bool {
        let room = |now: u32| (cap == 0 || now < cap).then_some(now + 1);
        self.handshakes.fetch_update(Relaxed, Relaxed, room).is_ok()
    }

    /// Ends a handshake.
    pub fn end_handshake(&self) {
        decrement(&self.handshakes);
    }

    /// Begins a request if fewer than [`max_connections`](Self::max_connections) requests and
    /// tunnels are open. Returns false otherwise.
    #[must_use]
    pub fn begin_request(&self, wanted: Wanted) -> bool {
        let most = match self.max_connections() {
            0 => u64::MAX,
            most => most.into(),
        };
        let more = |open: u64| (open_of(open) < most).then_some(open + REQUEST);
        let has_begun = self.open.fetch_update(Relaxed, Relaxed, more).is_ok();
        if has_begun && wanted == Wanted::Tunnel {
            self.upgrades.fetch_add(1, Relaxed);
        }
        has_begun
    }

    /// Counts a request that ended in any way.
    pub fn end_request(&self, wanted: Wanted) {
        self.end(REQUEST, |open| open as u32 > 0);
        if wanted == Wanted::Tunnel {
            decrement(&self.upgrades);
        }
    }

    /// Counts a tunnel that was opened.
    pub fn open_tunnel(&self) {
        self.open.fetch_add(TUNNEL, Relaxed);
        self.totals.tunnels.fetch_add(1, Relaxed);
    }

    /// Counts a request for a tunnel as a tunnel from now on. In between it never counts twice.
    pub fn turn_into_tunnel(&self) {
        self.open.fetch_add(TUNNEL - REQUEST, Relaxed);
        decrement(&self.upgrades);
        self.totals.tunnels.fetch_add(1, Relaxed);
    }

    /// Counts a tunnel that comes from the predecessor, which has counted its opening. It may be
    /// beyond the limit.
    pub fn adopt_tunnel(&self) {
        self.open.fetch_add(TUNNEL, Relaxed);
    }

    /// Counts a tunnel that ended.
    pub fn close_tunnel(&self) {
        self.end(TUNNEL, |open| open >= TUNNEL);
    }

    fn end(&self, one: u64, is_open: impl Fn(u64) -> bool) {
        let less = |open: u64| is_open(open).then(|| open - one);
        let taken = self.open.fetch_update(Relaxed, Relaxed, less);
        debug_assert!(taken.is_ok(), "given back more often than taken");
    }

    /// Records the head of a final response, and how long it took.
    pub fn note_answer(&self, status: u16, micros: u64) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.totals.statuses[class].fetch_add(1, Relaxed);
        self.totals.first_bytes.note(micros);
    }

    /// Records how long a handshake took.
    pub fn note_handshake(&self, micros: u64) {
        if let Ok(mut times) = self.handshake_times.lock() {
            times.note(self.began.elapsed(), micros);
        }
    }

    /// Returns the 99th percentile of the handshakes of the last 30 to 60 seconds, in microseconds;
    /// 0 if there were none.
    #[must_use]
    pub fn handshake_p99_micros(&self) -> u64 {
        self.handshake_times.lock().map_or(0, |mut times| times.p99_micros(self.began.elapsed()))
    }
}

/// One request, and one tunnel, in [`Backend::open`].
const REQUEST: u64 = 1;
const TUNNEL: u64 = 1 << 32;

/// Returns the requests and tunnels together.
const fn open_of(open: u64) -> u64 {
    (open >> 32) + (open & u32::MAX as u64)
}

/// A count below zero is a bug; in a release build it must not become four billion tunnels.
fn decrement(count: &AtomicU32) {
    let taken = count.fetch_update(Relaxed, Relaxed, |now| now.checked_sub(1));
    debug_assert!(taken.is_ok(), "given back more often than taken");
}

/// FNV-1a over the address as text: small, and the same on every machine and in every version.
fn key_of(address: PeerAddress) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    address.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend() -> Backend {
        Backend::new("127.0.0.1:9001".parse::<PeerAddress>().unwrap(), 2)
    }

    #[test]
    fn the_cap_of_handshakes_is_never_exceeded() {
        let backend = backend();
        let taken = (0..5).filter(|_| backend.begin_handshake(3)).count();
        assert_eq!((taken, backend.handshakes()), (3, 3));
        backend.end_handshake();
        assert!(backend.begin_handshake(3));
        assert!(backend.begin_handshake(0), "no cap");
    }

    #[test]
    fn requests_and_tunnels_together_never_exceed_the_limit() {
        let backend = backend();
        backend.set_max_connections(2);
        assert!(backend.begin_request(Wanted::Tunnel) && backend.begin_request(Wanted::Request));
        assert!(!backend.begin_request(Wanted::Request) && !backend.has_free_permits(0));
        backend.turn_into_tunnel();
        assert_eq!((backend.requests(), backend.tunnels()), (1, 1));
        assert_eq!(backend.load(Wanted::Tunnel), 1);
        assert!(!backend.begin_request(Wanted::Tunnel), "the tunnel has the request's permit");
        backend.close_tunnel();
        assert!(backend.has_free_permits(0) && backend.begin_request(Wanted::Tunnel));
        backend.set_max_connections(1);
        backend.end_request(Wanted::Request);
        assert!(!backend.begin_request(Wanted::Request), "the limit was lowered");
        backend.set_max_connections(0);
        assert!(backend.begin_request(Wanted::Request));
        assert_eq!((backend.requests(), backend.tunnels()), (2, 0));
    }

    #[test]
    fn threads_that_take_permits_at_once_do_not_exceed_the_limit() {
        let backend = std::sync::Arc::new(backend());
        backend.set_max_connections(3);
        let most = std::sync::Arc::new(AtomicU32::new(0));
        let work = |_| {
            let (backend, most) = (backend.clone(), most.clone());
            std::thread::spawn(move || {
                for _ in 0..20_000 {
                    if backend.begin_request(Wanted::Tunnel) {
                        let open = backend.open.load(Relaxed);
                        most.fetch_max(open_of(open) as u32, Relaxed);
                        backend.turn_into_tunnel();
                        backend.close_tunnel();
                    }
                }
            })
        };
        let threads: Vec<_> = (0..4).map(work).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(most.load(Relaxed) <= 3, "{most:?}");
        assert_eq!((open_of(backend.open.load(Relaxed)), backend.load(Wanted::Tunnel)), (0, 0));
    }

    #[test]
    fn a_weight_is_a_hundred_shares_and_less_in_a_slow_start() {
        let backend = backend();
        assert_eq!((backend.weight(), backend.share()), (2, 200));
        backend.set_share(0);
        assert_eq!(backend.share(), 1);
        backend.set_weight(0);
        assert_eq!((backend.weight(), backend.share()), (1, 100));
    }

    #[test]
    fn answers_are_counted_by_class_and_time() {
        let backend = backend();
        for (status, micros) in [(101, 1), (200, 1_000), (204, 1_001), (404, 70_000_000), (599, 0)]
        {
            backend.note_answer(status, micros);
        }
        let totals = backend.totals();
        assert_eq!(totals.statuses.each_ref().map(|it| it.load(Relaxed)), [1, 2, 0, 1, 1]);
        let up_to = totals.first_bytes.up_to();
        assert_eq!((up_to[0], up_to[1], up_to[11]), ((1_000, 3), (2_500, 4), (60_000_000, 4)));
        assert_eq!(totals.first_bytes.all(), (5, 70_002_002));
    }

    #[test]
    fn a_successor_counts_on_from_all_counters() {
        let (before, after) = (backend(), backend());
        let Totals { tunnels, requests, connects, failures, closed, lost, .. } = before.totals();
        for (at, count) in [tunnels, requests, connects, failures, closed, lost].iter().enumerate()
        {
            count.store(at as u64 + 1, Relaxed);
        }
        before.note_answer(200, 3_000);
        after.note_answer(404, 70_000_000);
        after.totals().add(&before.totals().carried());
        let sum = after.totals().carried();
        assert_eq!((sum.closed(), sum.answered(), sum.connects, sum.lost), (5, 3, 3, 6));
        assert_eq!(sum.statuses, [0, 1, 0, 1, 0]);
        assert_eq!(after.totals().first_bytes.all(), (2, 70_003_000));
        let text = serde_json::to_string(&sum).unwrap();
        assert_eq!(serde_json::from_str::<CarriedTotals>(&text).unwrap(), sum);
        // A release with fewer counters.
        assert_eq!(serde_json::from_str::<CarriedTotals>("{}").unwrap(), CarriedTotals::default());
    }

    #[test]
    fn every_state_comes_back_as_it_was_set() {
        let backend = backend();
        for state in [State::Up, State::Down, State::Draining, State::Removed] {
            backend.set_state(state);
            assert_eq!(backend.state(), state);
        }
    }
}
