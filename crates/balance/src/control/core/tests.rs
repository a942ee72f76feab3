use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use crate::backend::SHARES_PER_WEIGHT;
use crate::{Changes, Surplus};

const TOKEN: &str = "[register]\ntoken = \"0123456789abcdef\"\n";

fn at(seconds: f64) -> Instant {
    Instant::default().after(Duration::from_secs_f64(seconds))
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// With backends at these ports and `more` settings, of which tables come last.
fn config(ports: &[u16], more: &str) -> Config {
    let backends: Vec<_> = ports.iter().map(|&port| format!("\"{}\"", address(port))).collect();
    let text = format!("backends = [{}]\n{more}", backends.join(", "));
    Config::parse(&text, "b.toml").unwrap()
}

fn core(ports: &[u16], more: &str) -> Core {
    let mut core = Core::new(config(ports, more));
    assert!(core.take_configuration().is_some());
    core
}

fn backend(core: &Core, port: u16) -> Arc<Backend> {
    let mut all = core.backends().map(|(backend, _)| backend);
    Arc::clone(all.find(|backend| backend.address() == address(port)).expect("it is in the list"))
}

fn ports(core: &Core) -> Vec<u16> {
    core.backends().map(|(backend, _)| backend.address().port()).collect()
}

fn open(backend: &Backend, tunnels: u32) {
    (0..tunnels).for_each(|_| backend.open_tunnel());
}

fn close(backend: &Backend, tunnels: u32) {
    for _ in 0..tunnels {
        backend.close_tunnel();
        backend.totals().closed.fetch_add(1, Relaxed);
    }
}

fn fail(core: &mut Core, port: u16, times: usize, now: Instant) {
    let backend = backend(core, port);
    for _ in 0..times {
        core.handle_failure(&backend, Failure::Refused, false, now, SystemTime::UNIX_EPOCH);
    }
}

fn apply(core: &mut Core, config: Config, now: Instant) -> Result<Changes, Error> {
    core.apply(config, now, |_| {})
}

fn expire(core: &mut Core, now: Instant) -> Option<Instant> {
    core.expire(now, SystemTime::UNIX_EPOCH)
}

/// Orders in short: port, and what: `+` keep, or rate, code, order, deadline and count.
fn commands(core: &mut Core) -> Vec<String> {
    let short = |command| match command {
        ControlCommand::Keep(backend) => format!("{} keep", backend.address().port()),
        ControlCommand::Close(backend, closing, most) => {
            let Closing { code, rate, order, deadline } = closing;
            let most = most.map_or("all".to_owned(), |most| most.to_string());
            let port = backend.address().port();
            format!("{port} close {most} at {rate}/s with {code} {order:?} by {deadline:?}")
        }
    };
    core.take_commands().into_iter().map(short).collect()
}

#[test]
fn a_dead_backend_is_down_until_its_time_is_over() {
    let mut core = core(&[1, 2], "close_rate = 50");
    fail(&mut core, 1, 2, at(0.0));
    assert_eq!((backend(&core, 1).state(), commands(&mut core)), (State::Up, vec![]));
    fail(&mut core, 1, 1, at(1.0));
    assert_eq!(backend(&core, 1).state(), State::Down);
    // That it takes no new connections says nothing of those that it has.
    assert_eq!(commands(&mut core), [""; 0]);
    assert!(core.rows(at(1.0))[0].keeps_tunnels);
    assert!(core.take_configuration().is_some(), "who waits for it must look elsewhere");
    let row = &core.rows(at(1.0))[0];
    assert_eq!((row.state, row.source), ("down", "file"));
    assert_eq!(row.last_failure.as_ref().unwrap().text, "the backend refused the connection");
    // Nothing is due before, and nothing wakes the control thread before.
    assert_eq!(expire(&mut core, at(2.0)), Some(at(11.0)));
    // On probation it gets little, and one failure is enough.
    let one = backend(&core, 1);
    assert_eq!(expire(&mut core, at(11.0)), Some(at(11.1)));
    assert_eq!(
        (one.state(), one.share(), commands(&mut core)),
        (State::Up, 10, vec!["1 keep".to_owned()])
    );
    assert_eq!((expire(&mut core, at(12.0)), one.share()), (Some(at(12.1)), 19));
    fail(&mut core, 1, 1, at(12.0));
    assert_eq!((one.state(), expire(&mut core, at(13.0))), (State::Down, Some(at(22.0))));
    // When it has answered, all is as before.
    expire(&mut core, at(22.0));
    open(&one, 1);
    assert_eq!((expire(&mut core, at(22.2)), one.share()), (None, 100));
    fail(&mut core, 1, 2, at(23.0));
    assert_eq!((one.state(), expire(&mut core, at(23.0)), one.share()), (State::Up, None, 100));
}

/// Three requests for what a backend cannot answer must not end the tunnels of everybody else.
#[test]
fn failed_answers_send_clients_elsewhere_and_end_no_tunnel() {
    let wall = SystemTime::UNIX_EPOCH;
    let more = "close_rate = 50\n[health]\nobserve = \"answers\"\n[health.check]\nkind = \"tcp\"";
    let mut core = core(&[1, 2], more);
    let one = backend(&core, 1);
    open(&one, 1);
    for failure in [Failure::Reset, Failure::ResponseTimeout, Failure::BadResponse("a reason")] {
        core.handle_failure(&one, failure, false, at(0.0), wall);
    }
    assert_eq!((one.state(), commands(&mut core)), (State::Down, vec![]));
    // Checks, if there are any, tell whether it is dead.
    core.handle_check(&one, Err("no answer".to_owned().into()), at(1.0), wall);
    core.handle_check(&one, Ok(()), at(2.0), wall);
    core.handle_check(&one, Err("no answer".to_owned().into()), at(3.0), wall);
    core.handle_check(&one, Err("no answer".to_owned().into()), at(4.0), wall);
    assert_eq!(commands(&mut core), Vec::<String>::new());
    core.handle_check(&one, Err("no answer".to_owned().into()), at(5.0), wall);
    assert_eq!(commands(&mut core), ["1 close all at 50/s with 1012 Shuffled by None"]);
    core.handle_check(&one, Err("no answer".to_owned().into()), at(6.0), wall);
    assert_eq!(commands(&mut core), Vec::<String>::new());
}

fn fail_answers(core: &mut Core, port: u16, times: usize, now: Instant) {
    let backend = backend(core, port);
    for _ in 0..times {
        core.handle_failure(&backend, Failure::Reset, false, now, SystemTime::UNIX_EPOCH);
    }
}

fn states(core: &Core) -> Vec<&'static str> {
    core.backends().map(|(backend, _)| backend.state().word()).collect()
}

