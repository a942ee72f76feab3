//! Secured connections on the simulated network, accepted or started by us: rustls is the far end,
//! and the faults of the seed cut, delay and refuse the bytes between it and the driver.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::{ClientConnection, Connection, ProtocolVersion, ServerConnection};
use throng_io::{Batch, Closed, ConnId, Driver, Event, Segment, SendOutcome, TlsFailure};
use throng_sim::driver::{SimDriver, SimRecord};
use throng_sim::net::{LinkId, LinkOptions, Readable, Side};
use throng_sim::{Faults, Net, Rng, Seeds, SharedNet, Waiting};
use throng_tls::{ClientConfigs, ClientSettings, Tls, TlsClient, TlsRecord, TlsServer, Trust};

use crate::support::{
    TrustFolder, VERSIONS, client, client_config, client_config_of, raw_server_config, said, suites,
};

static SERVER: LazyLock<Arc<TlsServer>> = LazyLock::new(|| TlsServer::new(raw_server_config(None)));

const fn seeds(run: fn(u64) -> Result<(), String>) -> Seeds {
    Seeds { package: "throng-tls", test: "simulated", run }
}

#[test]
fn a_thousand_seeds_lose_no_byte_of_a_client() {
    seeds(|seed| run(seed, Role::Server)).check_many();
}

#[test]
fn a_thousand_seeds_lose_no_byte_of_a_server() {
    seeds(|seed| run(seed, Role::Client)).check_many();
}

#[test]
fn a_thousand_seeds_lose_no_byte_of_a_client_whose_connection_moves() {
    seeds(|seed| run_moving(seed, Role::Server)).check_many();
}

#[test]
fn a_thousand_seeds_lose_no_byte_of_a_server_whose_connection_moves() {
    seeds(|seed| run_moving(seed, Role::Client)).check_many();
}

/// Our role in the handshakes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// The end of a far end's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    CloseNotify,
    Fin,
    Reset,
    /// A bit of a record is flipped.
    Corrupt,
}

/// rustls at the other end of a connection.
struct Far {
    /// `None` until it has accepted the connection.
    end: Option<(LinkId, Side)>,
    /// The port on which it accepts, if it does.
    listener: usize,
    tls: Connection,
    /// Data that our side sends before it is connected.
    greeting: Vec<u8>,
    /// Ciphertext that has not left yet.
    out: Vec<u8>,
    to_write: usize,
    written: Vec<u8>,
    read: Vec<u8>,
    ending: Ending,
    ended: bool,
    /// The peer has received an alert, or the end of the stream.
    over: Option<String>,
    has_finished: bool,
}

/// A connection of the driver, which echoes.
#[derive(Default)]
struct Conn {
    /// We started the connection, and it is not connected yet.
    connecting: bool,
    /// The connection ended before it was connected.
    refused: bool,
    received: Vec<u8>,
    waiting: Vec<u8>,
    in_flight: bool,
    paused: bool,
    secured: bool,
    finished: Option<bool>,
    fin_sent: bool,
    closed: bool,
    /// It is being parked, or is parked: its record.
    is_parking: bool,
    parked: Option<TlsRecord<SimRecord>>,
    /// It has moved to the successor.
    has_moved: bool,
}

fn run(seed: u64, role: Role) -> Result<(), String> {
    run_with(seed, role, false)
}

/// Parks connections at any time, and continues them at the same driver or at a successor.
fn run_moving(seed: u64, role: Role) -> Result<(), String> {
    run_with(seed, role, true)
}

