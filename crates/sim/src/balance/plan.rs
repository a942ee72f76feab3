//! Plans of a balancer, made from a seed: settings, backends, clients, faults and commands.

use std::time::Duration;

use throng_balance::{CloseOrder, Pick, Settings, Sticky, Timeouts};

use super::through::{Conduct, HelloPlan};
use super::wire::PeerBehaviour;
use crate::faults::Faults;
use crate::net::LinkOptions;
use crate::plan::SECOND;
use crate::rng::Rng;
use crate::secured::Hops;

/// Behavior of a backend on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// Everything correct.
    Conforming,
    /// Handshakes are answered 403.
    Deny,
    /// Handshakes are answered 200.
    Plain,
    /// A 101 for another key.
    WrongAccept,
    /// No HTTP.
    Garbage,
    /// Half a head, then the end.
    HalfHead,
    /// Nothing, ever.
    Mute,
    /// A reset after so many bytes were read.
    ResetAfter(usize),
    /// The end at once.
    CloseAtOnce,
    /// Sends more than was requested after each answer.
    Surplus,
    /// Ends a connection that was meant to be reused.
    EndIdle,
    /// The connection ends in the middle of a body.
    CutBody,
    /// The answer comes before the request is whole, and the connection ends.
    Early,
}

/// The end of a tunnel by its backend, if the client does not end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackendClose {
    /// A Close frame after its last frame.
    Close,
    /// A Close frame, and the end of its stream at once.
    CloseAndFinish,
    /// It waits for its client.
    Stay,
    /// The end of its stream without a Close frame.
    Finish,
    /// A reset.
    Reset,
    /// The end in the middle of a frame.
    MidFrame,
    /// Sends invalid frame bytes, and keeps the connection.
    NoFrame,
}

/// One backend.
#[derive(Clone, Debug)]
pub(super) struct BackendPlan {
    pub(super) weight: u32,
    /// The patterns of server names whose connections are passed through to it.
    pub(super) patterns: Vec<&'static str>,
    pub(super) send_proxy: bool,
    /// No process listens there.
    pub(super) is_dead: bool,
    /// Whether bytes sent to the backend are lost.
    pub(super) is_silent: bool,
    pub(super) protocol: BackendProtocol,
    /// Whether the backend is in the list from the beginning.
    pub(super) is_member: bool,
    /// Its requests and tunnels at a time; 0: no limit.
    pub(super) max_connections: u32,
    /// Its place in the order in which backends serve.
    pub(super) place: BackendPlace,
    pub(super) link: LinkOptions,
}

/// Which backends must be down before a backend serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BackendPlace {
    /// None.
    #[default]
    Primary,
    /// All primaries.
    Backup,
    /// All primaries and backups: it is in the pool `other`, the fallback.
    Fallback,
}

/// The protocol of a backend, with its behaviour on each connection.
#[derive(Clone, Debug)]
pub(super) enum BackendProtocol {
    Http { behaviours: Vec<Behaviour>, leavings: Vec<BackendClose> },
    Passed(Vec<Conduct>),
}

/// One request of a client.
#[derive(Clone, Debug)]
pub(super) struct RequestPlan {
    pub(super) id: u32,
    pub(super) method: &'static str,
    pub(super) len: usize,
    pub(super) chunked: bool,
    pub(super) http10: bool,
    /// Bytes of a meaningless header field.
    pub(super) padding: usize,
}

/// End of a client's tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientClose {
    /// A Close frame after its last frame.
    Close,
    /// The end of its stream without one.
    Finish,
    /// It waits for the others, and answers a Close.
    Stay,
    /// It waits for the others, and does not answer a Close.
    Silent,
    /// Sends invalid frame bytes, and keeps the connection.
    NoFrame,
}

#[derive(Clone, Debug)]
pub(super) enum SessionPlan {
    Tunnel { frames: usize, early: usize, gap: u64, parting: ClientClose, largest: usize },
    Http { asks: Vec<RequestPlan>, pipelined: bool, finish: bool },
}

