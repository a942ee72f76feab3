//! The pool with its threads. The tests wait for events without a time limit; nothing sleeps to
//! make them happen.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

use throng_testkit::{eventually, hold_up};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

fn id(slot: u32) -> ConnId {
    ConnId::new(0, slot, 1)
}

fn route() -> Arc<str> {
    "/work".into()
}

fn pool(settings: WorkerSettings) -> Workers {
    Workers::new(settings, |_| ()).unwrap()
}

fn of_size(pool_size: usize) -> WorkerSettings {
    WorkerSettings::default().pool_size(pool_size)
}

fn in_a_minute() -> Instant {
    Instant::now() + TIMEOUT
}

/// A job that runs until it is let go, and says so when it begins.
struct Blocked {
    begun: Receiver<()>,
    go: Sender<()>,
}

impl Blocked {
    fn submit(pool: &Workers, slot: u32) -> Self {
        let ((say, begun), (go, wait)) = (channel(), channel());
        let work = move || {
            say.send(()).unwrap();
            let _ = wait.recv();
        };
        assert_eq!(
            pool.submit(id(slot), &route(), OverflowPolicy::Refuse, Box::new(work)),
            Ok(SubmitOutcome::Queued)
        );
        Self { begun, go }
    }

    fn running(pool: &Workers, slot: u32) -> Self {
        let blocked = Self::submit(pool, slot);
        blocked.begun.recv_timeout(TIMEOUT).unwrap();
        blocked
    }
}

/// By connection: in which round of its submitter it was, and on which thread it ran.
type Seen = HashMap<ConnId, Vec<(u32, ThreadId)>>;

/// Submits from several threads at once, to workers whose jobs take times of all kinds, with a
/// queue that is often full. Every job runs, the jobs of a connection run in order and one at a
/// time, and each connection that waited for capacity is notified of it.
fn storm(settings: WorkerSettings) {
    const THREADS: u32 = 4;
    const SLOTS: u32 = 5;
    const ROUNDS: u32 = 400;
    let notified = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
    let tell = Arc::clone(&notified);
    let pool = Workers::new(settings, move |id| {
        tell.0.lock().unwrap().push(id);
        tell.1.notify_all();
    })
    .unwrap();
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let at_once: Arc<Vec<AtomicUsize>> =
        Arc::new((0..THREADS * SLOTS).map(|_| AtomicUsize::new(0)).collect());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, notified, seen, at_once) = (&pool, &notified, &seen, &at_once);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let slot = thread * SLOTS + round % SLOTS;
                    let (seen, at_once) = (Arc::clone(seen), Arc::clone(at_once));
                    let work = move || {
                        let busy = &at_once[slot as usize];
                        assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                        // Of all lengths: none, a turn of others, and longer than it takes to fall
                        // asleep.
                        match (round * 7 + slot) % 11 {
                            0 => hold_up(Duration::from_micros(300)),
                            1..4 => std::thread::yield_now(),
                            _ => {}
                        }
                        let me = std::thread::current().id();
                        seen.lock().unwrap().entry(id(slot)).or_default().push((round, me));
                        busy.fetch_sub(1, Ordering::SeqCst);
                    };
                    let outcome = pool
                        .submit(
                            id(slot),
                            &route(),
                            OverflowPolicy::WaitAndNotify(1),
                            Box::new(work),
                        )
                        .unwrap();
                    if outcome == SubmitOutcome::Waiting {
                        // As a connection does that is not read.
                        let (list, changed) = &**notified;
                        let is_mine = |list: &mut Vec<ConnId>| {
                            let at = list.iter().position(|&other| other == id(slot));
                            at.map(|at| list.swap_remove(at)).is_none()
                        };
                        let guard = list.lock().unwrap();
                        let (guard, timeout) =
                            changed.wait_timeout_while(guard, TIMEOUT, is_mine).unwrap();
                        assert!(!timeout.timed_out(), "never notified of room");
                        drop(guard);
                    }
                }
            });
        }
    });
    assert!(pool.stop(in_a_minute()).is_empty(), "a worker slept while there was work");
    let seen = seen.lock().unwrap();
    let total: usize = seen.values().map(Vec::len).sum();
    assert_eq!(total, (THREADS * ROUNDS) as usize);
    for (id, jobs) in &*seen {
        assert!(jobs.is_sorted_by_key(|(round, _)| round), "{id:?}: {jobs:?}");
        if settings.affinity {
            assert!(jobs.iter().all(|(_, thread)| *thread == jobs[0].1), "{id:?} moved");
        }
    }
    assert!(notified.0.lock().unwrap().is_empty());
    let metrics = pool.metrics();
    assert_eq!((metrics.jobs, metrics.panics), (u64::from(THREADS * ROUNDS), 0));
    assert_eq!((metrics.queue_depth, metrics.refused, metrics.cancelled), (0, 0, 0));
}

#[test]
fn jobs_of_a_connection_run_in_order_and_never_at_once() {
    storm(of_size(3));
}