fn run_with(seed: u64, role: Role, moves: bool) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let faults = Faults {
        receive_buffer: rng.pick(&[1, 7, 100, 4096, 64 * 1024]),
        cut_receives: rng.pick(&[0, 0, 1, 30, 20_000]),
        partial_sends: rng.pick(&[0, 2, 5]),
        delayed_sends: rng.pick(&[0, 2, 5]),
        starved_receives: rng.pick(&[0, 5]),
        slow_closes: rng.pick(&[0, 2]),
        events_per_turn: rng.pick(&[1, 3, 1024]),
        shuffled: rng.one_in(2),
        ..Faults::default()
    };
    let small = faults.receive_buffer < 100 || faults.cut_receives == 1;
    let net = Net::shared();
    let inner = SimDriver::new(&net, 5, faults.clone(), rng.fork(), Waiting::Jump);
    let mut driver = Tls::new(inner);
    let mut successor = None;
    let address = SocketAddr::from(([127, 0, 0, 1], 1000));
    let listener = net.borrow_mut().listen(address);
    let listening = driver.inner().add_listener(listener);
    driver.secure(listening, Arc::clone(&SERVER));
    let most = if small { 3_000 } else { 120_000 };
    let mut fars: Vec<Far> = (0..1 + rng.below(3))
        .map(|at| match role {
            Role::Server => dial(&net, &mut rng, listener, at, most),
            Role::Client => listen(&net, &mut rng, at, most),
        })
        .collect();
    let mut conns: HashMap<ConnId, Conn> = HashMap::new();
    // By the port, which gives the order of the far ends.
    let mut ids: HashMap<u16, ConnId> = HashMap::new();
    if role == Role::Client {
        connect(&mut driver, &fars, &mut conns, &mut ids, &mut rng)?;
    }
    let mut calm = 0;
    for turn in 0.. {
        if turn == 200_000 {
            return Err(format!("seed {seed}: it does not end"));
        }
        let mut moved = false;
        for far in &mut fars {
            moved |= far.act(&net, &mut rng)?;
        }
        driver.inner().progress();
        let until = driver.now().after(Duration::from_micros(rng.between(1, 5_000)));
        driver.wait(Some(until)).map_err(|error| error.to_string())?;
        moved |= serve(&mut driver, &mut conns, &mut ids, &mut rng)?;
        if moves && successor.is_none() && rng.one_in(10) {
            let inner = SimDriver::new(&net, 5, faults.clone(), rng.fork(), Waiting::Jump);
            let mut next = Tls::new(inner);
            // The far ends that have not connected yet.
            let slots = driver.give_slots(3).map_err(|error| error.to_string())?;
            next.begin_with(&slots).map_err(|error| error.to_string())?;
            successor = Some(next);
        }
        if let Some(next) = &mut successor {
            next.inner().progress();
            let until = next.now().after(Duration::from_micros(rng.between(1, 5_000)));
            next.wait(Some(until)).map_err(|error| error.to_string())?;
            moved |= serve(next, &mut conns, &mut ids, &mut rng)?;
        }
        for (id, conn) in &mut conns {
            if moves && conn.move_on(&mut driver, successor.as_mut(), *id, &mut rng)? {
                moved = true;
                continue;
            }
            let at = match &mut successor {
                Some(next) if conn.has_moved => next,
                _ => &mut driver,
            };
            moved |= conn.act(at, *id, &mut rng);
        }
        calm = if moved { 0 } else { calm + 1 };
        let is_over = fars.iter().all(|it| it.ended && it.over.is_some());
        if is_over && conns.values().all(|conn| conn.closed) {
            break;
        }
        if calm > 20_000 {
            let state: Vec<_> = fars
                .iter()
                .map(|it| (it.ending, it.ended, &it.over, it.written.len(), it.read.len()))
                .collect();
            return Err(format!("seed {seed}: nothing happens any more: {state:?}"));
        }
    }
    if driver.secured() + successor.map_or(0, |next| next.secured()) > 0 {
        return Err(format!("seed {seed}: {} connections are left behind", driver.secured()));
    }
    for (at, far) in fars.iter().enumerate() {
        let Some(conn) = ids.get(&port(at)).and_then(|id| conns.get(id)) else {
            return Err(format!("seed {seed}: far end {at} was not accepted"));
        };
        check(far, conn).map_err(|error| format!("seed {seed}, far end {at}: {error}"))?;
    }
    Ok(())
}

/// The port of a far end.
fn port(at: usize) -> u16 {
    2000 + at as u16
}

fn options(rng: &mut Rng) -> LinkOptions {
    let capacity = rng.pick(&[1_000, 20_000, 200_000]);
    LinkOptions { latency: rng.between(1, 50_000), capacity, cut_after: None }
}

/// A client, which dials.
fn dial(net: &SharedNet, rng: &mut Rng, listener: usize, at: usize, most: usize) -> Far {
    let from = SocketAddr::from(([127, 0, 0, 1], port(at)));
    let options = options(rng);
    let link = net.borrow_mut().dial(listener, from, options).expect("it listens");
    let tls = client(client_config_of(if rng.one_in(4) { &VERSIONS[1..] } else { &VERSIONS }));
    Far { end: Some((link, Side::Dialer)), ..Far::new(tls.into(), rng, most) }
}