/// One client.
#[derive(Clone, Debug)]
pub(super) struct ClientPlan {
    pub(super) id: u32,
    pub(super) at: u64,
    pub(super) link: LinkOptions,
    pub(super) address: u8,
    pub(super) behaviour: PeerBehaviour,
    pub(super) protocol: ClientProtocol,
}

/// The protocol of a client, with its behaviour.
#[derive(Clone, Debug)]
pub(super) enum ClientProtocol {
    Http(SessionPlan),
    Passed(HelloPlan),
}

/// A command of the control thread.
#[derive(Clone, Debug)]
pub(super) enum ControlCommand {
    Add(usize),
    /// Removes a backend, but keeps its tunnels.
    Remove(usize),
    /// Marks a backend as down, and closes its tunnels.
    Down(usize),
    /// Drains it within so long.
    Drain(usize, u64),
    Weight(usize, u32),
    Close {
        backend_index: usize,
        code: u16,
        rate: u32,
        order: CloseOrder,
        most: Option<u32>,
        deadline: Option<u64>,
    },
    Keep(usize),
    /// Moves a backend to the other pool, which gets no requests, or back.
    Move(usize),
    ShutDown {
        window: u64,
        deadline: u64,
    },
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct BalancePlan {
    pub(super) seed: u64,
    /// Whether no peer breaks rules and no timeout expires, so that every client must be served.
    pub(super) calm: bool,
    pub(super) shards: usize,
    pub(super) most_connections: usize,
    pub(super) settings: Settings,
    pub(super) faults: Faults,
    pub(super) backends: Vec<BackendPlan>,
    pub(super) clients: Vec<ClientPlan>,
    pub(super) commands: Vec<(u64, ControlCommand)>,
    /// The hops that have TLS.
    pub(super) secured: Hops,
    /// The keys of a site of all hosts.
    pub(super) site: Option<String>,
}

impl BalancePlan {
    /// The plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0062_616c_616e_6365);
        let (calm, faults) = calm_and_faults(&mut rng);
        let finely = faults.is_fine();
        let largest = if finely { rng.pick(&[130, 700]) } else { rng.pick(&[300, 5000, 70_000]) };
        let settings = settings(&mut rng, calm);
        let busy = rng.between(1, 6) * SECOND;
        let mut backends: Vec<BackendPlan> =
            (0..1 + rng.below(4)).map(|_| backend(&mut rng, calm, finely)).collect();
        backends[0].is_member = true;
        let mut id = 0;
        let mut clients: Vec<ClientPlan> = (0..1 + rng.below(9))
            .map(|_| client(&mut rng, calm, finely, busy, largest, &faults, &mut id))
            .collect();
        let mut commands: Vec<(u64, ControlCommand)> = (0..rng.pick(&[0, 0, 1, 3, 8]))
            .map(|_| (rng.between(0, busy), control_command(&mut rng, backends.len(), calm)))
            .collect();
        if !calm && rng.one_in(4) {
            let window = rng.pick(&[0, SECOND, 3 * SECOND]);
            let deadline = rng.pick(&[0, 2 * SECOND, 60 * SECOND]);
            commands.push((rng.between(0, busy), ControlCommand::ShutDown { window, deadline }));
        }
        if rng.one_in(12) {
            many_tunnels(&mut rng, &mut clients, &mut commands, &mut id);
        }
        if !finely && rng.one_in(10) {
            clients.push(pipeliner(&mut rng, busy, &mut id));
        }
        commands.sort_by_key(|(at, _)| *at);
        let few = !calm && rng.one_in(8);
        Self {
            seed,
            calm,
            shards: 1 + rng.below(2),
            most_connections: if few { 1 + rng.below(4) } else { 1000 },
            settings,
            faults,
            backends,
            clients,
            commands,
            secured: Hops::default(),
            site: None,
        }
    }