#[test]
fn failed_answers_are_held_against_no_backend_by_default() {
    let mut core = core(&[1, 2], "health.failures = 1");
    fail_answers(&mut core, 1, 1000, at(0.0));
    assert_eq!(states(&core), ["up", "up"]);
    let row = &core.rows(at(0.0))[0];
    assert!(row.last_failure.as_ref().unwrap().text.contains("ended the connection"));
}

#[test]
fn a_request_that_failed_elsewhere_before_is_held_against_no_other_backend() {
    let mut core = core(&[1, 2, 3], "health.failures = 1\nhealth.observe = \"answers\"");
    let (one, wall) = (backend(&core, 1), SystemTime::UNIX_EPOCH);
    core.handle_failure(&one, Failure::Reset, true, at(0.0), wall);
    assert_eq!(one.state(), State::Up);
    // A connection is another matter: no request has seen it.
    core.handle_failure(&one, Failure::ConnectTimeout, true, at(0.0), wall);
    assert_eq!(one.state(), State::Down);
}

#[test]
fn verdicts_of_answers_leave_half_of_the_backends_up() {
    for (count, left) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
        let ports: Vec<u16> = (1..=count).collect();
        let mut core = core(&ports, "health.observe = \"answers\"");
        for port in 1..=count {
            fail_answers(&mut core, port, 1000, at(0.0));
        }
        let up = states(&core).iter().filter(|state| **state == "up").count();
        assert_eq!(up, left, "of {count}");
    }
}

#[test]
fn verdicts_of_answers_are_lifted_when_others_fall() {
    let mut core = core(&[1, 2, 3, 4], "health.observe = \"answers\"");
    fail_answers(&mut core, 1, 3, at(0.0));
    fail(&mut core, 2, 3, at(0.0));
    expire(&mut core, at(0.0));
    assert_eq!(states(&core), ["down", "down", "up", "up"]);
    // Two of the three that are left after a drain.
    core.drain(address(4), None).unwrap();
    expire(&mut core, at(1.0));
    assert_eq!(states(&core), ["up", "down", "up", "draining"]);
    // It stays, however often it fails; what takes no connections is down in any case.
    fail_answers(&mut core, 1, 3, at(1.0));
    fail(&mut core, 3, 3, at(1.0));
    expire(&mut core, at(1.0));
    assert_eq!(states(&core), ["up", "down", "down", "draining"]);
}

#[test]
fn a_backend_on_probation_that_all_pass_by_gets_its_whole_share_in_time() {
    let mut core = core(&[1, 2], "health.down_for = \"4s\"");
    fail(&mut core, 1, 3, at(0.0));
    let one = backend(&core, 1);
    let shares = [4.0, 6.0, 8.0, 99.0].map(|second| {
        expire(&mut core, at(second));
        one.share()
    });
    assert_eq!(shares, [10, 55, 100, 100]);
    // It is no less on probation.
    fail(&mut core, 1, 1, at(99.0));
    assert_eq!(one.state(), State::Down);
}

#[test]
fn an_answer_ends_a_probation_just_before_a_failure() {
    let mut core = core(&[1], "");
    fail(&mut core, 1, 3, at(0.0));
    expire(&mut core, at(10.0));
    let one = backend(&core, 1);
    open(&one, 1);
    fail(&mut core, 1, 2, at(10.05));
    assert_eq!(one.state(), State::Up);
    fail(&mut core, 1, 1, at(10.06));
    assert_eq!(one.state(), State::Down);
}

#[test]
fn checks_take_a_backend_down_and_up() {
    let mut core = core(&[1], "[health.check]\nkind = \"tcp\"");
    let (one, wall) = (backend(&core, 1), SystemTime::UNIX_EPOCH);
    for second in 0..3 {
        assert_eq!(one.state(), State::Up);
        core.handle_check(&one, Err("no answer".to_owned().into()), at(second.into()), wall);
    }
    assert_eq!(one.state(), State::Down);
    let row = &core.rows(at(3.0))[0];
    let text = &row.last_failure.as_ref().unwrap().text;
    assert_eq!(text, "the health check failed: no answer");
    assert_eq!(expire(&mut core, at(100.0)), None, "only a check brings it up");
    core.handle_check(&one, Ok(()), at(101.0), wall);
    core.handle_check(&one, Ok(()), at(102.0), wall);
    assert_eq!(one.state(), State::Up);
    // Reports about a backend that is not in the list are ignored.
    let other = Arc::new(Backend::new(address(1), 1));
    for _ in 0..9 {
        core.handle_check(&other, Err(String::new().into()), at(103.0), wall);
        core.handle_failure(&other, Failure::Reset, false, at(103.0), wall);
    }
    assert_eq!((one.state(), other.state()), (State::Up, State::Up));
}

