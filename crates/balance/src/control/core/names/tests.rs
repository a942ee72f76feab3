use std::time::Duration;

use throng_io::PeerAddress;

use super::*;
use crate::backend::Backend;
use crate::config::Config;
use crate::control::core::ControlCommand;

const NAME: &str = "app.internal:80";

fn at(seconds: u64) -> Instant {
    Instant::default().after(Duration::from_secs(seconds))
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], 80))
}

fn core(text: &str) -> ControlCore {
    let mut core = ControlCore::new(Config::parse(text, "b.toml").unwrap());
    assert!(core.take_configuration().is_some());
    core
}

/// Handles an answer with the addresses that end with these numbers; an empty answer is a failure.
fn answer(core: &mut ControlCore, name: &str, last: &[u8], seconds: u64) {
    let outcome = match last {
        [] => Err("the server did not answer".to_owned()),
        last => Ok(last.iter().map(|&last| address(last)).collect()),
    };
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    core.handle_lookup(&name.into(), outcome, at(seconds), wall, |_| {});
    core.expire(at(seconds), wall);
}

/// The last number of the address, state and source of each backend.
fn rows(core: &ControlCore) -> Vec<(u8, &'static str, &'static str)> {
    let last = |address: PeerAddress| address.to_string()["127.0.0.".len()..][..1].parse().unwrap();
    let rows = core.rows(at(0));
    rows.into_iter().map(|row| (last(row.address), row.state, row.source)).collect()
}

fn backend(core: &ControlCore, last: u8) -> Arc<Backend> {
    let mut all = core.backends().map(|(backend, _)| backend);
    Arc::clone(all.find(|backend| backend.address() == address(last)).unwrap())
}

fn closes(core: &mut ControlCore) -> usize {
    let commands = core.take_commands();
    commands.iter().filter(|command| matches!(command, ControlCommand::Close(..))).count()
}

#[test]
fn every_address_of_a_name_is_a_backend_with_its_settings() {
    let text = "backends = [\"127.0.0.1:80\", { address = \"app.internal:80\", weight = 3, \
                send_proxy = true }]";
    let mut core = core(text);
    assert_eq!(rows(&core), [(1, "up", "file")]);
    answer(&mut core, NAME, &[3, 2, 1], 1);
    // An address in the list itself has the list's settings.
    assert_eq!(rows(&core), [(1, "up", "file"), (2, "up", "dns"), (3, "up", "dns")]);
    assert!(core.take_configuration().is_some());
    let row = &core.rows(at(1))[1];
    assert_eq!((row.name.as_deref(), row.weight, row.send_proxy), (Some(NAME), 3, true));
    answer(&mut core, NAME, &[1, 2, 3], 2);
    assert!(core.take_configuration().is_none(), "nothing has changed");
    answer(&mut core, "other.internal:80", &[4], 3);
    assert_eq!(rows(&core).len(), 3, "no backend has that name");
}

#[test]
fn an_address_that_vanishes_keeps_its_tunnels_and_gets_no_clients() {
    let mut core = core("backends = [\"app.internal:80\"]");
    answer(&mut core, NAME, &[1, 2], 1);
    let one = backend(&core, 1);
    one.open_tunnel();
    backend(&core, 2).open_tunnel();
    core.take_commands();
    answer(&mut core, NAME, &[2, 3], 2);
    assert_eq!(rows(&core), [(1, "removed", "none"), (2, "up", "dns"), (3, "up", "dns")]);
    assert_eq!(closes(&mut core), 0, "no tunnel is closed");
    answer(&mut core, NAME, &[1, 2], 3);
    assert_eq!(rows(&core)[0], (1, "up", "dns"), "it is back, and the same");
    assert!(Arc::ptr_eq(&one, &backend(&core, 1)));
    answer(&mut core, NAME, &[2], 4);
    one.close_tunnel();
    core.expire(at(5), SystemTime::UNIX_EPOCH);
    assert_eq!(rows(&core), [(2, "up", "dns")], "it leaves with its last tunnel");
    assert_eq!(closes(&mut core), 0);
}