#[test]
fn with_affinity_each_connection_stays_with_its_worker() {
    storm(WorkerSettings { affinity: true, ..of_size(3) });
}

#[test]
fn a_queue_that_is_always_full_loses_nothing_and_notifies_every_connection() {
    storm(WorkerSettings { queue_size: 2, ..of_size(2) });
    storm(WorkerSettings { queue_size: 1, affinity: true, ..of_size(3) });
}

/// If one of them slept, the barrier would never open.
#[test]
fn as_many_connections_as_there_are_workers_block_at_once() {
    let pool = pool(of_size(6));
    let barrier = Arc::new(Barrier::new(6));
    let (done, ends) = channel();
    for round in 0..50 {
        for slot in 0..6 {
            let (barrier, done) = (Arc::clone(&barrier), done.clone());
            let work = move || {
                barrier.wait();
                done.send(()).unwrap();
            };
            pool.submit(id(slot), &route(), OverflowPolicy::Refuse, Box::new(work)).unwrap();
        }
        for _ in 0..6 {
            ends.recv_timeout(TIMEOUT)
                .unwrap_or_else(|_| panic!("a worker slept in round {round}"));
        }
    }
    assert!(pool.stop(in_a_minute()).is_empty());
}

#[test]
fn a_full_queue_refuses_where_that_was_asked_for_and_drops_the_job() {
    let pool = pool(WorkerSettings { queue_size: 1, overload: Overload::Close, ..of_size(1) });
    let first = Blocked::running(&pool, 1);
    let second = Blocked::submit(&pool, 1);
    let (held, dropped) = channel::<()>();
    let work = move || held.send(()).unwrap();
    assert_eq!(
        pool.submit(id(2), &route(), OverflowPolicy::WaitAndNotify(1), Box::new(work)),
        Err(Busy)
    );
    assert!(dropped.recv_timeout(TIMEOUT).is_err(), "dropped, not run");
    let metrics = pool.metrics();
    assert_eq!((metrics.refused, metrics.queue_depth, metrics.workers), (1, 1, 1));
    assert_eq!(&*metrics.running[0].route, "/work");
    drop((first.go, second.go));
    assert!(pool.stop(in_a_minute()).is_empty());
    assert_eq!(pool.metrics().jobs, 2);
    assert_eq!(
        pool.submit(id(1), &route(), OverflowPolicy::WaitAndNotify(1), Box::new(|| ())),
        Err(Busy)
    );
}

#[test]
fn a_panic_is_counted_and_its_worker_goes_on() {
    let pool = pool(of_size(1));
    for slot in 0..3 {
        pool.submit(
            id(slot),
            &route(),
            OverflowPolicy::Refuse,
            Box::new(|| panic!("as the test wants it")),
        )
        .unwrap();
    }
    drop(Blocked::running(&pool, 0).go);
    assert!(pool.stop(in_a_minute()).is_empty());
    assert_eq!((pool.metrics().panics, pool.metrics().jobs), (3, 4));
}

#[test]
fn a_connection_that_has_gone_leaves_its_room_to_others() {
    let (tell, notified) = channel();
    let tell = Mutex::new(tell);
    let settings = WorkerSettings { queue_size: 1, ..of_size(1) };
    let pool = Workers::new(settings, move |id| tell.lock().unwrap().send(id).unwrap()).unwrap();
    let first = Blocked::running(&pool, 1);
    let (ran, runs) = channel();
    let submit = |slot| {
        let ran = ran.clone();
        let work = move || ran.send(slot).unwrap();
        pool.submit(id(slot), &route(), OverflowPolicy::WaitAndNotify(1), Box::new(work)).unwrap()
    };
    let places = [submit(1), submit(2), submit(3)];
    assert_eq!(places, [SubmitOutcome::Queued, SubmitOutcome::Waiting, SubmitOutcome::Waiting]);
    pool.cancel(id(2));
    assert!(pool.wants_more(id(2)) && !pool.wants_more(id(3)));
    pool.cancel(id(1));
    assert_eq!(notified.recv_timeout(TIMEOUT), Ok(id(3)));
    drop(first.go);
    assert_eq!(runs.recv_timeout(TIMEOUT), Ok(3));
    assert!(pool.stop(in_a_minute()).is_empty());
    let metrics = pool.metrics();
    assert_eq!((metrics.jobs, metrics.cancelled), (2, 2));
    drop(ran);
    assert!(runs.recv().is_err(), "nothing else ran");
}

#[test]
fn a_job_that_never_returns_ends_the_wait_at_the_deadline_and_is_named() {
    let pool = pool(of_size(2));
    let stuck = Blocked::running(&pool, 1);
    let never = Blocked::submit(&pool, 1);
    let found = pool.stop(Instant::now() + Duration::from_millis(50));
    assert_eq!(found.len(), 1);
    assert_eq!(&*found[0].route, "/work");
    assert!(found[0].runs_for >= Duration::from_millis(50));
    drop(stuck.go);
    assert!(never.begun.recv().is_err(), "what had not begun is dropped");
}