/// A server, which our side connects to.
fn listen(net: &SharedNet, rng: &mut Rng, at: usize, most: usize) -> Far {
    let address = SocketAddr::from(([127, 0, 0, 1], port(at)));
    let options = options(rng);
    let listener = net.borrow_mut().listen_with(address, options);
    let suite = rng.one_in(2).then(|| rng.pick(&suites()));
    let tls = ServerConnection::new(Arc::new(raw_server_config(suite))).expect("it is usable");
    let mut far = Far { listener, ..Far::new(tls.into(), rng, most) };
    if rng.one_in(2) {
        let len = 1 + rng.below(most);
        far.greeting = rng.bytes(len);
    }
    far
}

/// Connects to the far ends; sends data to some at once.
fn connect(
    driver: &mut Tls<SimDriver>,
    fars: &[Far],
    conns: &mut HashMap<ConnId, Conn>,
    ids: &mut HashMap<u16, ConnId>,
    rng: &mut Rng,
) -> Result<(), String> {
    let own = TrustFolder::of_servers();
    let settings = ClientSettings {
        trust: Trust::File(own.file()),
        resumes: rng.one_in(2),
        ..ClientSettings::default()
    };
    let configs = ClientConfigs::load(settings).map_err(|error| error.to_string())?;
    let client = TlsClient::new(&configs, "localhost").map_err(|error| error.to_string())?;
    for (at, far) in fars.iter().enumerate() {
        let address = SocketAddr::from(([127, 0, 0, 1], port(at)));
        let id = driver
            .connect_secured(address.into(), None, &client.for_driver(), b"")
            .map_err(|error| error.to_string())?;
        ids.insert(port(at), id);
        let mut conn = Conn { connecting: true, ..Conn::default() };
        if !far.greeting.is_empty() {
            let mut batch = Box::<Batch>::default();
            batch.push(Segment::Own(far.greeting.clone()));
            conn.in_flight = matches!(driver.send(id, batch), SendOutcome::Pending);
            if !conn.in_flight {
                return Err("a send was done before there were keys".to_owned());
            }
        }
        conns.insert(id, conn);
    }
    Ok(())
}

impl Far {
    fn new(tls: Connection, rng: &mut Rng, most: usize) -> Self {
        let endings = [Ending::CloseNotify, Ending::Fin, Ending::Reset, Ending::Corrupt];
        Self {
            end: None,
            listener: 0,
            tls,
            greeting: Vec::new(),
            out: Vec::new(),
            to_write: rng.below(most),
            written: Vec::new(),
            read: Vec::new(),
            ending: rng.pick(&endings),
            ended: false,
            over: None,
            has_finished: false,
        }
    }

