//! Plans for connections that are passed through, made from a seed.

use super::conduct::{Beginning, Conduct, HelloPlan};
use crate::balance::plan::{
    BackendPlace, BackendPlan, BackendProtocol, BalancePlan, ClientPlan, ClientProtocol,
    ControlCommand, behaviour, calm_and_faults, link, settings,
};
use crate::balance::wire::Then;
use crate::faults::Faults;
use crate::plan::SECOND;
use crate::rng::Rng;
use crate::secured::Hops;

/// Names that clients request. The last two have no backend, unless a backend matches all names.
const NAMES: [Option<&str>; 6] = [
    Some("db.example.com"),
    Some("DB.example.com"),
    Some("a.example.com"),
    Some("b.example.com"),
    Some("elsewhere.org"),
    None,
];

impl BalancePlan {
    /// The plan of a seed whose connections are passed through.
    #[must_use]
    pub fn passed_through(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7468_726f_7567_6800);
        let (calm, faults) = calm_and_faults(&mut rng);
        let finely = faults.is_fine();
        let busy = rng.between(1, 6) * SECOND;
        let backends: Vec<BackendPlan> =
            (0..1 + rng.below(4)).map(|at| backend(&mut rng, at, calm, finely)).collect();
        let clients: Vec<_> = (0..1 + rng.below(9))
            .map(|at| client(&mut rng, at as u32 + 1, calm, finely, busy, &faults))
            .collect();
        let count = rng.pick(&[0, 0, 1, 3, 6]);
        let mut commands: Vec<_> = (0..count)
            .map(|_| match calm {
                true => addition(&mut rng, backends.len(), &clients),
                false => (rng.between(0, busy), control_command(&mut rng, backends.len())),
            })
            .collect();
        commands.sort_by_key(|(at, _)| *at);
        let few = !calm && rng.one_in(8);
        Self {
            seed,
            calm,
            shards: 1,
            most_connections: if few { 1 + rng.below(4) } else { 1000 },
            settings: settings(&mut rng, calm),
            faults,
            backends,
            clients,
            commands,
            secured: Hops::default(),
            site: None,
        }
    }

    /// Returns whether a name with a backend at the beginning keeps it to the end, because a calm
    /// run only adds backends.
    pub(super) fn keeps_backends(&self) -> bool {
        self.calm || self.commands.is_empty()
    }

    /// The indices of backends for that name at the beginning.
    pub(super) fn backends_for(&self, name: Option<&str>) -> Vec<usize> {
        let name = name.map(str::to_ascii_lowercase);
        let parent = name.as_ref().and_then(|name| name.split_once('.')).map(|(_, rest)| rest);
        let wildcard = parent.map(|parent| format!("*.{parent}"));
        let forms = name.clone().into_iter().chain(wildcard).chain(["*".to_owned()]);
        let of = |form: String| {
            let has = |plan: &BackendPlan| plan.is_member && plan.patterns.contains(&&*form);
            (0..self.backends.len()).filter(|at| has(&self.backends[*at])).collect::<Vec<_>>()
        };
        forms.map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }
}

fn backend(rng: &mut Rng, at: usize, calm: bool, finely: bool) -> BackendPlan {
    let most = if finely { 700 } else { rng.pick(&[10, 5_000, 200_000]) };
    let mut conducts = vec![
        Conduct::Answer(1 + rng.below(most)),
        Conduct::Echo,
        Conduct::EndFirst(rng.below(most)),
    ];
    if !calm {
        for _ in 0..rng.below(4) {
            let after = rng.below(if finely { 400 } else { 5_000 });
            conducts.push(rng.pick(&[
                Conduct::Mute,
                Conduct::CloseAtOnce,
                Conduct::ResetAfter(after),
                Conduct::AnswerAndReset(after),
            ]));
        }
    }
    let patterns: &[&'static str] = rng.pick(&[
        &["db.example.com"][..],
        &["db.example.com", "*.example.com"],
        &["*.example.com"],
        &["*"],
        &["a.example.com", "*"],
    ]);
    BackendPlan {
        weight: 1,
        patterns: patterns.to_vec(),
        send_proxy: rng.one_in(5),
        is_dead: !calm && rng.one_in(8),
        is_silent: !calm && rng.one_in(12),
        protocol: BackendProtocol::Passed(conducts),
        max_connections: 0,
        place: BackendPlace::Primary,
        is_member: at == 0 || rng.below(4) > 0,
        link: link(rng),
    }
}

fn client(
    rng: &mut Rng,
    id: u32,
    calm: bool,
    finely: bool,
    busy: u64,
    faults: &Faults,
) -> ClientPlan {
    let beginning = match rng.below(12) {
        0 | 1 => Beginning::Part(rng.below(1000)),
        2 if !calm => Beginning::Oversized,
        3 => Beginning::Plain,
        _ => Beginning::Hello,
    };
    let mut behaviour = behaviour(rng, finely);
    if rng.one_in(3) {
        // So slow that a ClientHello may miss its deadline, unless the run is calm.
        (behaviour.cut, behaviour.rest) = (rng.pick(&[1, 5, 40]), rng.pick(&[1_000, SECOND / 10]));
    }
    if !calm && rng.one_in(3) {
        behaviour.vanish = Some((rng.below(if finely { 600 } else { 2000 }), rng.one_in(2)));
    }
    let mut link = link(rng);
    if faults.cut_links > 0 && rng.one_in(faults.cut_links) {
        link.cut_after = Some(rng.between(1, 5000));
    }
    let slowly = behaviour.rest > 10_000_000;
    let padding =
        if finely || slowly { rng.pick(&[0, 90]) } else { rng.pick(&[0, 300, 8_000, 50_000]) };
    let (at, address) = (rng.between(0, busy), 1 + rng.below(3) as u8);
    let hello = HelloPlan {
        beginning,
        name: rng.pick(&NAMES),
        padding,
        // Headers also count: a whole ClientHello has at most 64 KiB.
        record: if padding > 20_000 { 16_384 } else { rng.pick(&[16_384, 16_384, 200, 20]) },
        surplus: match (slowly, finely) {
            (true, _) => rng.pick(&[0, 30]),
            (_, true) => rng.pick(&[0, 1, 500]),
            _ => rng.pick(&[0, 1, 500, 20_000, 300_000]),
        },
        then: match calm {
            true => Then::Finish,
            false => rng.pick(&[Then::Finish, Then::Finish, Then::Stay, Then::Close, Then::Reset]),
        },
    };
    ClientPlan { id, at, link, address, behaviour, protocol: ClientProtocol::Passed(hello) }
}

/// Adds a backend to a calm run at about the time of a ClientHello. Clients must not notice it.
fn addition(rng: &mut Rng, backends: usize, clients: &[ClientPlan]) -> (u64, ControlCommand) {
    let client = &clients[rng.below(clients.len())];
    let at = client.at + rng.pick(&[1, 2, 3]) * client.link.latency;
    (at, ControlCommand::Add(rng.below(backends)))
}

fn control_command(rng: &mut Rng, backends: usize) -> ControlCommand {
    let backend_index = rng.below(backends);
    match rng.below(8) {
        0..3 => ControlCommand::Add(backend_index),
        3..5 => ControlCommand::Remove(backend_index),
        5 | 6 => ControlCommand::Drain(backend_index, rng.between(0, 3 * SECOND)),
        _ => ControlCommand::ShutDown {
            window: rng.pick(&[0, SECOND]),
            deadline: rng.pick(&[0, 2 * SECOND, 60 * SECOND]),
        },
    }
}
