//! HTTP in virtual time: clients that are too slow, and clients that are not.

use std::time::Duration;

use throng_engine::DrainPlan;
use throng_sim::plan::Drain;
use throng_sim::{
    Ask, Do, End, Expect, Pace, SECOND, ServiceStart, SimPlan, Take, World, WorldOutcome,
    hush_planned_panics,
};

const SECS: Duration = Duration::from_secs(1);

/// Peer 0 with these requests and this script.
fn plan(asks: &[Ask], script: Vec<Do>) -> SimPlan {
    let mut plan = SimPlan::calm(91);
    plan.limits.handshake_timeout = 10 * SECS;
    plan.limits.keep_alive_timeout = 20 * SECS;
    plan.limits.write_timeout = 10 * SECS;
    plan.limits.min_body_rate = Some(100);
    plan.limits.min_response_rate = Some(100);
    plan.add_http_client("http client", Expect::Anything, asks.to_vec(), script);
    plan
}

struct Report {
    /// Each answer's status, the bytes of its body, and whether it is whole.
    answers: Vec<(u16, usize, bool)>,
    end: End,
    /// When it ended, in seconds.
    at: u64,
    outcome: WorldOutcome,
}

fn run(plan: SimPlan) -> Report {
    let mut world = World::new(plan);
    while world.step() {}
    let peer = world.peer(0);
    let (end, at) = peer.end.expect("it has ended");
    let answers = &peer.reader.answers;
    let answers = answers.iter().map(|answer| (answer.status, answer.got, answer.whole)).collect();
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    Report { answers, end, at: at / SECOND, outcome }
}

/// Returns a script that writes so many bytes at a time, with so many milliseconds between.
fn drip(bytes: &[u8], at_a_time: usize, millis: u64) -> Vec<Do> {
    let lines = bytes
        .chunks(at_a_time)
        .flat_map(|piece| [Do::Write(piece.to_vec()), Do::Pause(millis * SECOND / 1000)]);
    lines.collect()
}

fn upload(take: Take, bytes: usize) -> Ask {
    Ask { take, upload: bytes, close: true, ..Ask::new(0, 0, 50) }
}

#[test]
fn a_head_that_drips_is_ended_with_408_at_the_handshake_timeout() {
    let ask = Ask::new(0, 0, 50);
    let head = ask.request(0);
    for first in [false, true] {
        // The first request's clock runs from the accept, a later one's from its first byte.
        let mut script = match first {
            true => vec![],
            false => vec![Do::Write(head.clone()), Do::UntilAnswered(1), Do::Pause(15 * SECOND)],
        };
        let again = Ask { number: u32::from(!first), ..ask };
        script.extend(drip(&again.request(0), 1, 1000));
        let report = run(plan(&[ask, again], script));
        assert_eq!(report.answers.last().map(|answer| answer.0), Some(408));
        let began = if first { 0 } else { 15 };
        assert!((began + 10..=began + 12).contains(&report.at), "{}", report.at);
        assert_eq!((report.end, report.outcome.stats.timeouts), (End::Finished, 1));
    }
}

#[test]
fn a_body_below_the_rate_is_ended_with_408_and_above_it_never() {
    for take in [Take::Whole, Take::Pieces] {
        let ask = upload(take, 20_000);
        let body = |millis| {
            let mut script = vec![Do::Write(ask.head(false))];
            script.extend(drip(&ask.request(0)[ask.head(false).len()..], 50, millis));
            run(plan(&[ask], script))
        };
        let slow = body(600);
        assert_eq!(slow.answers[0].0, 408, "{take:?}");
        assert!((10..=24).contains(&slow.at), "{take:?}: ended after {} s", slow.at);
        assert_eq!(slow.outcome.stats.timeouts, 1);
        let quick = body(450);
        assert_eq!(quick.answers, [(200, 50, true)], "{take:?}");
        assert!(quick.at > 170 && quick.outcome.stats.timeouts == 0, "{take:?}");
    }
}