#[test]
fn a_drain_closes_at_its_rate_and_can_be_ended() {
    let mut core = core(&[1, 2], "close_rate = 10");
    let one = backend(&core, 1);
    open(&one, 1000);
    let draining = core.drain(address(1), Some(Duration::from_secs(20))).unwrap();
    assert_eq!((draining.tunnels, draining.rate, draining.last), (1000, 50, false));
    assert_eq!(one.state(), State::Draining);
    assert_eq!(commands(&mut core), ["1 close all at 50/s with 1012 Shuffled by Some(20s)"]);
    close(&one, 400);
    let drain = core.rows(at(8.0))[0].drain.unwrap();
    assert_eq!((drain.left, drain.closed, drain.seconds_left), (600, 400, 12));
    // Its health does not bring it back, nor does time.
    fail(&mut core, 1, 5, at(8.0));
    assert_eq!((one.state(), commands(&mut core)), (State::Draining, vec![]));
    expire(&mut core, at(100.0));
    assert_eq!(one.state(), State::Draining);
    // A window wins over a rate, which would end it sooner.
    let draining = core.drain(address(1), Some(Duration::from_secs(1200))).unwrap();
    assert_eq!((draining.rate, commands(&mut core).len()), (1, 1));
    assert_eq!(core.rows(at(8.0))[0].drain.unwrap().seconds_left, 1200);
    // A second drain takes the place of the first, and counts on.
    core.drain(address(1), None).unwrap();
    assert_eq!(commands(&mut core), ["1 close all at 10/s with 1012 Shuffled by None"]);
    assert_eq!(core.rows(at(8.0))[0].drain.unwrap().closed, 400);
    close(&one, 599);
    expire(&mut core, at(101.0));
    core.undrain(address(1), at(101.0)).unwrap();
    assert_eq!((one.state(), one.tunnels()), (State::Up, 1));
    assert_eq!(commands(&mut core), ["1 keep"]);
    assert!(core.rows(at(101.0))[0].drain.is_none());
    assert!(matches!(
        core.undrain(address(1), at(101.0)),
        Err(Error::NotDraining { state: "up", .. })
    ));
    assert!(core.drain(address(2), None).is_ok_and(|draining| !draining.last));
    assert!(core.drain(address(1), None).is_ok_and(|draining| draining.last));
}

#[test]
fn a_window_of_nothing_is_at_once() {
    let mut core = core(&[1], "");
    open(&backend(&core, 1), 3);
    let draining = core.drain(address(1), Some(Duration::ZERO)).unwrap();
    assert_eq!((draining.rate, draining.last), (u32::MAX, true));
}

#[test]
fn a_removed_backend_goes_with_its_last_tunnel() {
    let mut core = core(&[1, 2], "");
    let one = backend(&core, 1);
    open(&one, 1);
    one.begin_request();
    core.remove(address(1)).unwrap();
    assert_eq!(expire(&mut core, at(0.0)), Some(at(0.25)));
    assert_eq!((one.state(), core.rows(at(0.0))[0].source), (State::Draining, "none"));
    assert!(matches!(core.undrain(address(1), at(0.0)), Err(Error::BeingRemoved { .. })));
    close(&one, 1);
    expire(&mut core, at(1.0));
    assert_eq!(ports(&core), [1, 2], "a request is under way");
    one.end_request();
    commands(&mut core);
    assert_eq!(expire(&mut core, at(2.0)), None);
    assert_eq!((ports(&core), one.state()), (vec![2], State::Removed));
    assert_eq!(commands(&mut core), ["1 keep"], "shards forget the order");
    // A connection still holds it: it is the same backend when it comes back.
    core.add(BackendConfig { weight: 5, ..BackendConfig::new(address(1)) }, at(3.0)).unwrap();
    assert!(Arc::ptr_eq(&backend(&core, 1), &one));
    assert_eq!((one.state(), one.weight(), core.rows(at(3.0))[1].source), (State::Up, 5, "api"));
    // The last one may go, too.
    assert!(!core.remove(address(1)).unwrap().last);
    assert!(core.remove(address(2)).unwrap().last);
    expire(&mut core, at(4.0));
    assert_eq!(ports(&core), [0u16; 0]);
    let error = core.remove(address(2)).unwrap_err().to_string();
    assert_eq!(error, "there is no backend 127.0.0.1:2: there is none at all; add it first");
}

#[test]
fn a_removed_backend_that_is_added_again_keeps_its_tunnels() {
    let mut core = core(&[1, 2], "");
    let one = backend(&core, 1);
    open(&one, 7);
    core.remove(address(1)).unwrap();
    expire(&mut core, at(0.0));
    commands(&mut core);
    core.add(BackendConfig::new(address(1)), at(1.0)).unwrap();
    assert_eq!((one.state(), commands(&mut core)), (State::Up, vec!["1 keep".to_owned()]));
    assert!(Arc::ptr_eq(&backend(&core, 1), &one));
    assert_eq!(expire(&mut core, at(1.0)), None);
}