#[test]
fn a_failed_lookup_keeps_the_last_addresses_and_is_counted() {
    let mut core = core("backends = [\"app.internal:80\"]");
    answer(&mut core, NAME, &[], 1);
    let row = &core.name_rows()[0];
    assert!(row.addresses.is_empty() && rows(&core).is_empty());
    let failure = row.last_failure.as_ref().unwrap();
    assert_eq!((failure.text.as_str(), row.failures), ("the server did not answer", 1));
    answer(&mut core, NAME, &[1], 2);
    answer(&mut core, NAME, &[], 3);
    assert_eq!(rows(&core), [(1, "up", "dns")]);
    let row = &core.name_rows()[0];
    assert_eq!((row.failures, row.addresses.as_slice()), (2, &[address(1)][..]));
    // No address, or none that leads to a backend, also counts as a failure.
    let wall = SystemTime::UNIX_EPOCH;
    let none = "0.0.0.0:80".parse().unwrap();
    for outcome in [Vec::new(), vec![none]] {
        core.handle_lookup(&NAME.into(), Ok(outcome), at(4), wall, |_| {});
    }
    assert_eq!((core.name_rows()[0].failures, rows(&core).len()), (4, 1));
    answer(&mut core, NAME, &[1], 5);
    assert!(core.name_rows()[0].last_failure.is_none());
}

#[test]
fn an_address_of_the_balancer_itself_is_no_backend() {
    let mut core = core("backends = [\"app.internal:80\"]");
    core.set_addresses(&["0.0.0.0:80".parse().unwrap()]);
    answer(&mut core, NAME, &[1], 1);
    assert!(rows(&core).is_empty());
    assert_eq!(core.name_rows()[0].failures, 1);
}

#[test]
fn removals_and_weights_of_operators_outlast_lookups() {
    let mut core = core("backends = [\"app.internal:80\"]");
    answer(&mut core, NAME, &[1, 2, 3], 1);
    core.remove(address(1), None, at(1)).unwrap();
    core.set_weight(address(2), 7, at(1)).unwrap();
    core.drain(address(3), None).unwrap();
    answer(&mut core, NAME, &[1, 2, 3, 4], 2);
    assert_eq!(rows(&core), [(2, "up", "dns"), (3, "draining", "dns"), (4, "up", "dns")]);
    assert_eq!(backend(&core, 2).weight(), 7);
}

#[test]
fn an_address_of_two_names_stays_as_long_as_one_has_it() {
    let mut core = core("backends = [\"a.internal:80\", \"b.internal:80\"]");
    answer(&mut core, "a.internal:80", &[1, 2], 1);
    answer(&mut core, "b.internal:80", &[2, 3], 2);
    answer(&mut core, "a.internal:80", &[1], 3);
    assert_eq!(rows(&core), [(1, "up", "dns"), (2, "up", "dns"), (3, "up", "dns")]);
    assert_eq!(core.rows(at(3))[1].name.as_deref(), Some("b.internal:80"));
    answer(&mut core, "b.internal:80", &[3], 4);
    assert_eq!(rows(&core), [(1, "up", "dns"), (3, "up", "dns")]);
}

#[test]
fn a_reload_has_the_known_addresses_of_names() {
    let mut core = core("backends = [\"app.internal:80\"]");
    answer(&mut core, NAME, &[1, 2], 1);
    let apply = |core: &mut ControlCore, text: &str| {
        let changes = core.apply(Config::parse(text, "b.toml").unwrap(), at(2), |_| {});
        core.expire(at(2), SystemTime::UNIX_EPOCH);
        changes
    };
    let text = "backends = [\"127.0.0.3:80\", { address = \"app.internal:80\", weight = 5 }]";
    let changes = apply(&mut core, text).unwrap();
    assert_eq!(changes.added, [address(3)]);
    assert_eq!(changes.reweighted, [address(1), address(2)]);
    // Without the list, all stay.
    let changes =
        apply(&mut core, "retries = 1\n[register]\ntoken = \"0123456789abcdef\"").unwrap();
    assert!(changes.added.is_empty() && changes.removed.is_empty() && changes.settings);
    assert_eq!((rows(&core).len(), core.names().count()), (3, 1));
    // A name that was not found yet must not stop service by the others.
    let none_up = apply(&mut core, "backends = [\"new.internal:80\"]");
    assert!(matches!(none_up, Err(crate::control::Error::NoneUp)), "{none_up:?}");
    let changes = apply(&mut core, "backends = [\"127.0.0.3:80\"]").unwrap();
    let removed: Vec<_> = changes.removed.iter().map(|it| it.address).collect();
    assert_eq!(removed, [address(1), address(2)]);
    assert!(core.names().next().is_none() && !core.has_looked_up(NAME));
}