/// Bytes of one request's body do not count for the next one's rate.
#[test]
fn a_quick_body_does_not_excuse_the_slow_one_after_it() {
    for take in [Take::Whole, Take::Pieces] {
        let quick = Ask { close: false, ..upload(take, 900) };
        let slow = Ask { number: 1, ..upload(take, 1000) };
        let mut script = vec![Do::Write(quick.request(0)), Do::Write(slow.head(false))];
        script.extend(drip(&slow.request(0)[slow.head(false).len()..], 20, 1000));
        let report = run(plan(&[quick, slow], script));
        assert_eq!(report.answers.last().map(|answer| answer.0), Some(408));
        assert!((10..=12).contains(&report.at), "{take:?}: {}", report.at);
    }
}

/// The timeout of the head applies only to the head; a body that keeps its rate does not use it up.
#[test]
fn a_body_has_its_own_time_after_a_slow_head() {
    for take in [Take::Whole, Take::Pieces, Take::Drop] {
        let mut ask = upload(take, if take == Take::Drop { 1000 } else { 3000 });
        ask.close = take != Take::Drop;
        let head = ask.head(false);
        let mut script = drip(&head, head.len() / 9 + 1, 1000);
        script.extend(drip(&ask.request(0)[head.len()..], 150, 1000));
        script.push(Do::Finish);
        let report = run(plan(&[ask], script));
        assert_eq!(report.answers, [(200, 50, true)], "{take:?}");
        assert_eq!(report.outcome.stats.timeouts, 0);
    }
}

/// Reads an answer that is larger than any buffer at this many bytes per second.
fn read_at(ask: Ask, bytes_a_second: usize) -> Report {
    let slow = Pace::Slow(bytes_a_second / 2, SECOND / 2);
    let mut plan = plan(&[ask], vec![Do::Read(slow), Do::Write(ask.request(0))]);
    plan.parts[0].link.capacity = 1000;
    run(plan)
}

#[test]
fn an_answer_that_is_read_below_the_rate_is_cut_off_and_above_it_never() {
    for (chunk, close) in [(0, true), (1000, true), (0, false), (1000, false)] {
        let ask = Ask { chunk, close, ..Ask::new(0, 0, 20_000) };
        let slow = read_at(ask, 60);
        assert_eq!(slow.end, End::Reset);
        assert!(!slow.answers[0].2 && slow.outcome.stats.timeouts == 1);
        assert!((10..=24).contains(&slow.at), "chunk {chunk}: reset after {} s", slow.at);
        let quick = read_at(ask, 130);
        assert_eq!(quick.answers, [(200, 20_000, true)], "chunk {chunk}, close {close}");
        assert!(quick.at > 140 && quick.outcome.stats.timeouts == 0);
        assert_eq!(quick.end, End::Finished);
    }
}

/// The kernel still has most of the answer when the server has sent all of it.
#[test]
fn an_answer_that_the_kernel_holds_is_not_cut_off_with_the_connection() {
    let ask = Ask { close: true, ..Ask::new(0, 0, 50_000) };
    let slow = Pace::Slow(1000, SECOND / 2);
    let report = run(plan(&[ask], vec![Do::Read(slow), Do::Write(ask.request(0))]));
    assert_eq!((report.answers[0], report.end), ((200, 50_000, true), End::Finished));
    assert!(report.at > 20);
}

#[test]
fn an_idle_connection_is_closed_without_a_word_at_the_keep_alive_timeout() {
    // This also holds if the answer took longer, and if its request had ended before.
    for (start, delay) in
        [(ServiceStart::AtOnce, 0), (ServiceStart::Later, 7000), (ServiceStart::Later, 30_000)]
    {
        for take in [Take::Drop, Take::Whole, Take::Pieces] {
            let ask = Ask { start, delay, chunk: 30, close: false, ..upload(take, 100) };
            let report = run(plan(&[ask], vec![Do::Write(ask.request(0))]));
            assert_eq!((report.answers, report.end), (vec![(200, 50, true)], End::Finished));
            let began = delay / 1000;
            assert!((began + 20..=began + 22).contains(&report.at), "{take:?}: {}", report.at);
            assert_eq!(report.outcome.stats.timeouts, 0);
        }
    }
}