#[test]
fn a_reload_changes_what_differs_and_nothing_else() {
    let mut core = core(&[1, 2, 3], "");
    let before: Vec<_> = [1, 2, 3].map(|port| backend(&core, port)).into();
    open(&before[2], 1);
    core.set_weight(address(1), 9, at(0.0)).unwrap();
    core.drain(address(2), None).unwrap();
    commands(&mut core);
    core.take_configuration();
    // The same file: what operators did stays.
    let changes = apply(&mut core, config(&[1, 2, 3], ""), at(1.0)).unwrap();
    assert_eq!(changes, Changes::default());
    assert_eq!((before[0].weight(), before[1].state()), (9, State::Draining));
    // A new weight for 1, no 3, and 4.
    let text = "listen = \"127.0.0.1:99\"\nshards = 2\nretries = 0\nmax_connections = 5\n\
                backends = [{ address = \"127.0.0.1:1\", weight = 4 }, \"127.0.0.1:2\", \
                \"127.0.0.1:4\"]\n\
                [admin]\nlisten = \"127.0.0.1:98\"";
    let changed = Config::parse(text, "b.toml").unwrap();
    let changes = apply(&mut core, changed.clone(), at(2.0)).unwrap();
    let expected = Changes {
        added: vec![address(4)],
        removed: vec![address(3)],
        reweighted: vec![address(1)],
        settings: true,
        needs_restart: vec!["listen", "shards", "admin.listen"],
    };
    assert_eq!(changes, expected);
    assert_eq!(core.take_configuration().unwrap().settings.retries, 0);
    assert_eq!(commands(&mut core), ["3 close all at 200/s with 1012 Shuffled by None"]);
    expire(&mut core, at(2.0));
    assert_eq!(ports(&core), [1, 2, 3, 4], "3 has a tunnel");
    // What needs a restart is said until there was one; the rest was done.
    let again = apply(&mut core, changed, at(3.0)).unwrap();
    let only_restart = Changes { needs_restart: expected.needs_restart, ..Changes::default() };
    assert_eq!(again, only_restart);
    // 3 comes back while its tunnel lives.
    let changes = apply(&mut core, config(&[1, 2, 3], ""), at(4.0)).unwrap();
    assert_eq!((changes.added, changes.removed), (vec![address(3)], vec![address(4)]));
    expire(&mut core, at(4.0));
    assert_eq!((ports(&core), before[2].state()), (vec![1, 2, 3], State::Up));
    for (port, before) in (1..).zip(&before) {
        assert!(Arc::ptr_eq(before, &backend(&core, port)), "{port}");
    }
}

/// A file that is empty, or was read while it was written, must not drain everything.
#[test]
fn only_a_list_of_backends_changes_the_list() {
    let mut core = core(&[1, 2], TOKEN);
    core.register(address(3), 1, None, at(0.0)).unwrap();
    let parse = |text: &str| Config::parse(&format!("{text}\n{TOKEN}"), "b.toml").unwrap();
    let changes = apply(&mut core, parse("retries = 0"), at(1.0)).unwrap();
    assert_eq!((changes.settings, changes.removed), (true, vec![]));
    assert_eq!(states(&core), ["up", "up", "up"]);
    // Said in so many words it is another matter.
    let changes = apply(&mut core, parse("backends = []"), at(2.0)).unwrap();
    assert_eq!(changes.removed, [address(1), address(2)]);
    assert_eq!(states(&core), ["draining", "draining", "up"]);
}

#[test]
fn a_reload_that_leaves_no_backend_up_is_refused() {
    let mut core = core(&[1, 2], TOKEN);
    fail(&mut core, 2, 3, at(0.0));
    for ports in [&[2][..], &[]] {
        let error = apply(&mut core, config(ports, TOKEN), at(1.0)).unwrap_err();
        assert!(matches!(error, Error::NoneUp), "{error}");
        assert_eq!(states(&core), ["up", "down"]);
    }
    apply(&mut core, config(&[2, 3], TOKEN), at(1.0)).unwrap();
    // Where none is up there is none to lose.
    core.drain(address(3), None).unwrap();
    apply(&mut core, config(&[2], TOKEN), at(2.0)).unwrap();
}

#[test]
fn new_backends_are_announced_before_the_old_ones_go() {
    let mut core = core(&[1], "");
    let one = backend(&core, 1);
    let mut seen = Vec::new();
    let tell = |core: &mut Core| {
        let configuration = core.take_configuration().expect("there is something to tell");
        let addresses = configuration.backends.iter().map(|target| target.backend.address());
        seen.extend(addresses.map(|address| address.port()));
        assert_eq!(one.state(), State::Up, "there is always one to pick");
    };
    core.apply(config(&[2], ""), at(0.0), tell).unwrap();
    assert_eq!((seen, one.state()), (vec![1, 2], State::Draining));
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let mut core = core(&[1, 2], "");
    core.set_addresses(&[address(7)]);
    let before = core.rows(at(0.0));
    let mut twice = config(&[1, 3], "retries = 0");
    twice.backends.push(twice.backends[0]);
    assert!(matches!(apply(&mut core, twice, at(0.0)), Err(Error::Config(_))));
    // The port 0 that it listens at became one that the file does not know.
    let error = apply(&mut core, config(&[7, 3], "retries = 0"), at(0.0)).unwrap_err();
    assert!(error.to_string().contains("the balancer itself listens on 127.0.0.1:7"), "{error}");
    let rows = core.rows(at(0.0));
    assert_eq!(format!("{before:?}"), format!("{rows:?}"));
    assert_eq!((core.settings().retries, core.take_configuration().is_none()), (2, true));
    assert!(commands(&mut core).is_empty());
}

#[test]
fn added_backends_stay_over_reloads_and_the_file_has_priority() {
    let mut core = core(&[1], "");
    core.add(BackendConfig::new(address(2)), at(0.0)).unwrap();
    apply(&mut core, config(&[1], ""), at(1.0)).unwrap();
    assert_eq!(ports(&core), [1, 2]);
    // In the file, too, and out of it again.
    apply(&mut core, config(&[1, 2], ""), at(2.0)).unwrap();
    assert_eq!(core.rows(at(2.0))[1].source, "file");
    let changes = apply(&mut core, config(&[1], ""), at(3.0)).unwrap();
    assert_eq!((changes.removed, core.rows(at(3.0))[1].source), (vec![], "api"));
    // One that was removed is back only when the file has it.
    core.remove(address(1)).unwrap();
    expire(&mut core, at(4.0));
    assert_eq!(ports(&core), [2]);
    assert_eq!(apply(&mut core, config(&[1], ""), at(5.0)).unwrap().added, [address(1)]);
}