    /// Takes the pending output of rustls.
    fn seal(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.out).expect("memory");
        }
    }

    /// The number of bytes that our side has sent once it has echoed all received data.
    fn expected(&self, received: &[u8]) -> Vec<u8> {
        [&self.greeting, received].concat()
    }

    /// Writes, updates its keys, ends, and reads available data.
    fn act(&mut self, net: &SharedNet, rng: &mut Rng) -> Result<bool, String> {
        let mut net = net.borrow_mut();
        let mut moved = false;
        if self.end.is_none() {
            self.end = net.accept(self.listener).map(|(socket, _)| socket.into_link());
        }
        let Some((link, side)) = self.end else { return Ok(false) };
        let is_ready = !self.tls.is_handshaking() && self.out.is_empty();
        if is_ready && !self.ended && self.over.is_none() {
            let left = self.to_write - self.written.len();
            if left > 0 {
                let bytes = {
                    let len = 1 + rng.below(left.min(30_000));
                    rng.bytes(len)
                };
                let n = self.tls.writer().write(&bytes).map_err(|error| error.to_string())?;
                self.written.extend_from_slice(&bytes[..n]);
                let has_update = self.tls.protocol_version() == Some(ProtocolVersion::TLSv1_3);
                if has_update && rng.one_in(4) {
                    self.tls.refresh_traffic_keys().map_err(|error| error.to_string())?;
                }
                moved = true;
            } else if self.read.len() == self.greeting.len() + self.written.len() || rng.one_in(20)
            {
                self.end(&mut net, link, side);
                moved = true;
            }
        }
        if self.ended && self.ending == Ending::Reset {
            return Ok(moved);
        }
        self.seal();
        let n = self.out.len().min(net.space(link, side));
        if n > 0 && !self.has_finished && !net.knows_reset(link, side) {
            net.write(link, side, &self.out[..n]);
            self.out.drain(..n);
            moved = true;
        }
        if self.ended && self.out.is_empty() && !self.has_finished {
            self.has_finished = true;
            net.finish(link, side);
        }
        if self.over.is_none() && !rng.one_in(3) {
            moved |= self.receive(&mut net, link, side);
        }
        Ok(moved)
    }

    fn end(&mut self, net: &mut Net, link: LinkId, side: Side) {
        self.ended = true;
        match self.ending {
            Ending::CloseNotify => self.tls.send_close_notify(),
            Ending::Fin => {}
            Ending::Corrupt => {
                let _ = self.tls.writer().write(b"not as it was sealed");
                self.seal();
                *self.out.last_mut().expect("a record") ^= 1;
            }
            Ending::Reset => {
                net.reset(link, side);
                self.over = Some("reset".to_owned());
            }
        }
    }

    fn receive(&mut self, net: &mut Net, link: LinkId, side: Side) -> bool {
        match net.readable(link, side) {
            Readable::Bytes(_) => {
                let mut bytes = Vec::new();
                net.read(link, side, 64 * 1024, &mut bytes);
                let mut bytes = bytes.as_slice();
                while !bytes.is_empty() && self.over.is_none() {
                    self.tls.read_tls(&mut bytes).expect("memory");
                    match self.tls.process_new_packets() {
                        Ok(state) if state.peer_has_closed() => {
                            self.over = Some("close_notify".to_owned());
                        }
                        Ok(_) => {}
                        Err(error) => self.over = Some(error.to_string()),
                    }
                    let _ = self.tls.reader().read_to_end(&mut self.read);
                }
            }
            Readable::Nothing => return false,
            Readable::Finished => self.over = Some("end".to_owned()),
            Readable::Reset => self.over = Some("reset".to_owned()),
        }
        true
    }
}

/// Handles the events of a turn.
fn serve(
    driver: &mut Tls<SimDriver>,
    conns: &mut HashMap<ConnId, Conn>,
    ids: &mut HashMap<u16, ConnId>,
    rng: &mut Rng,
) -> Result<bool, String> {
    let mut moved = false;
    loop {
        let echo = match driver.next_event() {
            None => return Ok(moved),
            Some(Event::Incoming(socket, peer, _)) => {
                let id = driver.adopt(socket).map_err(|error| error.to_string())?;
                ids.insert(peer.unwrap().port(), id);
                conns.insert(id, Conn::default());
                None
            }
            Some(Event::Connected(id)) => {
                let conn = conns.get_mut(&id).ok_or("connected without a connection")?;
                if !std::mem::take(&mut conn.connecting) || !conn.secured {
                    return Err("connected twice, or not secured".to_owned());
                }
                None
            }
            Some(Event::Secured(id, info)) => {
                let conn = conns.get_mut(&id).ok_or("secured without a connection")?;
                if std::mem::replace(&mut conn.secured, true)
                    || ![0x303, 0x304].contains(&info.version)
                {
                    return Err(format!("secured twice, or not as expected: {info:?}"));
                }
                None
            }
            Some(Event::Parked(id)) => {
                let record = driver.take_record(id).ok_or("parked without a record")?;
                let conn = conns.get_mut(&id).ok_or("parked without a connection")?;
                if !conn.is_parking || conn.parked.replace(record).is_some() {
                    return Err("parked by itself".to_owned());
                }
                None
            }
            Some(Event::Received(id, bytes)) => {
                let conn = conns.get_mut(&id).ok_or("received without a connection")?;
                let is_parked = conn.is_parking;
                let is_open = conn.secured && !conn.connecting && !conn.closed;
                if conn.paused || is_parked || !is_open || conn.finished.is_some() {
                    return Err("received at the wrong time".to_owned());
                }
                conn.received.extend_from_slice(bytes);
                if conn.in_flight || !conn.waiting.is_empty() {
                    conn.waiting.extend_from_slice(bytes);
                    None
                } else {
                    Some((id, bytes.len()))
                }
            }
            Some(Event::Finished(id)) => {
                let truncated = driver.was_truncated(id);
                let conn = conns.get_mut(&id).ok_or("finished without a connection")?;
                if conn.paused || conn.finished.replace(truncated).is_some() {
                    return Err("finished twice, or while paused".to_owned());
                }
                None
            }
            Some(Event::Sent(id, batch)) => {
                let conn = conns.get_mut(&id).ok_or("sent without a connection")?;
                if !std::mem::take(&mut conn.in_flight) {
                    return Err("sent without a send".to_owned());
                }
                drop(batch);
                None
            }
            Some(Event::Closed(id, why)) => {
                let conn = conns.get_mut(&id).ok_or("closed without a connection")?;
                if conn.in_flight || std::mem::replace(&mut conn.closed, true) {
                    return Err("closed twice, or with a batch in flight".to_owned());
                }
                match why {
                    Closed::Local | Closed::Reset => {}
                    Closed::Insecure(TlsFailure::Ended) if conn.connecting => conn.refused = true,
                    other => return Err(format!("{other:?}")),
                }
                None
            }
            Some(other) => return Err(format!("unexpected: {other:?}")),
        };
        moved = true;
        let Some((id, len)) = echo else { continue };
        let Some(conn) = conns.get_mut(&id) else { continue };
        let mut batch = Box::<Batch>::default();
        let cut = rng.below(len + 1);
        batch.push(Segment::Lent(0..cut));
        if rng.one_in(3) {
            batch.push(Segment::Own(driver.lent()[cut..].to_vec()));
        } else {
            batch.push(Segment::Lent(cut..len));
        }
        conn.in_flight = matches!(driver.send(id, batch), SendOutcome::Pending);
        if rng.one_in(5) {
            conn.paused = true;
            driver.pause(id);
        }
    }
}

