//! The list of backends after any operations, against a plain model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Apply(BTreeSet<u16>),
    Add(u16),
    Remove(u16, Option<bool>),
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
        (port.clone(), any::<Option<bool>>()).prop_map(|(port, drain)| Step::Remove(port, drain)),
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

/// Applies one step to both, and compares the outcomes.
fn perform(
    step: Step,
    core: &mut ControlCore,
    model: &mut Model,
    now: &mut Instant,
) -> Result<(), TestCaseError> {
    let ttl = Duration::from_secs(10);
    match step {
        Step::Apply(list) => {
            apply_list(list, core, model, *now)?;
            let closes = |command: &ControlCommand| matches!(command, ControlCommand::Close(..));
            prop_assert!(!core.commands.iter().any(closes), "a reload closes tunnels");
        }
        Step::Add(port) => {
            let added = core.add(BackendConfig::new(address(port)), *now).is_ok();
            prop_assert_eq!(added, !model.wants(port));
            if added {
                model.api.insert(port);
            }
        }
        Step::Remove(port, drain) => {
            let removed = core.remove(address(port), drain, *now).is_ok();
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
            prop_assert!(!drained || backend(core, port).state() == State::Draining);
        }
        Step::Undrain(port) => {
            let undrained = core.undrain(address(port), *now).is_ok();
            prop_assert!(!undrained || backend(core, port).state() != State::Draining);
        }
        Step::Weight(port, weight) => {
            if core.set_weight(address(port), weight, *now).is_ok() {
                prop_assert_eq!(backend(core, port).weight(), weight);
            }
        }
        Step::Register(port) => {
            core.register(address(port), 1, None, *now).unwrap();
            model.registered.insert(port, now.after(ttl));
        }
        Step::Heartbeat(port) => {
            let renewed = core.heartbeat(address(port), *now).is_ok();
            prop_assert_eq!(renewed, model.registered.contains_key(&port));
            if renewed {
                model.registered.insert(port, now.after(ttl));
            }
        }
        Step::Deregister(port) => {
            let ended = core.deregister(address(port)).is_ok();
            prop_assert_eq!(ended, model.registered.remove(&port).is_some());
        }
        Step::Fail(port) if ports(core).contains(&port) => fail(core, port, 3, *now),
        Step::Open(port) if ports(core).contains(&port) => {
            let backend = backend(core, port);
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
        Step::Wait(millis) => *now = now.after(Duration::from_millis(millis)),
    }
    Ok(())
}

/// Applies a list, which is refused only if no backend that is up would stay.
fn apply_list(
    list: BTreeSet<u16>,
    core: &mut ControlCore,
    model: &mut Model,
    now: Instant,
) -> Result<(), TestCaseError> {
    // Every other one has a name.
    let backends: Vec<_> = list
        .iter()
        .map(|port| match port % 2 {
            0 => format!("\"{},passthrough=n{port}.example.com\"", address(*port)),
            _ => format!("\"{}\"", address(*port)),
        })
        .collect();
    let text = format!("backends = [{}]\n{TOKEN}", backends.join(", "));
    let applied = apply(core, Config::parse(&text, "b.toml").unwrap(), now);
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
    Ok(())
}

/// Lets checks fail of backends whose heartbeats have ended.
fn ask_silent(core: &mut ControlCore, now: Instant) {
    let rows = core.rows(now).into_iter();
    let silent = rows.filter(|row| (row.source, row.state) == ("none", "down"));
    for row in silent {
        let silent = backend(core, row.address.port());
        for _ in 0..3 {
            let gone = Err("gone".to_owned().into());
            core.handle_check(&silent, gone, now, SystemTime::UNIX_EPOCH);
        }
    }
}

/// Compares the list, and the counts of each backend.
fn compare(core: &mut ControlCore, model: &Model) -> Result<(), TestCaseError> {
    let listed = ports(core);
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
        let backend = backend(core, port);
        prop_assert!(held.iter().all(|held| Arc::ptr_eq(held, &backend)));
        prop_assert_eq!(backend.tunnels() as usize, held.len());
        if !model.wants(port) {
            prop_assert!(backend.state() != State::Up);
        }
    }
    if let Some(configuration) = core.take_configuration() {
        let targets = configuration.pools.first().targets.iter();
        let seen = targets.map(|target| target.backend.address().port());
        let serves = |entry: &&Entry| !entry.is_removed && entry.passthrough.is_empty();
        let offered = core.entries.iter().filter(serves);
        let offered = offered.map(|entry| entry.backend.address().port());
        prop_assert_eq!(seen.collect::<Vec<_>>(), offered.collect::<Vec<_>>());
    }
    Ok(())
}

/// Checks that the last command to shards about a backend fits its state. `closing` are the
/// backends whose tunnels they all close.
fn follow_commands(
    core: &mut ControlCore,
    closing: &mut BTreeSet<u16>,
    now: Instant,
) -> Result<(), TestCaseError> {
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
    prop_assert_eq!(&*closing, &ending);
    Ok(())
}

proptest! {
    #[test]
    fn the_list_follows_file_operators_and_registrations(
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut core = core(&[], TOKEN);
        let mut model = Model::default();
        let mut now = at(0.0);
        let mut closing = BTreeSet::new();
        let mut reported = Vec::new();
        for step in steps {
            perform(step, &mut core, &mut model, &mut now)?;
            model.registered.retain(|_, expires| *expires > now);
            expire(&mut core, now);
            ask_silent(&mut core, now);
            let next = expire(&mut core, now);
            prop_assert!(next.is_none_or(|next| next > now), "it would spin");
            compare(&mut core, &model)?;
            if let Some(names) = core.take_passthrough() {
                reported = names;
            }
            prop_assert_eq!(&reported, &core.passthrough());
            follow_commands(&mut core, &mut closing, now)?;
        }
    }
}