    /// Returns the plan of a seed with TLS in front of the balancer, after it, or both.
    #[must_use]
    pub fn secured(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0074_6c73);
        let mut plan = Self { secured: Hops::of(&mut rng), ..Self::of(seed) };
        for client in &mut plan.clients {
            // At most some of the clients may be in the middle of the handshake.
            client.link.cut_after = client.link.cut_after.map(|at| at + rng.between(0, 4000));
        }
        plan
    }

    /// Returns the plan of a seed with reloads alone: backends move between two pools, and change
    /// their weights.
    #[must_use]
    pub fn reloads(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0070_6f6f_6c73);
        let mut plan = Self::of(seed);
        plan.backends.iter_mut().for_each(|backend| backend.is_member = true);
        let last = plan.clients.iter().map(|client| client.at).max().unwrap_or(0);
        let number = plan.backends.len();
        let mut reload = |_| {
            let backend_index = rng.below(number);
            let command = match rng.one_in(4) {
                true => ControlCommand::Weight(backend_index, 1 + rng.below(5) as u32),
                false => ControlCommand::Move(backend_index),
            };
            (rng.between(0, last + 3 * SECOND), command)
        };
        plan.commands = (0..16).map(&mut reload).collect();
        plan.commands.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the plan of a seed in which backends have limits of connections, and some serve only
    /// while others are down. Tunnels end by themselves, so that those who wait are served.
    #[must_use]
    pub fn capacity(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0063_6170_7321);
        let mut plan = Self::of(seed);
        for backend in &mut plan.backends {
            backend.is_member = true;
            backend.max_connections = rng.pick(&[0, 1, 1, 2, 3]);
            backend.place = match rng.below(4) {
                0 => BackendPlace::Backup,
                1 => BackendPlace::Fallback,
                _ => BackendPlace::Primary,
            };
        }
        plan.backends[0].place = BackendPlace::Primary;
        plan.settings.fallback = Some("other".into());
        plan.settings.max_queue = if plan.calm { 0 } else { rng.pick(&[0, 1, 2, 5]) };
        for client in &mut plan.clients {
            if let ClientProtocol::Http(SessionPlan::Tunnel { parting, .. }) = &mut client.protocol
                && matches!(parting, ClientClose::Stay | ClientClose::Silent)
            {
                *parting = ClientClose::Close;
            }
        }
        let number = plan.backends.len();
        let busy = plan.clients.iter().map(|client| client.at).max().unwrap_or(0);
        let mut command = |_| {
            let backend_index = rng.below(number);
            let command = match rng.below(3) {
                0 => ControlCommand::Weight(backend_index, 1 + rng.below(5) as u32),
                1 if !plan.calm => ControlCommand::Down(backend_index),
                2 if !plan.calm => ControlCommand::Remove(backend_index),
                _ => ControlCommand::Add(backend_index),
            };
            (rng.between(0, busy + SECOND), command)
        };
        plan.commands = (0..4).map(&mut command).collect();
        plan.commands.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Returns the plan of a seed in which tunnels have rates, which their clients exceed, and some
    /// a longest life.
    #[must_use]
    pub fn metered(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x006d_6574_6572);
        let mut plan = Self::of(seed);
        let (messages, burst) = (rng.pick(&[200, 1_000]), rng.pick(&[1, 10, 100]));
        let (bytes, bytes_burst) = (rng.pick(&["64KiB", "256KiB"]), rng.pick(&["1KiB", "16KiB"]));
        let mut keys = String::new();
        if rng.one_in(2) {
            keys += &format!(
                "tunnel.messages_per_second = {messages}\ntunnel.messages_burst = {burst}\n"
            );
        }
        if keys.is_empty() || rng.one_in(2) {
            keys += &format!(
                "tunnel.bytes_per_second = {bytes:?}\ntunnel.bytes_burst = {bytes_burst:?}\n"
            );
        }
        if !plan.calm && rng.one_in(4) {
            keys += "tunnel.over = \"close\"\n";
        }
        if !plan.calm && rng.one_in(3) {
            keys += rng.pick(&["tunnel.max_lifetime = \"1s\"\n", "tunnel.max_lifetime = \"5s\"\n"]);
        }
        plan.site = Some(keys);
        plan
    }

    /// Returns whether connections are passed through.
    pub(super) fn passes_through(&self) -> bool {
        self.backends.iter().any(|backend| !backend.patterns.is_empty())
    }

    /// Returns the virtual time in nanoseconds at which every timeout has expired.
    pub(super) fn time_limit(&self) -> u64 {
        let requests = |client: &ClientPlan| match &client.protocol {
            ClientProtocol::Http(SessionPlan::Http { asks, .. }) => asks.len(),
            ClientProtocol::Http(SessionPlan::Tunnel { .. }) => 1,
            ClientProtocol::Passed(_) => 0,
        };
        // The requests of one client are served one after another.
        let most = self.clients.iter().map(requests).max().unwrap_or(0) as u32;
        let Timeouts {
            connect,
            response,
            upgrade,
            body,
            head,
            keep_alive,
            tunnel,
            half_closed,
            close,
            queue,
        } = self.settings.timeouts;
        let each = queue + connect * (1 + u32::from(self.settings.retries)) + response;
        let tunnel = if tunnel > Duration::from_secs(10_000) { Duration::ZERO } else { tunnel };
        let all = connect
            + response
            + upgrade
            + body
            + head
            + keep_alive
            + tunnel
            + half_closed
            + close
            + queue;
        // A clock leap exceeds any timeout.
        let leaps = if self.faults.clock_leaps > 0 { 10_000_000 * SECOND } else { 0 };
        (all * 3 + each * most).as_nanos() as u64 + 60 * SECOND + leaps
    }
}