impl Conn {
    /// Parks the connection now and then, and continues it here or, with the successor, there.
    /// Returns whether it is parked or has been until now.
    fn move_on(
        &mut self,
        driver: &mut Tls<SimDriver>,
        successor: Option<&mut Tls<SimDriver>>,
        id: ConnId,
        rng: &mut Rng,
    ) -> Result<bool, String> {
        if !self.is_parking {
            self.is_parking = !self.closed
                && rng.one_in(5)
                && match successor {
                    Some(next) if self.has_moved => next.park(id).is_ok(),
                    _ => driver.park(id).is_ok(),
                };
            return Ok(self.is_parking);
        }
        let Some(record) = self.parked.take() else { return Ok(true) };
        if rng.one_in(2) {
            self.parked = Some(record);
            return Ok(true);
        }
        self.is_parking = false;
        match successor {
            Some(next) if self.has_moved => next.unpark(id, record),
            Some(next) if rng.one_in(2) => {
                let socket = driver.descriptor(id).ok_or("parked without a socket")?.duplicate();
                next.adopt_at(id, socket).map_err(|error| error.to_string())?;
                self.has_moved = true;
                if rng.one_in(2) {
                    driver.surrender(id);
                    next.unpark(id, record);
                } else {
                    next.unpark(id, record);
                    driver.surrender(id);
                }
            }
            _ => driver.unpark(id, record),
        }
        Ok(true)
    }

    /// Sends pending data, resumes, and ends its side when the client has.
    fn act(&mut self, driver: &mut Tls<SimDriver>, id: ConnId, rng: &mut Rng) -> bool {
        if self.closed {
            return false;
        }
        if self.paused && rng.one_in(3) {
            self.paused = false;
            driver.resume(id);
            return true;
        }
        if self.in_flight {
            return false;
        }
        if !self.waiting.is_empty() {
            let mut batch = Box::<Batch>::default();
            batch.push(Segment::Own(std::mem::take(&mut self.waiting)));
            self.in_flight = matches!(driver.send(id, batch), SendOutcome::Pending);
            return true;
        }
        if self.finished.is_some() {
            match self.fin_sent {
                false if rng.one_in(2) => driver.finish(id),
                _ => driver.close(id),
            }
            return !std::mem::replace(&mut self.fin_sent, true);
        }
        false
    }
}