/// A client is not idle while it still reads an answer, or while its next request is delayed for
/// that reason.
#[test]
fn a_connection_whose_answer_is_still_read_is_not_idle() {
    let first = Ask::new(0, 0, 20_000);
    let second = Ask { number: 1, close: true, ..Ask::new(0, 1, 50) };
    let mut bytes = first.request(0);
    bytes.extend(second.request(0));
    for max_backlog in [1 << 20, 4000] {
        let script = vec![Do::Read(Pace::Slow(200, SECOND)), Do::Write(bytes.clone())];
        let mut plan = plan(&[first, second], script);
        plan.limits.max_backlog = max_backlog;
        plan.parts[0].link.capacity = 1000;
        let report = run(plan);
        assert_eq!(report.answers, [(200, 20_000, true), (200, 50, true)], "{max_backlog}");
        assert_eq!(report.outcome.stats.timeouts, 0);
    }
}

/// A client sends its next request after it has read the answer, after any time.
#[test]
fn the_time_of_an_idle_connection_begins_when_its_answer_has_left() {
    let first = Ask::new(0, 0, 20_000);
    let second = Ask { number: 1, close: true, ..Ask::new(0, 1, 50) };
    let script = vec![
        Do::Read(Pace::Slow(200, SECOND)),
        Do::Write(first.request(0)),
        Do::UntilAnswered(1),
        Do::Write(second.request(0)),
    ];
    let mut plan = plan(&[first, second], script);
    plan.parts[0].link.capacity = 1000;
    let report = run(plan);
    assert_eq!(report.answers, [(200, 20_000, true), (200, 50, true)]);
}

#[test]
fn a_handler_may_take_minutes() {
    for half_closes in [false, true] {
        for take in [Take::Drop, Take::Whole, Take::Pieces] {
            let later = ServiceStart::Later;
            let mut ask = Ask { start: later, delay: 600_000, ..upload(take, 100) };
            ask.close = false;
            let next = Ask { number: 1, close: !half_closes, ..Ask::new(0, 1, 70) };
            let mut bytes = ask.request(0);
            bytes.extend(next.request(0));
            let mut script = vec![Do::Write(bytes)];
            if half_closes {
                script.push(Do::Finish);
            }
            let report = run(plan(&[ask, next], script));
            assert_eq!(report.answers, [(200, 50, true), (200, 70, true)], "{take:?}");
            assert!(
                (600..=601).contains(&report.at) && report.end == End::Finished,
                "{}",
                report.at
            );
            assert_eq!(report.outcome.stats.timeouts, 0);
        }
    }
}

/// Nothing more can come from it.
#[test]
fn a_half_closed_connection_ends_with_its_last_answer() {
    for start in [ServiceStart::AtOnce, ServiceStart::Later] {
        for take in [Take::Drop, Take::Pieces] {
            let late = Ask { start, delay: 30_000, ..upload(take, 100) };
            let ask = Ask { chunk: 20, close: false, ..late };
            let report = run(plan(&[ask], vec![Do::Write(ask.request(0)), Do::Finish]));
            assert_eq!((report.answers, report.end), (vec![(200, 50, true)], End::Finished));
            let end = if start == ServiceStart::AtOnce { 0 } else { 30 };
            assert!((end..=end + 1).contains(&report.at), "{take:?}: {}", report.at);
        }
    }
}

/// Bytes that a client sends after its last answer are ignored.
#[test]
fn nothing_is_answered_after_the_last_answer() {
    for start in [ServiceStart::AtOnce, ServiceStart::Later] {
        let last = Ask { start, delay: 1000, close: true, ..Ask::new(0, 0, 50) };
        let mut bytes = last.request(0);
        bytes.extend(Ask { number: 1, ..last }.request(0));
        let report = run(plan(&[last], vec![Do::Write(bytes)]));
        assert_eq!((report.answers, report.end), (vec![(200, 50, true)], End::Finished));
    }
}