#[test]
fn fewer_threads_than_asked_for_are_an_error_at_start_and_still_run_jobs() {
    for affinity in [false, true] {
        let pool = pool(WorkerSettings { affinity, ..of_size(7) });
        let given = AtomicUsize::new(0);
        let stingy = |name, run| match given.fetch_add(1, Ordering::SeqCst) {
            0..3 => spawn(name, run),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        };
        let message = pool.start_with(stingy).unwrap_err().to_string();
        for part in ["workers.pool_size is 7", "started 3 threads", "lower it", "ulimit -u"] {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
        let barrier = Arc::new(Barrier::new(3));
        for slot in 0..3 {
            let barrier = Arc::clone(&barrier);
            let work = move || {
                barrier.wait();
            };
            pool.submit(id(slot), &route(), OverflowPolicy::Refuse, Box::new(work)).unwrap();
        }
        assert!(pool.stop(in_a_minute()).is_empty());
        assert_eq!((pool.metrics().jobs, pool.metrics().workers), (3, 3));
    }
}

#[test]
fn nothing_is_started_before_it_is_needed() {
    let pool = pool(of_size(2));
    assert_eq!(pool.metrics(), WorkerMetrics::default());
    pool.cancel(id(1));
    assert!(pool.stop(in_a_minute()).is_empty());
}

#[test]
fn a_connection_without_credits_is_saturated_until_half_of_them_are_released() {
    let pool = pool(of_size(2));
    let submit =
        || pool.submit(id(1), &route(), OverflowPolicy::WaitAndNotify(1), Box::new(|| ())).unwrap();
    let places: Vec<SubmitOutcome> = (0..MAX_CREDITS).map(|_| submit()).collect();
    assert_eq!(places[MAX_CREDITS - 1], SubmitOutcome::Saturated);
    assert!(places[..MAX_CREDITS - 1].iter().all(|outcome| *outcome == SubmitOutcome::Queued));
    let more: Vec<bool> = (0..MAX_CREDITS).map(|_| pool.release_credits(id(1), 1)).collect();
    assert_eq!(more, [false, false, false, true, true, true, true, true]);
    assert_eq!(submit(), SubmitOutcome::Queued);
    pool.cancel(id(1));
    assert!(pool.stop(in_a_minute()).is_empty());
    assert!(pool.release_credits(id(1), 1), "all credits come back in the end");
}

/// Large messages wait in numbers as small as their bytes are many.
#[test]
fn a_job_that_holds_many_bytes_takes_many_credits() {
    assert_eq!(
        [0, 1, CREDIT_BYTES - 1, CREDIT_BYTES, 3 * CREDIT_BYTES].map(credits_for),
        [1, 1, 1, 2, 4]
    );
    assert_eq!(credits_for(usize::MAX), MAX_CREDITS);
    let pool = pool(of_size(1));
    let submit = |bytes| {
        pool.submit(
            id(1),
            &route(),
            OverflowPolicy::WaitAndNotify(credits_for(bytes)),
            Box::new(|| ()),
        )
        .unwrap()
    };
    assert_eq!(submit(1 << 20), SubmitOutcome::Saturated);
    assert!(pool.release_credits(id(1), credits_for(1 << 20)));
    assert_eq!([submit(100), submit(5 * CREDIT_BYTES)], [SubmitOutcome::Queued; 2]);
    assert_eq!(submit(100), SubmitOutcome::Saturated);
    assert_eq!(
        [1, credits_for(5 * CREDIT_BYTES)].map(|credits| pool.release_credits(id(1), credits)),
        [false, true]
    );
}

/// With affinity only one worker can run a job that waits for capacity, and that worker must still
/// be there when the queue has capacity.
#[test]
fn jobs_that_wait_for_room_run_before_the_end_too() {
    let settings = WorkerSettings { affinity: true, queue_size: 1, ..of_size(2) };
    let pool = pool(settings);
    let runs = Blocked::running(&pool, 0);
    let queued = Blocked::submit(&pool, 2);
    let (say, has_run) = channel();
    let work = Box::new(move || say.send(()).unwrap());
    assert_eq!(
        pool.submit(id(1), &route(), OverflowPolicy::Wait, work),
        Ok(SubmitOutcome::Waiting)
    );
    let stopping = std::thread::spawn({
        let pool = pool.clone();
        move || pool.stop(in_a_minute())
    });
    // It would end if it believed that it may.
    eventually("the idle worker has looked", || pool.inner.lock().looked_at_end > 0);
    assert_eq!(pool.inner.lock().alive, 2);
    runs.go.send(()).unwrap();
    queued.begun.recv_timeout(TIMEOUT).unwrap();
    queued.go.send(()).unwrap();
    assert_eq!(stopping.join().unwrap(), []);
    has_run.recv_timeout(Duration::ZERO).unwrap();
    assert_eq!((pool.metrics().queue_depth, pool.metrics().cancelled), (0, 0));
}