fn check(far: &Far, conn: &Conn) -> Result<(), String> {
    if !far.written.starts_with(&conn.received) {
        return Err("bytes were received that were not sent".to_owned());
    }
    if !far.expected(&conn.received).starts_with(&far.read) {
        return Err("bytes came that were not sent, or not received before".to_owned());
    }
    let is_whole = conn.received.len() == far.written.len();
    let over = far.over.as_deref().unwrap_or_default();
    let saw = |what: &str| over.contains(what);
    let expected = match far.ending {
        Ending::CloseNotify => is_whole && conn.finished == Some(false) && saw("close_notify"),
        Ending::Fin => is_whole && conn.finished == Some(true) && saw("close_notify"),
        Ending::Corrupt => is_whole && conn.finished == Some(true) && saw("BadRecordMac"),
        // The alert may come before the last message of the handshake.
        Ending::Reset => true,
    };
    if conn.refused && far.ending != Ending::Reset {
        return Err("it was not connected".to_owned());
    }
    let is_echoed = match far.ending {
        Ending::CloseNotify | Ending::Fin => far.read == far.expected(&far.written),
        Ending::Corrupt | Ending::Reset => true,
    };
    if expected && is_echoed {
        return Ok(());
    }
    Err(format!(
        "{:?}: {} written, {} received, {} came back, finished {:?}, the far end saw {over}",
        far.ending,
        far.written.len(),
        conn.received.len(),
        far.read.len(),
        conn.finished,
    ))
}

/// A client on the simulated network whose input of any length reaches the driver at once.
struct Direct {
    net: SharedNet,
    driver: Tls<SimDriver>,
    listener: usize,
}

impl Direct {
    fn new() -> Self {
        let faults = Faults { receive_buffer: 512 * 1024, ..Faults::default() };
        let net = Net::shared();
        let inner = SimDriver::new(&net, 5, faults, Rng::new(1), Waiting::Jump);
        let mut driver = Tls::new(inner);
        let listener = net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], 1000)));
        let listening = driver.inner().add_listener(listener);
        driver.secure(listening, Arc::clone(&SERVER));
        Self { net, driver, listener }
    }

    fn dial(&mut self, port: u16) -> LinkId {
        let from = SocketAddr::from(([127, 0, 0, 1], port));
        let options = LinkOptions { latency: 1, capacity: 1 << 20, cut_after: None };
        self.net.borrow_mut().dial(self.listener, from, options).expect("it listens")
    }

    fn write(&mut self, link: LinkId, bytes: &[u8]) {
        self.net.borrow_mut().write(link, Side::Dialer, bytes);
    }

    fn read(&mut self, link: LinkId) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut net = self.net.borrow_mut();
        if matches!(net.readable(link, Side::Dialer), Readable::Bytes(_)) {
            net.read(link, Side::Dialer, 1 << 20, &mut bytes);
        }
        bytes
    }

    /// Runs turns until there are no more events; returns their names and the data.
    fn run(&mut self) -> (Vec<String>, Vec<u8>) {
        let (mut names, mut data) = (Vec::new(), Vec::new());
        for _ in 0..50 {
            self.driver.inner().progress();
            let until = self.driver.now().after(Duration::from_millis(1));
            self.driver.wait(Some(until)).unwrap();
            loop {
                match self.driver.next_event() {
                    None => break,
                    Some(Event::Incoming(socket, ..)) => drop(self.driver.adopt(socket).unwrap()),
                    Some(Event::Received(_, bytes)) => data.extend_from_slice(bytes),
                    Some(Event::Secured(id, _)) => names.push(format!("secured {}", id.slot())),
                    Some(Event::Finished(id)) => names.push(format!("finished {}", id.slot())),
                    Some(other) => panic!("unexpected: {other:?}"),
                }
            }
        }
        (names, data)
    }

    /// Begins a handshake; returns the client when it has received the server's first flight.
    fn hello(&mut self, link: LinkId) -> ClientConnection {
        let mut tls = client(client_config());
        let hello = said(&mut tls);
        self.write(link, &hello);
        self.run();
        let flight = self.read(link);
        crate::support::hear(&mut tls, &flight).unwrap();
        tls
    }
}

#[test]
fn much_data_right_behind_the_last_message_of_the_handshake_is_received() {
    for len in [60_000, 100_000, 400_000] {
        let mut direct = Direct::new();
        let link = direct.dial(2000);
        let mut tls = direct.hello(link);
        let data: Vec<u8> = (0..len).map(|at| (at ^ at >> 8) as u8).collect();
        tls.set_buffer_limit(None);
        tls.writer().write_all(&data).unwrap();
        let wire = said(&mut tls);
        direct.write(link, &wire);
        let (names, received) = direct.run();
        assert_eq!(names, ["secured 0"], "{len}");
        assert!(received == data, "{} of {len}", received.len());
    }
}