/// Draws whether a run is calm, and its faults.
pub(super) fn calm_and_faults(rng: &mut Rng) -> (bool, Faults) {
    let calm = rng.one_in(2);
    let mut faults = Faults::of(rng);
    if calm {
        (faults.adopt_fails, faults.clock_leaps, faults.cut_links) = (0, 0, 0);
    } else {
        faults.connect_fails = if rng.one_in(4) { rng.pick(&[2, 6]) } else { 0 };
        faults.cut_dials = if rng.one_in(4) { rng.pick(&[2, 6]) } else { 0 };
    }
    if calm && faults.is_fine() {
        // Single bytes, each of them late, would exceed any timeout.
        faults.starved_receives = 0;
    }
    (calm, faults)
}

/// A client that sends all its requests at once, without waiting for answers: many times the input
/// that the balancer may hold for it.
fn pipeliner(rng: &mut Rng, busy: u64, next_id: &mut u32) -> ClientPlan {
    *next_id += 1;
    let id = *next_id;
    let padding = rng.pick(&[3_000, 6_000, 12_000]);
    let asks = (0..600_000 / padding)
        .map(|_| {
            *next_id += 1;
            let id = *next_id;
            RequestPlan { id, method: "GET", len: 0, chunked: false, http10: false, padding }
        })
        .collect();
    let capacity = rng.pick(&[64 << 10, 1 << 20]);
    ClientPlan {
        id,
        at: rng.between(0, busy),
        link: LinkOptions { capacity, ..link(rng) },
        address: 1,
        behaviour: PeerBehaviour::default(),
        protocol: ClientProtocol::Http(SessionPlan::Http { asks, pipelined: true, finish: false }),
    }
}

/// Many tunnels that end only by a command, or with their backend.
fn many_tunnels(
    rng: &mut Rng,
    clients: &mut Vec<ClientPlan>,
    commands: &mut Vec<(u64, ControlCommand)>,
    id: &mut u32,
) {
    for _ in 0..25 {
        *id += 1;
        clients.push(ClientPlan {
            id: *id,
            at: rng.between(0, SECOND / 2),
            link: link(rng),
            address: 1,
            behaviour: PeerBehaviour::default(),
            protocol: ClientProtocol::Http(SessionPlan::Tunnel {
                frames: rng.below(3),
                early: 0,
                gap: SECOND,
                parting: ClientClose::Stay,
                largest: 130,
            }),
        });
    }
    let rate = rng.pick(&[1, 2, 5]);
    let order = rng.pick(&[CloseOrder::Shuffled, CloseOrder::IdleAndOldest]);
    let most = rng.one_in(2).then(|| rng.below(15) as u32);
    commands.clear();
    let close =
        ControlCommand::Close { backend_index: 0, code: 1012, rate, order, most, deadline: None };
    commands.push((2 * SECOND, close));
}