/// Requests wait once half of the maximum output is queued.
#[test]
fn pipelined_requests_wait_while_their_answers_pile_up() {
    let asks: Vec<Ask> = (0..40).map(|number| Ask::new(0, number, 1000)).collect();
    let mut bytes: Vec<u8> = asks.iter().flat_map(|ask| ask.request(0)).collect();
    bytes.extend(Ask { close: true, ..Ask::new(0, 40, 1) }.request(0));
    let asks = [asks, vec![Ask { close: true, ..Ask::new(0, 40, 1) }]].concat();
    let mut plan = plan(&asks, vec![Do::Read(Pace::Slow(1000, SECOND)), Do::Write(bytes)]);
    plan.limits.max_backlog = 8000;
    plan.parts[0].link.capacity = 8000;
    let mut world = World::new(plan);
    let mut most = 0;
    while world.step() {
        most = most.max(world.audits()[0].largest_backlog);
    }
    assert_eq!(world.peer(0).reader.answered, 41);
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    assert!((4000..=5200).contains(&most), "{most} bytes were queued");
}

/// A client that expects `100-continue` gets it, unless its body has already arrived. A body that
/// is too long is refused.
#[test]
fn leave_is_given_to_a_client_that_waits_for_it() {
    for (take, waits) in [(Take::Whole, true), (Take::Pieces, true), (Take::Whole, false)] {
        let ask = Ask { expects: true, ..upload(take, 500) };
        let request = ask.request(0);
        let (head, body) = request.split_at(request.len() - 500);
        let script = match waits {
            true => vec![Do::Write(head.to_vec()), Do::Pause(SECOND), Do::Write(body.to_vec())],
            false => vec![Do::Write(request.clone())],
        };
        let mut world = World::new(plan(&[ask], script));
        while world.step() {}
        let reader = &world.peer(0).reader;
        assert_eq!((reader.interim, reader.answered), (usize::from(waits), 1), "{take:?}");
    }
}

#[test]
fn a_body_over_what_its_service_takes_is_refused() {
    for (chunk, status) in [(0, 413), (50, 413), (400, 413)] {
        let ask = Ask { most: 399, ..upload(Take::Pieces, 400) };
        let report = run(plan(&[ask], vec![Do::Write(ask.request(chunk))]));
        assert_eq!(report.answers.iter().map(|answer| answer.0).collect::<Vec<_>>(), [status]);
        let fits = Ask { most: 400, ..ask };
        let report = run(plan(&[fits], vec![Do::Write(fits.request(chunk))]));
        assert_eq!(report.answers, [(200, 50, true)]);
    }
}