#[test]
fn a_registration_lasts_as_long_as_its_heartbeats() {
    let mut core = core(&[1], &format!("close_rate = 5\n{TOKEN}"));
    let time = core.register(address(2), 3, None, at(0.0)).unwrap();
    assert_eq!(time, Duration::from_secs(10));
    let two = backend(&core, 2);
    open(&two, 1);
    assert_eq!(core.rows(at(4.0))[1].expires_in_seconds, Some(6.0));
    assert_eq!((core.rows(at(4.0))[1].source, two.weight()), ("registered", 3));
    assert_eq!(expire(&mut core, at(4.0)), Some(at(10.0)));
    core.heartbeat(address(2), at(9.0)).unwrap();
    assert_eq!(expire(&mut core, at(10.0)), Some(at(19.0)));
    // A reload does not know it, and leaves it alone.
    apply(&mut core, config(&[1], &format!("close_rate = 5\n{TOKEN}")), at(11.0)).unwrap();
    assert_eq!((ports(&core), two.state()), (vec![1, 2], State::Up));
    assert!(matches!(core.remove(address(2)), Err(Error::RegistersItself { .. })));
    commands(&mut core);
    expire(&mut core, at(19.0));
    // No new clients, but its tunnel stays: a silent backend may be well.
    assert_eq!(two.state(), State::Down);
    assert_eq!(commands(&mut core), [""; 0]);
    assert!(
        core.rows(at(19.0))[1].last_failure.as_ref().unwrap().text.contains("no heartbeat for 10s")
    );
    assert!(matches!(core.heartbeat(address(2), at(20.0)), Err(Error::NotRegistered { .. })));
    // It comes back, and is the same.
    core.register(address(2), 1, Some(Duration::from_secs(2)), at(21.0)).unwrap();
    assert!(Arc::ptr_eq(&backend(&core, 2), &two));
    assert_eq!(
        (two.state(), two.weight(), commands(&mut core)),
        (State::Up, 1, vec!["2 keep".to_owned()])
    );
    // It goes, and says so.
    core.deregister(address(2)).unwrap();
    assert_eq!(two.state(), State::Draining);
    assert!(matches!(core.deregister(address(2)), Err(Error::NotRegistered { .. })));
    close(&two, 1);
    expire(&mut core, at(22.0));
    assert_eq!(ports(&core), [1]);
}

#[test]
fn a_registration_of_a_configured_backend_changes_neither_weight_nor_drain() {
    let mut core = core(&[1], TOKEN);
    core.drain(address(1), None).unwrap();
    core.register(address(1), 7, None, at(0.0)).unwrap();
    let one = backend(&core, 1);
    assert_eq!((one.weight(), one.state()), (1, State::Draining));
    expire(&mut core, at(60.0));
    assert_eq!((ports(&core), core.rows(at(60.0))[0].source), (vec![1], "file"));
    // A new process is not to pay for the failures of the last one.
    core.undrain(address(1), at(60.0)).unwrap();
    fail(&mut core, 1, 3, at(60.0));
    assert_eq!(one.state(), State::Down);
    core.register(address(1), 7, None, at(61.0)).unwrap();
    assert_eq!(one.state(), State::Up);
}