pub(super) fn settings(rng: &mut Rng, calm: bool) -> Settings {
    let mut seconds = |low: u64, high: u64| match calm {
        true => Duration::from_secs(500),
        false => Duration::from_millis(rng.between(low * 1000, high * 1000)),
    };
    let timeouts = Timeouts {
        connect: seconds(1, 4),
        response: seconds(1, 6),
        upgrade: seconds(1, 6),
        body: seconds(1, 6),
        head: seconds(1, 6),
        keep_alive: seconds(1, 6),
        tunnel: seconds(2, 20),
        half_closed: seconds(1, 6),
        close: seconds(2, 5),
        queue: seconds(1, 6),
    };
    Settings {
        pick: rng.pick(&[
            Pick::PowerOfTwo,
            Pick::LeastConnections,
            Pick::RoundRobin,
            Pick::Rendezvous,
            Pick::Random,
            Pick::IpHash,
        ]),
        sticky: match rng.below(8) {
            0 => Sticky::Cookie("b".to_owned()),
            1 => Sticky::Header("X-Key".to_owned()),
            2 => Sticky::Query("k".to_owned()),
            3 => Sticky::Ip,
            _ => Sticky::None,
        },
        timeouts,
        max_handshakes: rng.pick(&[0, 1, 2, 8]),
        retries: rng.pick(&[0, 1, 2, 3]),
        keep_alive: rng.pick(&[0, 1, 4]),
        close_rate: rng.pick(&[1, 3, 50]),
        max_connections_per_address: if calm { None } else { rng.pick(&[None, None, Some(2)]) },
        min_body_rate: rng.pick(&[0, 100, 1024]),
        min_response_rate: rng.pick(&[0, 100, 256]),
        ..Settings::default()
    }
}

pub(super) fn link(rng: &mut Rng) -> LinkOptions {
    LinkOptions {
        latency: rng.pick(&[0, 1_000, 50_000, 2_000_000]),
        capacity: rng.pick(&[200, 3000, 64 * 1024, 1 << 20]),
        cut_after: None,
    }
}

fn backend(rng: &mut Rng, calm: bool, finely: bool) -> BackendPlan {
    let mut behaviours = vec![Behaviour::Conforming];
    let mut leavings = vec![BackendClose::Stay, BackendClose::Close, BackendClose::CloseAndFinish];
    if !calm {
        for _ in 0..rng.below(4) {
            let after = rng.below(if finely { 300 } else { 5000 });
            behaviours.push(rng.pick(&[
                Behaviour::Conforming,
                Behaviour::Deny,
                Behaviour::Plain,
                Behaviour::WrongAccept,
                Behaviour::Garbage,
                Behaviour::HalfHead,
                Behaviour::Mute,
                Behaviour::ResetAfter(after),
                Behaviour::ResetAfter(after),
                Behaviour::CloseAtOnce,
                Behaviour::Surplus,
                Behaviour::EndIdle,
                Behaviour::CutBody,
                Behaviour::Early,
            ]));
        }
        for _ in 0..rng.below(3) {
            leavings.push(rng.pick(&[
                BackendClose::Finish,
                BackendClose::Reset,
                BackendClose::MidFrame,
                BackendClose::NoFrame,
            ]));
        }
    }
    BackendPlan {
        weight: 1 + rng.below(3) as u32,
        patterns: Vec::new(),
        send_proxy: rng.one_in(6),
        is_dead: !calm && rng.one_in(10),
        is_silent: !calm && rng.one_in(12),
        protocol: BackendProtocol::Http { behaviours, leavings },
        is_member: rng.below(4) > 0,
        max_connections: 0,
        place: BackendPlace::Primary,
        link: link(rng),
    }
}