/// 300 uploads fill the memory for bodies and make hardly any progress, while 24 other uploads
/// arrive.
#[test]
fn bodies_that_hold_memory_and_stop_make_room_for_those_that_come() {
    const SLOW: u32 = 300;
    let mut plan = SimPlan::calm(92);
    plan.limits.max_body_memory = 26 << 20;
    plan.limits.min_body_rate = Some(100);
    for number in 0..SLOW {
        let ask = Ask { peer: number, ..upload(Take::Whole, 100_000) };
        let request = ask.request(0);
        let (most, rest) = request.split_at(90_000);
        let mut script = vec![Do::Write(most.to_vec())];
        script.extend(drip(&rest[..7200], 120, 1000));
        plan.add_http_client("slow upload", Expect::Anything, vec![ask], script);
    }
    for number in SLOW..SLOW + 24 {
        let ask = Ask { peer: number, ..upload(Take::Whole, 100_000) };
        let script = vec![Do::Write(ask.request(0))];
        let peer = plan.add_http_client("upload", Expect::Served, vec![ask], script);
        plan.parts[peer].at = (20 + u64::from(number - SLOW)) * SECOND;
    }
    let mut world = World::new(plan);
    while world.now() < 45 * SECOND && world.step() {}
    let status = |number: u32| {
        let answers = &world.peer(number as usize).reader.answers;
        answers.first().map(|answer| answer.status)
    };
    let served: Vec<_> = (SLOW..SLOW + 24).map(status).collect();
    assert_eq!(served, [Some(200); 24]);
    let ended = (0..SLOW).filter(|&number| status(number) == Some(408)).count();
    // The 24 bodies of 100 kB need the memory of at least 27 others; more than one is ended at a
    // time.
    assert!((1..60).contains(&ended), "{ended} were ended");
    while world.step() {}
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

/// Clients got their 503, and neither read it nor leave: they occupy only a few connections beyond
/// the limit.
#[test]
fn refused_connections_that_stay_hold_no_more_than_the_reserve() {
    const FULL: usize = 4;
    let mut plan = SimPlan::calm(93);
    plan.max_connections = FULL;
    plan.limits.max_connections_per_address = throng_engine::Limit::Unlimited;
    for _ in 0..FULL {
        plan.add(
            "session",
            Expect::Anything,
            vec![Do::UntilOpen, Do::Pause(60 * SECOND), Do::Close(1000)],
        );
    }
    for number in 0..100 {
        let ask = Ask::new(FULL as u32 + number, 0, 50);
        let mut script = vec![Do::Read(Pace::Never), Do::Write(ask.request(0))];
        script.extend(drip(&[b'x'; 20], 1, 1000));
        script.push(Do::Reset);
        let peer = plan.add_http_client("refused", Expect::Anything, vec![ask], script);
        plan.parts[peer].at = 10 * SECOND + u64::from(number) * SECOND / 10;
    }
    let mut world = World::new(plan);
    let mut most = 0;
    while world.now() < 100 * SECOND && world.step() {
        most = most.max(world.audits()[0].connections);
    }
    while world.step() {}
    assert!(most > FULL + 20, "only {most} at a time");
    assert!(most <= FULL + 32 + 2, "{most} connections at a time");
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

/// Sends for this many seconds a body that is refused because of its length, and reads the answer
/// only then.
fn upload_for(secs: usize) -> Report {
    let ask = Ask { most: 399, ..upload(Take::Pieces, 2000 * secs) };
    let mut script = vec![Do::Read(Pace::Never), Do::Write(ask.head(false))];
    script.extend(drip(&ask.request(0)[ask.head(false).len()..], 1000, 500));
    script.push(Do::Read(Pace::Prompt));
    run(plan(&[ask], script))
}

/// A close by the server in the middle of the body would be a reset, and destroy the answer.
#[test]
fn a_client_that_sends_its_whole_body_before_it_reads_gets_its_413() {
    let report = upload_for(20);
    assert_eq!(report.answers.iter().map(|answer| answer.0).collect::<Vec<_>>(), [413]);
    assert_eq!(report.end, End::Finished);
    assert!((20..=23).contains(&report.at), "{}", report.at);
}

#[test]
fn a_client_that_goes_on_sending_after_its_413_is_cut_off_in_the_end() {
    let report = upload_for(100);
    assert_eq!((report.answers.len(), report.end), (0, End::Reset));
    assert!((30..=34).contains(&report.at), "{}", report.at);
}

#[test]
fn a_source_may_have_nothing_to_send_for_minutes() {
    let ask = Ask { chunk: 100, waits: 5, wait: 100_000, close: true, ..Ask::new(0, 0, 3000) };
    let report = run(plan(&[ask], vec![Do::Write(ask.request(0))]));
    assert_eq!((report.answers, report.end), (vec![(200, 3000, true)], End::Finished));
    assert!(
        (500..=501).contains(&report.at) && report.outcome.stats.timeouts == 0,
        "{}",
        report.at
    );
}

#[test]
fn a_body_that_the_service_holds_up_is_not_late() {
    // The service stops after each piece, for longer than the timeout of a head or a body.
    let ask = Ask { stops: 1, room_after: 100_000, ..upload(Take::Pieces, 30_000) };
    for chunk in [0, 3000] {
        let mut plan = plan(&[ask], vec![Do::Write(ask.request(chunk))]);
        plan.parts[0].link.capacity = 4000;
        plan.faults.receive_buffer = 4000;
        let report = run(plan);
        assert_eq!(report.answers, [(200, 50, true)], "chunk {chunk}");
        assert!(report.at > 700 && report.outcome.stats.timeouts == 0);
    }
}

/// When the service wants the body again, the client has the full time to send it.
#[test]
fn a_body_that_was_held_up_has_its_whole_time_again() {
    let ask = Ask { stops: 2, room_after: 60_000, ..upload(Take::Pieces, 1000) };
    let request = ask.request(0);
    let (begin, rest) = request.split_at(request.len() - 500);
    let script = vec![
        Do::Write(begin[..begin.len() - 1].to_vec()),
        Do::Pause(5 * SECOND),
        Do::Write(begin[begin.len() - 1..].to_vec()),
        Do::Pause(68 * SECOND),
        Do::Write(rest.to_vec()),
    ];
    let report = run(plan(&[ask], script));
    assert_eq!(report.answers, [(200, 50, true)]);
    assert_eq!(report.outcome.stats.timeouts, 0);
}

/// A client that pauses on its own afterwards is late again.
#[test]
fn a_body_that_stops_after_it_was_held_up_is_late() {
    for stops in [1, 2] {
        let ask = Ask { stops, room_after: 60_000, ..upload(Take::Pieces, 1000) };
        let request = ask.request(0);
        let (begin, more) = request[..request.len() - 400].split_at(request.len() - 500);
        let script = vec![Do::Write(begin.to_vec()), Do::Pause(SECOND), Do::Write(more.to_vec())];
        let report = run(plan(&[ask], script));
        assert_eq!(report.answers[0].0, 408);
        // With a stop for each piece, there are two.
        let held_up = if stops == 1 { 120 } else { 61 };
        assert!((held_up + 10..=held_up + 12).contains(&report.at), "{stops}: {}", report.at);
    }
}

/// A body that the service stops reading costs one buffer instead of the client's whole upload.
#[test]
fn a_body_that_is_held_up_costs_one_buffer() {
    let ask = Ask { stops: 1, room_after: 600_000, ..upload(Take::Pieces, 200_000) };
    let mut plan = plan(&[ask], vec![Do::Write(ask.request(0))]);
    plan.parts[0].link.capacity = 10_000;
    plan.faults.receive_buffer = 3000;
    let mut world = World::new(plan);
    let mut most = 0;
    while world.step() {
        if world.now() < 599 * SECOND {
            most = most.max(world.net.borrow().taken(0));
        }
    }
    assert!(most <= 6000, "{most} bytes were taken from the network");
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

fn drain(grace: u64) -> Option<Drain> {
    let (delay, window) = (Duration::ZERO, Duration::ZERO);
    let plan = DrainPlan::default().delay(delay).window(window).grace(Duration::from_secs(grace));
    Some(Drain { at: 5 * SECOND, plan })
}

#[test]
fn a_drain_waits_for_the_answers_that_are_being_made() {
    let streamed = Ask { chunk: 100, waits: 5, wait: 10_000, ..Ask::new(0, 0, 1000) };
    let later = Ask { start: ServiceStart::Later, delay: 20_000, ..Ask::new(0, 0, 1000) };
    for ask in [streamed, later] {
        let mut plan = plan(&[ask], vec![Do::Write(ask.request(0))]);
        plan.drain = drain(100);
        let report = run(plan);
        assert_eq!((report.answers, report.end), (vec![(200, 1000, true)], End::Finished));
        assert!((10..=21).contains(&report.at), "{}", report.at);
        assert_eq!(report.outcome.forced, [Some(0)]);
    }
}

/// The request was refused. At the drain's deadline the client has sent all of it, but read
/// nothing.
#[test]
fn the_end_of_a_drain_destroys_no_early_answer() {
    let ask = Ask { most: 399, ..upload(Take::Pieces, 4000) };
    let script = vec![
        Do::Read(Pace::Never),
        Do::Pause(9 * SECOND / 2),
        Do::Write(ask.request(0)),
        Do::Pause(5 * SECOND),
        Do::Read(Pace::Prompt),
    ];
    let mut plan = plan(&[ask], script);
    plan.drain = drain(0);
    let report = run(plan);
    assert_eq!(report.answers.iter().map(|answer| answer.0).collect::<Vec<_>>(), [413]);
    assert_eq!((report.end, report.outcome.forced), (End::Finished, vec![Some(0)]));
}

#[test]
fn a_drain_forces_the_answers_that_take_too_long_and_counts_them() {
    let streamed = Ask { chunk: 100, waits: 5, wait: 100_000, ..Ask::new(0, 0, 1000) };
    let later = Ask { start: ServiceStart::Later, delay: 200_000, ..Ask::new(0, 0, 1000) };
    let held_up = Ask { stops: 1, room_after: 100_000, ..upload(Take::Pieces, 5000) };
    for ask in [streamed, later, held_up] {
        let mut plan = plan(&[ask], vec![Do::Write(ask.request(0))]);
        plan.drain = drain(30);
        let report = run(plan);
        assert_eq!(report.end, End::Reset);
        assert!(report.answers.iter().all(|answer| !answer.2));
        assert!((35..=36).contains(&report.at), "{}", report.at);
        assert_eq!(report.outcome.forced, [Some(1)]);
    }
}

/// An answer that began before its body had arrived is also completed.
#[test]
fn an_early_answer_ends_the_connection_and_comes_whole() {
    for delay in [100, 30_000] {
        let start = ServiceStart::AfterHead;
        let ask =
            Ask { start, delay, chunk: 100, waits: 3, wait: 300, ..upload(Take::Pieces, 9000) };
        let mut script = vec![Do::Write(ask.head(false))];
        script.extend(drip(&ask.request(0)[ask.head(false).len()..], 100, 500));
        let early = Ask { close: false, length: 1000, ..ask };
        script[0] = Do::Write(early.head(false));
        let report = run(plan(&[early], script));
        assert_eq!(report.answers, [(200, 1000, true)], "delay {delay}");
        let (began, end) = (delay / 1000, report.at);
        assert!((began..=began + 6).contains(&end), "delay {delay}: {end}");
    }
}

#[test]
fn a_handler_that_panics_later_is_a_500() {
    hush_planned_panics();
    for take in [Take::Drop, Take::Whole, Take::Pieces] {
        let ask = Ask { start: ServiceStart::Later, delay: 100, panics: true, ..upload(take, 100) };
        let report = run(plan(&[ask], vec![Do::Write(ask.request(0))]));
        let statuses: Vec<u16> = report.answers.iter().map(|answer| answer.0).collect();
        assert_eq!((statuses, report.end), (vec![500], End::Finished), "{take:?}");
    }
}

/// The handler of one request answers another, on a connection that was already handled in the same
/// turn.
#[test]
fn an_answer_from_another_connections_callback_goes_out_at_once() {
    let parked = Ask { start: ServiceStart::Parked, delay: 500_000, ..Ask::new(0, 0, 50) };
    let next = Ask { number: 1, close: true, ..Ask::new(0, 1, 50) };
    let bytes = [parked.request(0), next.request(0)].concat();
    let mut plan = plan(&[parked, next], vec![Do::Write(bytes)]);
    // A delivery without bytes reports the end of the body when reading continues. The connection
    // stays open, so that no other event occurs.
    let ask = Ask { stops: 1, room_after: 5000, close: false, ..upload(Take::Pieces, 100) };
    let ask = Ask { peer: 1, ..ask };
    let script = vec![Do::Pause(SECOND), Do::Write(ask.request(0))];
    plan.add_http_client("other", Expect::Served, vec![ask], script);
    // The head of the other request answers the first one, so this request replaces it.
    let again = Ask { start: ServiceStart::Parked, delay: 500_000, ..Ask::new(2, 0, 50) };
    let script = vec![Do::Pause(2 * SECOND), Do::Write(again.request(0)), Do::Finish];
    plan.add_http_client("parked again", Expect::Served, vec![again], script);
    let mut world = World::new(plan);
    while world.step() {}
    for (peer, most) in [(0, 2000), (2, 6100)] {
        let (end, at) = world.peer(peer).end.expect("it has ended");
        assert!(end == End::Finished && at < most * SECOND / 1000, "peer {peer}: {end:?} at {at}");
    }
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

#[test]
fn a_source_that_fails_resets_the_connection() {
    for chunked in [false, true] {
        let ask = Ask { chunk: 100, fails_at: Some(500), chunked, ..Ask::new(0, 0, 1000) };
        let report = run(plan(&[ask], vec![Do::Write(ask.request(0))]));
        assert_eq!(report.end, End::Reset);
        assert!(report.answers.iter().all(|answer| !answer.2));
    }
}