#[test]
fn registration_is_refused_with_a_reason() {
    let mut off = core(&[1], "");
    assert!(matches!(off.register(address(2), 1, None, at(0.0)), Err(Error::RegistrationIsOff)));
    assert!(matches!(off.heartbeat(address(2), at(0.0)), Err(Error::RegistrationIsOff)));
    let mut on = core(&[1], TOKEN);
    on.set_addresses(&[address(8080)]);
    for (port, weight, time, expected) in [
        (2, 0, None, "weight is 0: write 1 to 1000; to send a backend nothing"),
        (2, 1001, None, "weight is 1001: write 1 to 1000"),
        (0, 1, None, "address is 127.0.0.1:0: port 0"),
        (8080, 1, None, "the balancer itself listens on 127.0.0.1:8080"),
        (2, 1, Some(0), "time_to_live is 0ns: write 1 second to 1 hour"),
        (2, 1, Some(3601), "time_to_live is 3601s: write 1 second to 1 hour"),
    ] {
        let time = time.map(Duration::from_secs);
        let error = on.register(address(port), weight, time, at(0.0)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(ports(&on), [1]);
}

#[test]
fn backends_register_from_the_networks_that_they_may() {
    let mut core = core(&[1], TOKEN);
    let at_once = at(0.0);
    let metadata = "169.254.169.254:80".parse().unwrap();
    let error = core.register(metadata, 1, None, at_once).unwrap_err().to_string();
    assert!(error.contains("register.networks"), "{error}");
    assert!(core.register("[fe80::1]:80".parse().unwrap(), 1, None, at_once).is_err());
    assert!(core.register("10.0.0.1:80".parse().unwrap(), 1, None, at_once).is_ok());
    let only = format!("{TOKEN}networks = [\"127.0.0.0/8\"]\n");
    apply(&mut core, config(&[1], &only), at_once).unwrap();
    assert!(core.register("10.0.0.2:80".parse().unwrap(), 1, None, at_once).is_err());
    assert!(core.register(address(2), 1, None, at_once).is_ok());
}

#[test]
fn every_refusal_names_a_remedy() {
    let mut core = core(&[1, 2], "");
    let now = at(0.0);
    let new = BackendConfig::new;
    let cases = [
        (
            core.add(new(address(1)), now),
            "there is a backend 127.0.0.1:1 already (source: file): change its weight",
        ),
        (
            core.add(BackendConfig { weight: 0, ..new(address(3)) }, now),
            "weight is 0: write 1 to 1000",
        ),
        (
            core.add(new("0.0.0.0:1".parse().unwrap()), now),
            "address is 0.0.0.0:1: it is not the address of one machine",
        ),
        (
            core.set_weight(address(3), 1, now).map(drop),
            "there is no backend 127.0.0.1:3: there are 127.0.0.1:1, 127.0.0.1:2",
        ),
        (core.set_weight(address(1), 1001, now).map(drop), "weight is 1001: write 1 to 1000"),
        (core.drain(address(3), None).map(drop), "there is no backend 127.0.0.1:3"),
        (
            core.undrain(address(1), now),
            "127.0.0.1:1 is not draining, but up: there is nothing to end",
        ),
        (core.remove(address(3)).map(drop), "there is no backend 127.0.0.1:3"),
        (core.rebalance(false, Some(0)).map(drop), "rate is 0: write how many tunnels"),
        (
            core.deregister(address(1)),
            "127.0.0.1:1 is not registered, or its time ran out: register it again",
        ),
        (
            core.heartbeat(address(1), now),
            "backends cannot register themselves here: add a [register] table",
        ),
    ];
    for (outcome, expected) in cases {
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}\n{expected}");
    }
    assert!(commands(&mut core).is_empty() && core.take_configuration().is_none());
    core.end();
    assert!(matches!(core.add(new(address(3)), now), Err(Error::ShuttingDown)));
    assert!(matches!(core.drain(address(1), None), Err(Error::ShuttingDown)));
    assert!(matches!(apply(&mut core, config(&[1], ""), now), Err(Error::ShuttingDown)));
}

#[test]
fn there_is_an_end_to_the_list() {
    let all: Vec<u16> = (1..=MAX_BACKENDS as u16).collect();
    let mut core = core(&all, TOKEN);
    let one_more = address(5000);
    assert!(matches!(core.add(BackendConfig::new(one_more), at(0.0)), Err(Error::TooMany { .. })));
    assert!(matches!(core.register(one_more, 1, None, at(0.0)), Err(Error::TooMany { .. })));
    core.remove(address(1)).unwrap();
    expire(&mut core, at(0.0));
    core.add(BackendConfig::new(one_more), at(0.0)).unwrap();
    let error = apply(&mut core, config(&all, ""), at(0.0)).unwrap_err();
    assert!(matches!(error, Error::TooMany { .. }), "{error}");
    assert_eq!(ports(&core).len(), MAX_BACKENDS);
}

#[test]
fn a_slow_start_grows_every_tenth_of_a_second() {
    let mut core = core(&[1], "slow_start = \"10s\"");
    assert_eq!(
        (backend(&core, 1).share(), expire(&mut core, at(0.0))),
        (100, None),
        "all begin whole"
    );
    core.add(BackendConfig { weight: 2, ..BackendConfig::new(address(2)) }, at(0.0)).unwrap();
    let two = backend(&core, 2);
    assert_eq!((two.share(), expire(&mut core, at(0.0))), (20, Some(at(0.1))));
    assert_eq!((expire(&mut core, at(5.0)), two.share()), (Some(at(5.1)), 110));
    assert!((core.rows(at(5.0))[1].share - 1.1).abs() < 1e-9);
    core.set_weight(address(2), 4, at(5.0)).unwrap();
    assert_eq!(two.share(), 220, "a new weight is not reached at once");
    assert_eq!((expire(&mut core, at(10.0)), two.share()), (None, 400));
    // The same after a time down, and after a drain.
    fail(&mut core, 2, 3, at(20.0));
    expire(&mut core, at(30.0));
    assert_eq!((two.state(), two.share()), (State::Up, 40));
    expire(&mut core, at(31.0));
    assert_eq!(two.share(), 76, "on probation, it has not answered yet");
    expire(&mut core, at(40.0));
    assert_eq!(two.share(), 400, "no client came by: its caches are as cold as before");
    open(&two, 1);
    assert_eq!((expire(&mut core, at(45.0)), two.share()), (Some(at(45.1)), 220));
    assert_eq!((expire(&mut core, at(50.0)), two.share()), (None, 400));
    core.drain(address(2), None).unwrap();
    core.undrain(address(2), at(51.0)).unwrap();
    assert_eq!(two.share(), 40);
    // Switched off on the way.
    apply(&mut core, config(&[1], ""), at(52.0)).unwrap();
    expire(&mut core, at(52.0));
    assert_eq!(two.share(), 4 * SHARES_PER_WEIGHT);
}

#[test]
fn a_rebalance_closes_each_surplus_at_its_part_of_the_rate() {
    let mut core = core(&[1, 2, 3, 4], "close_rate = 30");
    for (port, tunnels) in [(1, 900), (2, 600), (3, 0), (4, 0)] {
        open(&backend(&core, port), tunnels);
    }
    let dry = core.rebalance(true, None).unwrap();
    assert_eq!((dry.total, dry.rate, dry.seconds, dry.dry_run), (750, 30, 25, true));
    assert!(commands(&mut core).is_empty());
    let done = core.rebalance(false, Some(300)).unwrap();
    assert_eq!((&done.moves, done.seconds), (&dry.moves, 3));
    assert_eq!(done.moves[0], Surplus { address: address(1), tunnels: 900, close: 525 });
    assert_eq!(
        commands(&mut core),
        [
            "1 close 525 at 210/s with 1012 IdleAndOldest by None",
            "2 close 225 at 90/s with 1012 IdleAndOldest by None"
        ]
    );
}

#[test]
fn a_silent_backend_is_asked_itself_and_goes_when_it_does_not_answer() {
    let mut core = core(&[1], &format!("close_rate = 5\n{TOKEN}"));
    core.register(address(2), 1, None, at(0.0)).unwrap();
    let (two, wall) = (backend(&core, 2), SystemTime::UNIX_EPOCH);
    assert_eq!(core.checks().count(), 0, "none are configured");
    open(&two, 1);
    core.take_configuration();
    expire(&mut core, at(10.0));
    assert!(core.take_configuration().is_some(), "checks get it, too");
    let asked: Vec<_> =
        core.checks().map(|(target, check)| (target.backend.address(), check)).collect();
    assert_eq!(asked, [(address(2), Check::new(CheckKind::Tcp))]);
    // It answers: it stays for as long as it does, with tunnels and without.
    for second in 11..100 {
        let wrong = Err("cannot connect".to_owned().into());
        let outcome = if second % 3 == 0 { Ok(()) } else { wrong };
        core.handle_check(&two, outcome, at(second.into()), wall);
        if second == 50 {
            close(&two, 1);
        }
        expire(&mut core, at(second.into()));
    }
    assert_eq!(
        (ports(&core), two.state(), commands(&mut core).len()),
        (vec![1, 2], State::Down, 0)
    );
    open(&two, 1);
    for second in 100..103 {
        assert_eq!(commands(&mut core), [""; 0]);
        core.handle_check(&two, Err("gone".to_owned().into()), at(second.into()), wall);
    }
    assert_eq!(commands(&mut core), ["2 close all at 5/s with 1012 Shuffled by None"]);
    expire(&mut core, at(103.0));
    assert_eq!(ports(&core), [1, 2]);
    close(&two, 1);
    expire(&mut core, at(104.0));
    assert_eq!(ports(&core), [1]);
}

#[test]
fn operators_may_drain_and_remove_a_silent_backend() {
    for remove in [false, true] {
        let mut core = core(&[1], TOKEN);
        core.register(address(2), 1, None, at(0.0)).unwrap();
        expire(&mut core, at(10.0));
        assert_eq!(ports(&core), [1, 2]);
        match remove {
            false => drop(core.drain(address(2), None).unwrap()),
            true => drop(core.remove(address(2)).unwrap()),
        }
        expire(&mut core, at(11.0));
        assert_eq!(ports(&core), [1]);
    }
}

/// Their clients would come back to where they were, or anywhere, and be closed for nothing.
#[test]
fn a_rebalance_is_refused_where_clients_do_not_come_back_by_load() {
    for (setting, parts) in [
        ("pick = \"round_robin\"", ["pick is \"round_robin\"", "write \"power_of_two\""]),
        ("pick = \"random\"", ["pick is \"random\"", "\"least_connections\""]),
        ("pick = \"rendezvous\"", ["pick is \"rendezvous\"", "\"power_of_two\""]),
        ("pick = \"ip_hash\"", ["pick is \"ip_hash\"", "\"power_of_two\""]),
        ("sticky = \"ip\"", ["sticky is \"ip\"", "write \"none\""]),
        ("sticky = { cookie = \"lb\" }", ["sticky is { cookie = \"lb\" }", "write \"none\""]),
        ("sticky = { header = \"x\" }", ["sticky is { header = \"x\" }", "write \"none\""]),
        ("sticky = { query = \"q\" }", ["sticky is { query = \"q\" }", "write \"none\""]),
    ] {
        let mut core = core(&[1, 2], setting);
        open(&backend(&core, 1), 100);
        for dry_run in [true, false] {
            let error = core.rebalance(dry_run, None).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{setting}: {error}");
        }
        assert!(core.take_commands().is_empty());
    }
    for pick in ["power_of_two", "least_connections"] {
        let mut core = core(&[1, 2], &format!("pick = \"{pick}\""));
        open(&backend(&core, 1), 100);
        assert_eq!(core.rebalance(true, None).unwrap().total, 50);
    }
}

#[test]
fn a_rebalance_leaves_those_alone_that_are_not_up() {
    let mut core = core(&[1, 2, 3], "");
    open(&backend(&core, 1), 1000);
    open(&backend(&core, 2), 10);
    core.drain(address(1), None).unwrap();
    commands(&mut core);
    let plan = core.rebalance(false, None).unwrap();
    assert_eq!(plan.moves, [Surplus { address: address(2), tunnels: 10, close: 5 }]);
    assert_eq!(commands(&mut core).len(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Apply(BTreeSet<u16>),
    Add(u16),
    Remove(u16),
    Drain(u16),
    Undrain(u16),
    Weight(u16, u32),
    Register(u16),
    Heartbeat(u16),
    Deregister(u16),
    Fail(u16),
    Open(u16),
    Close(u16),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let port = 1u16..6;
    prop_oneof![
        prop::collection::btree_set(1u16..6, 0..5).prop_map(Step::Apply),
        port.clone().prop_map(Step::Add),
        port.clone().prop_map(Step::Remove),
        port.clone().prop_map(Step::Drain),
        port.clone().prop_map(Step::Undrain),
        (port.clone(), 0u32..5).prop_map(|(port, weight)| Step::Weight(port, weight)),
        port.clone().prop_map(Step::Register),
        port.clone().prop_map(Step::Heartbeat),
        port.clone().prop_map(Step::Deregister),
        port.clone().prop_map(Step::Fail),
        port.clone().prop_map(Step::Open),
        port.prop_map(Step::Close),
        (0u64..8000).prop_map(Step::Wait),
    ]
}

/// The expected state: the sources of each backend, and when its registration ends.
#[derive(Default)]
struct Model {
    file: BTreeSet<u16>,
    api: BTreeSet<u16>,
    registered: BTreeMap<u16, Instant>,
    /// Every tunnel, with the backend that it was opened to.
    tunnels: Vec<Arc<Backend>>,
}

impl Model {
    fn wants(&self, port: u16) -> bool {
        self.file.contains(&port) || self.api.contains(&port) || self.registered.contains_key(&port)
    }
}

proptest! {
    #[test]
    fn the_list_follows_file_operators_and_registrations(
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut core = core(&[], TOKEN);
        let mut model = Model::default();
        let mut now = at(0.0);
        // Backends of which shards close all tunnels.
        let mut closing = BTreeSet::new();
        for step in steps {
            let ttl = Duration::from_secs(10);
            match step {
                Step::Apply(list) => {
                    let list_of_ports: Vec<u16> = list.iter().copied().collect();
                    let applied = apply(&mut core, config(&list_of_ports, TOKEN), now);
                    let was_up: Vec<u16> = core
                        .rows(now)
                        .iter()
                        .filter(|row| row.state == "up")
                        .map(|row| row.address.port())
                        .collect();
                    match applied {
                        Ok(_) => model.file = list,
                        Err(error) => {
                            prop_assert!(matches!(error, Error::NoneUp));
                            let stays = |port: &&u16| {
                                list.contains(port)
                                    || model.api.contains(port)
                                    || model.registered.contains_key(port)
                            };
                            prop_assert!(!was_up.is_empty() && was_up.iter().find(stays).is_none());
                        }
                    }
                }
                Step::Add(port) => {
                    let added = core.add(BackendConfig::new(address(port)), now).is_ok();
                    prop_assert_eq!(added, !model.wants(port));
                    if added {
                        model.api.insert(port);
                    }
                }
                Step::Remove(port) => {
                    let removed = core.remove(address(port)).is_ok();
                    prop_assert!(!removed || !model.registered.contains_key(&port));
                    let registers = model.registered.contains_key(&port);
                    prop_assert!(removed || !model.wants(port) || registers);
                    if removed {
                        model.file.remove(&port);
                        model.api.remove(&port);
                    }
                }
                Step::Drain(port) => {
                    let drained = core.drain(address(port), None).is_ok();
                    prop_assert!(drained || !model.wants(port));
                    prop_assert!(!drained || backend(&core, port).state() == State::Draining);
                }
                Step::Undrain(port) => {
                    let undrained = core.undrain(address(port), now).is_ok();
                    prop_assert!(!undrained || backend(&core, port).state() != State::Draining);
                }
                Step::Weight(port, weight) => {
                    if core.set_weight(address(port), weight, now).is_ok() {
                        prop_assert_eq!(backend(&core, port).weight(), weight);
                    }
                }
                Step::Register(port) => {
                    core.register(address(port), 1, None, now).unwrap();
                    model.registered.insert(port, now.after(ttl));
                }
                Step::Heartbeat(port) => {
                    let renewed = core.heartbeat(address(port), now).is_ok();
                    prop_assert_eq!(renewed, model.registered.contains_key(&port));
                    if renewed {
                        model.registered.insert(port, now.after(ttl));
                    }
                }
                Step::Deregister(port) => {
                    let ended = core.deregister(address(port)).is_ok();
                    prop_assert_eq!(ended, model.registered.remove(&port).is_some());
                }
                Step::Fail(port) if ports(&core).contains(&port) => fail(&mut core, port, 3, now),
                Step::Open(port) if ports(&core).contains(&port) => {
                    let backend = backend(&core, port);
                    backend.open_tunnel();
                    model.tunnels.push(backend);
                }
                Step::Close(port) => {
                    let of = |held: &Arc<Backend>| held.address() == address(port);
                    if let Some(at) = model.tunnels.iter().position(of) {
                        model.tunnels.swap_remove(at).close_tunnel();
                    }
                }
                Step::Fail(_) | Step::Open(_) => {}
                Step::Wait(millis) => now = now.after(Duration::from_millis(millis)),
            }
            model.registered.retain(|_, expires| *expires > now);
            expire(&mut core, now);
            // Whose heartbeats have ended is asked, and does not answer.
            let rows = core.rows(now).into_iter();
            let silent = rows.filter(|row| (row.source, row.state) == ("none", "down"));
            for row in silent {
                let silent = backend(&core, row.address.port());
                for _ in 0..3 {
                    let gone = Err("gone".to_owned().into());
                    core.handle_check(&silent, gone, now, SystemTime::UNIX_EPOCH);
                }
            }
            let next = expire(&mut core, now);
            prop_assert!(next.is_none_or(|next| next > now), "it would spin");

            let listed = ports(&core);
            let unique: BTreeSet<_> = listed.iter().copied().collect();
            prop_assert_eq!(listed.len(), unique.len(), "an address twice");
            for port in 1..6 {
                let held: Vec<_> =
                    model.tunnels.iter().filter(|held| held.address() == address(port)).collect();
                let is_listed = unique.contains(&port);
                prop_assert_eq!(is_listed, model.wants(port) || !held.is_empty(), "port {}", port);
                if !is_listed {
                    continue;
                }
                let backend = backend(&core, port);
                prop_assert!(held.iter().all(|held| Arc::ptr_eq(held, &backend)));
                prop_assert_eq!(backend.tunnels() as usize, held.len());
                if !model.wants(port) {
                    prop_assert!(matches!(backend.state(), State::Draining | State::Down));
                }
            }
            if let Some(configuration) = core.take_configuration() {
                let targets = configuration.backends.iter();
                let seen = targets.map(|target| target.backend.address().port());
                prop_assert_eq!(seen.collect::<Vec<_>>(), listed);
            }
            // The last command to shards about a backend fits its state.
            for command in core.take_commands() {
                match command {
                    ControlCommand::Close(backend, ..) => closing.insert(backend.address().port()),
                    ControlCommand::Keep(backend) => closing.remove(&backend.address().port()),
                };
            }
            let ending: BTreeSet<u16> = core
                .rows(now)
                .iter()
                .filter(|row| row.state != "up" && !row.keeps_tunnels)
                .map(|row| row.address.port())
                .collect();
            prop_assert_eq!(&closing, &ending);
        }
    }
}