fn client(
    rng: &mut Rng,
    calm: bool,
    finely: bool,
    busy: u64,
    largest: usize,
    faults: &Faults,
    next_id: &mut u32,
) -> ClientPlan {
    let id = *next_id + 1;
    *next_id = id;
    let session = if rng.one_in(2) {
        let partings: &[ClientClose] = match calm {
            true => &[ClientClose::Close, ClientClose::Close, ClientClose::Stay],
            false => &[
                ClientClose::Close,
                ClientClose::Close,
                ClientClose::Stay,
                ClientClose::Finish,
                ClientClose::Silent,
                ClientClose::NoFrame,
            ],
        };
        let early = if rng.one_in(3) { rng.below(4) } else { 0 };
        SessionPlan::Tunnel {
            frames: early + rng.below(if finely { 6 } else { 20 }),
            early,
            gap: rng.pick(&[0, 100_000, SECOND / 3]),
            parting: rng.pick(partings),
            largest,
        }
    } else {
        let count = 1 + rng.below(5);
        let asks = (0..count)
            .map(|number| {
                let method = rng.pick(&["GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE"]);
                let has_body = matches!(method, "POST" | "PUT");
                *next_id += 1;
                let most = if finely { 800 } else { rng.pick(&[100, 5000, 150_000]) };
                RequestPlan {
                    id: *next_id,
                    method,
                    len: if has_body { rng.below(most) } else { 0 },
                    chunked: has_body && rng.one_in(2),
                    http10: number + 1 == count && rng.one_in(6),
                    padding: 0,
                }
            })
            .map(|asking| RequestPlan { chunked: asking.chunked && !asking.http10, ..asking })
            .collect();
        SessionPlan::Http { asks, pipelined: rng.one_in(2), finish: !calm && rng.one_in(4) }
    };
    let mut behaviour = behaviour(rng, finely);
    if !calm && rng.one_in(3) {
        behaviour.vanish = Some((rng.below(if finely { 600 } else { 6000 }), rng.one_in(2)));
    }
    let mut link = link(rng);
    if faults.cut_links > 0 && rng.one_in(faults.cut_links) {
        link.cut_after = Some(rng.between(1, 5000));
    }
    ClientPlan {
        id,
        at: rng.between(0, busy),
        link,
        address: 1 + rng.below(3) as u8,
        behaviour,
        protocol: ClientProtocol::Http(session),
    }
}

pub(super) fn behaviour(rng: &mut Rng, finely: bool) -> PeerBehaviour {
    PeerBehaviour {
        cut: rng.pick(if finely { &[0, 0, 30, 200] } else { &[0, 0, 700, 20_000] }),
        rest: rng.pick(&[0, 1_000, 2_000_000]),
        nap: rng.one_in(4).then(|| (rng.below(3000), rng.between(1, 4) * SECOND)),
        vanish: None,
    }
}

fn control_command(rng: &mut Rng, backends: usize, calm: bool) -> ControlCommand {
    let backend_index = rng.below(backends);
    match rng.below(8) {
        0 => ControlCommand::Add(backend_index),
        1 => ControlCommand::Remove(backend_index),
        2 => ControlCommand::Weight(backend_index, 1 + rng.below(5) as u32),
        3 => ControlCommand::Keep(backend_index),
        4 if !calm => ControlCommand::Down(backend_index),
        _ => ControlCommand::Close {
            backend_index,
            code: rng.pick(&[1001, 1012]),
            rate: rng.pick(&[1, 2, 5, 100]),
            order: rng.pick(&[CloseOrder::Shuffled, CloseOrder::IdleAndOldest]),
            most: rng.one_in(2).then(|| rng.below(5) as u32),
            deadline: rng.one_in(4).then(|| rng.between(0, 3 * SECOND)),
        },
    }
}
