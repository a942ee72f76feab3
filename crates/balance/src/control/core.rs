//! The list of backends and all operations that change it. It has no thread, socket or clock: time
//! comes with each call, and changes for shards are collected in [`Core::take_commands`] and
//! [`Core::take_configuration`].

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use throng_io::Instant;

use super::error::Error;
use crate::backend::{Backend, MAX_WEIGHT, State};
use crate::checks::Wrong;
use crate::clients::Clients;
use crate::config::{
    BackendConfig, BackendSide, ClientSide, Config, MAX_BACKENDS, Register, check_backend,
};
use crate::health::Verdict;
use crate::rebalance::{Occupancy, Plan};
use crate::registry::{Cause, DesiredState, Drain, Entry, RegistrationTtl};
use crate::report::Failure;
use crate::settings::{
    Check, CheckKind, CloseOrder, Closing, Configuration, Settings, Sticky, Target,
};
use crate::status::{
    Changes, DrainProgress, Draining, LastFailure, Rebalance, Row, RowTotals, Surplus, share_of,
};

/// The interval at which growing shares are set, and backends on probation are checked for answers.
const GROWTH: Duration = Duration::from_millis(100);

/// The interval at which backends being removed are checked for their last tunnel: shards do not
/// report its end.
const LAST_TUNNEL: Duration = Duration::from_millis(250);

/// The code of Close frames that make clients reconnect to another backend.
const SERVICE_RESTART: u16 = 1012;

/// A command for all shards.
#[derive(Debug)]
pub(crate) enum ControlCommand {
    /// Close tunnels of this backend: this many, or all.
    Close(Arc<Backend>, Closing, Option<u32>),
    /// Stop closing tunnels of this backend.
    Keep(Arc<Backend>),
}

/// The list of backends and their health.
#[derive(Debug)]
pub(crate) struct Core {
    entries: Vec<Entry>,
    /// Removed backends that connections may still hold. One that comes back meanwhile is the same
    /// backend.
    gone: Vec<Weak<Backend>>,
    settings: Settings,
    register: Option<Register>,
    /// The last failure of the balancer itself, with the backend it could not connect to.
    own_failure: Option<(SocketAddr, Failure, SystemTime)>,
    /// What connections to backends are secured by, and whether those of all are.
    clients: Option<Clients>,
    secures_backends: bool,
    /// As it was read last.
    security: (Option<ClientSide>, Option<BackendSide>),
    /// The configuration at the start: changes of some of its keys need a restart.
    started: Config,
    /// The bound addresses.
    addresses: Vec<SocketAddr>,
    commands: Vec<ControlCommand>,
    is_changed: bool,
    has_ended: bool,
}

impl Core {
    /// Creates the list with the backends of `config`, which was checked. All are up and at their
    /// whole share.
    pub(crate) fn new(config: Config) -> Self {
        let mut core = Self {
            entries: Vec::new(),
            gone: Vec::new(),
            settings: config.settings.clone(),
            register: config.register.clone(),
            own_failure: None,
            clients: None,
            secures_backends: false,
            security: (config.tls.clone(), config.backend_tls.clone()),
            addresses: Vec::new(),
            commands: Vec::new(),
            is_changed: true,
            has_ended: false,
            started: config,
        };
        for file in core.started.backends.clone() {
            let desired = DesiredState { file: Some(file), ..DesiredState::default() };
            let backend = Arc::new(Backend::new(file.address, file.weight));
            let mut entry = Entry::new(backend, desired, file.send_proxy);
            entry.tls = file.tls;
            core.entries.push(entry);
        }
        core
    }

    /// Sets the bound addresses.
    pub(crate) fn set_addresses(&mut self, addresses: &[SocketAddr]) {
        self.addresses = addresses.to_vec();
    }

    /// Refuses every operation from now on.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn register_config(&self) -> Option<&Register> {
        self.register.as_ref()
    }

    /// Returns all backends in the list.
    #[cfg(test)]
    pub(crate) fn backends(&self) -> impl Iterator<Item = (&Arc<Backend>, bool)> {
        self.entries.iter().map(|entry| (&entry.backend, entry.send_proxy))
    }

    /// Returns the backends to check, with whether a PROXY header is due and with their check: as
    /// configured, and at least a connection for one whose heartbeats have ended.
    pub(crate) fn checks(&self) -> impl Iterator<Item = (Target, Check)> {
        let configured = self.settings.health.check.as_ref();
        self.entries.iter().filter_map(move |entry| {
            let asked = || entry.expired.then(|| Check::new(CheckKind::Tcp));
            let check = configured.cloned().or_else(asked)?;
            Some((self.target(entry), check))
        })
    }

    /// Returns the configuration for shards, if it changed since the last call.
    pub(crate) fn take_configuration(&mut self) -> Option<Arc<Configuration>> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        let backends = self.entries.iter().map(|entry| self.target(entry)).collect();
        Some(Arc::new(Configuration { settings: self.settings.clone(), backends }))
    }

    fn target(&self, entry: &Entry) -> Target {
        let address = entry.backend.address();
        let is_secured = entry.tls.unwrap_or(self.secures_backends);
        let clients = self.clients.as_ref().filter(|_| is_secured);
        Target {
            backend: Arc::clone(&entry.backend),
            send_proxy: entry.send_proxy,
            tls: clients.map(|clients| clients.of(address)),
        }
    }

    /// Sets how connections to backends are secured: those of all, unless one says that it is not.
    /// Returns what was set before.
    pub(crate) fn replace_clients(
        &mut self,
        clients: Option<Clients>,
        of_all: bool,
    ) -> (Option<Clients>, bool) {
        self.is_changed = true;
        let before = std::mem::replace(&mut self.secures_backends, of_all);
        (std::mem::replace(&mut self.clients, clients), before)
    }

    /// Returns the commands for shards, in order, to be sent after the configuration.
    pub(crate) fn take_commands(&mut self) -> Vec<ControlCommand> {
        std::mem::take(&mut self.commands)
    }

    // Operations of operators and backends.

    /// Applies the list and the settings of `config`. Values that the file has as before stay as
    /// operators changed them.
    ///
    /// `tell` is called when the new backends are in the list and before the old ones are removed:
    /// shards see at once that a backend must not be picked, but learn of new ones only by their
    /// configuration.
    pub(crate) fn apply(
        &mut self,
        config: Config,
        now: Instant,
        tell: impl FnOnce(&mut Self),
    ) -> Result<Changes, Error> {
        self.must_live()?;
        config.check()?;
        let files = match config.names_backends() {
            true => config.backends.clone(),
            false => self.entries.iter().filter_map(|entry| entry.desired.file).collect(),
        };
        for &BackendConfig { address, .. } in &files {
            self.check_address(address)?;
        }
        let is_listed =
            |entry: &Entry| files.iter().any(|file| file.address == entry.backend.address());
        let (mut staying, mut is_up) = (files.len(), false);
        for entry in &self.entries {
            if !is_listed(entry) && (entry.desired.api || entry.desired.ttl.is_some()) {
                staying += 1;
                is_up |= entry.state() == State::Up;
            }
        }
        if staying > MAX_BACKENDS {
            return Err(Error::TooMany { most: MAX_BACKENDS });
        }
        is_up |= files.iter().any(|file| match self.position(file.address) {
            Some(at) if !self.entries[at].is_being_removed() => {
                self.entries[at].state() == State::Up
            }
            _ => true,
        });
        if !is_up && self.entries.iter().any(|entry| entry.state() == State::Up) {
            return Err(Error::NoneUp);
        }
        let mut changes = Changes {
            needs_restart: self.needs_restart(&config),
            settings: self.settings != config.settings
                || self.register != config.register
                || self.security != (config.tls.clone(), config.backend_tls.clone()),
            ..Changes::default()
        };
        self.settings = config.settings;
        self.register = config.register;
        self.security = (config.tls, config.backend_tls);
        self.is_changed = true;
        for file in &files {
            self.apply_backend(*file, now, &mut changes);
        }
        tell(self);
        for at in 0..self.entries.len() {
            let entry = &mut self.entries[at];
            let address = entry.backend.address();
            let listed = files.iter().any(|file| file.address == address);
            if !listed && entry.desired.file.take().is_some() && entry.is_being_removed() {
                changes.removed.push(address);
                self.start_drain(at, None);
            }
        }
        Ok(changes)
    }

    fn apply_backend(&mut self, file: BackendConfig, now: Instant, changes: &mut Changes) {
        let desired = DesiredState { file: Some(file), ..DesiredState::default() };
        let Some(at) =
            self.position(file.address).filter(|&at| !self.entries[at].is_being_removed())
        else {
            changes.added.push(file.address);
            self.enlist(file, desired, now);
            return;
        };
        let entry = &mut self.entries[at];
        if entry.desired.file.replace(file) == Some(file) {
            return;
        }
        (entry.send_proxy, entry.tls) = (file.send_proxy, file.tls);
        if entry.backend.weight() != file.weight {
            changes.reweighted.push(file.address);
            self.weigh(at, file.weight, now);
        }
    }

    fn needs_restart(&self, config: &Config) -> Vec<&'static str> {
        let started = &self.started;
        let differ = [
            ("listen", started.listen != config.listen),
            ("shards", started.shards != config.shards),
            ("tls", listen_of(started) != listen_of(config)),
            ("admin.listen", started.admin != config.admin),
        ];
        differ.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// Adds a backend, or keeps one that is being removed.
    pub(crate) fn add(&mut self, backend: BackendConfig, now: Instant) -> Result<(), Error> {
        let BackendConfig { address, weight, .. } = backend;
        self.must_live()?;
        check_weight(weight)?;
        if let Some(at) = self.position(address).filter(|&at| !self.entries[at].is_being_removed())
        {
            return Err(Error::Exists { address, source: self.entries[at].desired.source() });
        }
        self.check_room(address)?;
        let desired = DesiredState { api: true, ..DesiredState::default() };
        self.enlist(backend, desired, now);
        Ok(())
    }

    /// Sets the weight and returns the previous one.
    pub(crate) fn set_weight(
        &mut self,
        address: SocketAddr,
        weight: u32,
        now: Instant,
    ) -> Result<u32, Error> {
        check_weight(weight)?;
        let at = self.find(address)?;
        let before = self.entries[at].backend.weight();
        self.weigh(at, weight, now);
        Ok(before)
    }

    /// Drains it: its tunnels are closed within `window`.
    pub(crate) fn drain(
        &mut self,
        address: SocketAddr,
        window: Option<Duration>,
    ) -> Result<Draining, Error> {
        let at = self.find(address)?;
        self.start_drain(at, window);
        Ok(self.draining(at))
    }

    /// Ends a drain: the tunnels left stay, and it gets clients again.
    pub(crate) fn undrain(&mut self, address: SocketAddr, now: Instant) -> Result<(), Error> {
        let at = self.find(address)?;
        let entry = &mut self.entries[at];
        if entry.is_being_removed() {
            return Err(Error::BeingRemoved { address });
        }
        if entry.drain.take().is_none() {
            return Err(Error::NotDraining { address, state: entry.state().word() });
        }
        self.settle(at, now);
        Ok(())
    }

    /// Drains it; it leaves the list when its last tunnel is gone.
    pub(crate) fn remove(&mut self, address: SocketAddr) -> Result<Draining, Error> {
        let at = self.find(address)?;
        let entry = &mut self.entries[at];
        if entry.desired.ttl.is_some() {
            return Err(Error::RegistersItself { address });
        }
        if !entry.is_being_removed() {
            entry.desired = DesiredState::default();
            // A drain that is under way keeps its rate.
            if entry.drain.is_none() {
                self.start_drain(at, None);
            }
        } else if entry.expired && entry.drain.is_none() {
            self.start_drain(at, None);
        }
        Ok(self.draining(at))
    }

    /// Plans a rebalance and runs it unless `dry_run`.
    pub(crate) fn rebalance(
        &mut self,
        dry_run: bool,
        rate: Option<u32>,
    ) -> Result<Rebalance, Error> {
        self.must_live()?;
        self.must_pick_by_load()?;
        let rate = rate.unwrap_or(self.settings.close_rate);
        if rate == 0 {
            return Err(Error::Rate);
        }
        let occupancy = |entry: &Entry| Occupancy {
            tunnels: entry.backend.tunnels(),
            weight: entry.backend.weight(),
            is_up: entry.backend.state() == State::Up,
        };
        let occupied: Vec<_> = self.entries.iter().map(occupancy).collect();
        let plan = Plan::new(&occupied);
        let mut moves = Vec::new();
        for ((entry, occupied), &close) in self.entries.iter().zip(&occupied).zip(&plan.close) {
            if close == 0 {
                continue;
            }
            let backend = &entry.backend;
            moves.push(Surplus { address: backend.address(), tunnels: occupied.tunnels, close });
            if !dry_run {
                // Each backend's part of the rate, so that all end together.
                let part = u64::from(rate) * u64::from(close) / plan.total;
                let closing = Closing {
                    code: SERVICE_RESTART,
                    rate: u32::try_from(part).unwrap_or(u32::MAX).max(1),
                    order: CloseOrder::IdleAndOldest,
                    deadline: None,
                };
                self.commands.push(ControlCommand::Close(
                    Arc::clone(backend),
                    closing,
                    Some(close),
                ));
            }
        }
        Ok(Rebalance {
            moves,
            total: plan.total,
            rate,
            seconds: plan.seconds(rate),
            spread_before: plan.spread_before,
            spread_after: plan.spread_after,
            dry_run,
        })
    }

    /// Registers a backend. Returns how long it may stay without a heartbeat.
    pub(crate) fn register(
        &mut self,
        address: SocketAddr,
        weight: u32,
        time_to_live: Option<Duration>,
        now: Instant,
    ) -> Result<Duration, Error> {
        self.must_live()?;
        let register = self.register.as_ref().ok_or(Error::RegistrationIsOff)?;
        let time = time_to_live.unwrap_or(register.time_to_live);
        // The file's value was checked there, and may be anything.
        let sensible = Duration::from_secs(1)..=Duration::from_secs(3600);
        if time_to_live.is_some_and(|time| !sensible.contains(&time)) {
            return Err(Error::TimeToLive { time });
        }
        check_weight(weight)?;
        if !register.admits(address.ip()) {
            let remedy =
                "no backend may register itself there: name its network in register.networks";
            return Err(Error::Address { address, remedy: remedy.to_owned() });
        }
        let ttl = RegistrationTtl { time_to_live: time, expires: now.after(time) };
        let position = self.position(address).filter(|&at| !self.entries[at].is_being_removed());
        let Some(at) = position else {
            self.check_room(address)?;
            let desired = DesiredState { ttl: Some(ttl), ..DesiredState::default() };
            let backend = BackendConfig { weight, ..BackendConfig::new(address) };
            self.enlist(backend, desired, now);
            return Ok(time);
        };
        let entry = &mut self.entries[at];
        entry.desired.ttl = Some(ttl);
        // A backend that registers is a process that has just begun, independent of its past.
        entry.tracker = crate::health::HealthTracker::new();
        if entry.desired.source() == "registered" && entry.backend.weight() != weight {
            self.weigh(at, weight, now);
        }
        self.settle(at, now);
        Ok(time)
    }

    /// Records a backend's heartbeat.
    pub(crate) fn heartbeat(&mut self, address: SocketAddr, now: Instant) -> Result<(), Error> {
        self.must_live()?;
        if self.register.is_none() {
            return Err(Error::RegistrationIsOff);
        }
        let ttl = self.ttl(address)?;
        ttl.expires = now.after(ttl.time_to_live);
        Ok(())
    }

    /// Ends a backend's registration.
    pub(crate) fn deregister(&mut self, address: SocketAddr) -> Result<(), Error> {
        self.must_live()?;
        self.ttl(address)?;
        let at = self.find(address)?;
        let entry = &mut self.entries[at];
        entry.desired.ttl = None;
        if entry.is_being_removed() && entry.drain.is_none() {
            self.start_drain(at, None);
        }
        Ok(())
    }

    // Events.

    /// Records that a connection to `backend`, or its answer, failed. Failures of the balancer
    /// itself are kept and not held against it; nor is an answer to a request that failed elsewhere
    /// before.
    pub(crate) fn handle_failure(
        &mut self,
        backend: &Arc<Backend>,
        failure: Failure,
        is_retry: bool,
        now: Instant,
        at: SystemTime,
    ) {
        if failure.is_ours() {
            self.own_failure = Some((backend.address(), failure, at));
            return;
        }
        let Some(place) = self.place(backend) else { return };
        let entry = &mut self.entries[place];
        entry.last_failure = Some((Cause::Request(failure), at));
        entry.note_success();
        let health = &self.settings.health;
        let change = if failure.is_of_connection() {
            entry.tracker.handle_failures(now, 1, health)
        } else if !is_retry && self.half_are_up_without(Some(place)) {
            let entry = &mut self.entries[place];
            let answered = entry.answered();
            entry.tracker.handle_failed_answer(now, answered, health)
        } else {
            None
        };
        if change.is_some() {
            self.settle(place, now);
        }
    }

    /// Returns whether at least half of the backends that are not being removed are up, apart from
    /// the one at `place`. This is Envoy's panic threshold.
    fn half_are_up_without(&self, place: Option<usize>) -> bool {
        let (mut all, mut up) = (0, 0);
        let staying =
            self.entries.iter().enumerate().filter(|(_, entry)| !entry.is_being_removed());
        for (at, entry) in staying {
            match entry.state() {
                State::Up if Some(at) != place => (all, up) = (all + 1, up + 1),
                State::Up | State::Down => all += 1,
                State::Draining | State::Removed => {}
            }
        }
        2 * up >= all
    }

    /// Ignores verdicts of answers, which clients may have caused, where too few other backends are
    /// up.
    fn ignore_answers_in_panic(&mut self, now: Instant) {
        let is_faulty = |entry: &Entry| entry.tracker.verdict() == Some(Verdict::Answers);
        if !self.entries.iter().any(is_faulty) || self.half_are_up_without(None) {
            return;
        }
        for entry in &mut self.entries {
            if entry.tracker.ignore_answers().is_some() {
                entry.begin_probation(now, self.settings.health.down_for);
            }
        }
    }

    /// Records an active check that passed, or the reason why it did not.
    pub(crate) fn handle_check(
        &mut self,
        backend: &Arc<Backend>,
        outcome: Result<(), Wrong>,
        now: Instant,
        at: SystemTime,
    ) {
        if let Err(Wrong::Ours(failure)) = outcome {
            return self.handle_failure(backend, failure, false, now, at);
        }
        let Some(place) = self.place(backend) else { return };
        let entry = &mut self.entries[place];
        let passed = outcome.is_ok();
        if let Err(Wrong::Backend(why)) = outcome {
            entry.last_failure = Some((Cause::Check(why), at));
        }
        entry.failed_checks = if passed { 0 } else { entry.failed_checks.saturating_add(1) };
        if entry.tracker.handle_check(now, passed, &self.settings.health).is_some() {
            self.settle(place, now);
        }
        let fall = self.fall(place);
        let entry = &mut self.entries[place];
        if entry.keeps_tunnels
            && entry.failed_checks >= fall
            && entry.backend.state() == State::Down
        {
            entry.keeps_tunnels = false;
            self.close_all_of_dead(place);
        }
    }

    /// Returns the failures in a row after which the checks declare the backend at `at` dead.
    fn fall(&self, at: usize) -> u32 {
        match &self.settings.health.check {
            Some(check) => check.fall,
            None if self.entries[at].expired => Check::new(CheckKind::Tcp).fall,
            // A check that was under way when checks were switched off.
            None => u32::MAX,
        }
    }

    /// Runs what is due. Returns when the next is.
    pub(crate) fn expire(&mut self, now: Instant, wall: SystemTime) -> Option<Instant> {
        self.ignore_answers_in_panic(now);
        for at in 0..self.entries.len() {
            let entry = &mut self.entries[at];
            let silent = entry.desired.ttl.filter(|ttl| ttl.expires <= now);
            if let Some(ttl) = silent {
                entry.desired.ttl = None;
                entry.last_failure = Some((Cause::Silent(ttl.time_to_live), wall));
                if entry.is_being_removed() {
                    // Missing heartbeats are no fault of its tunnels: it gets no new clients, and
                    // is checked itself.
                    (entry.expired, entry.failed_checks) = (true, 0);
                    self.is_changed = true;
                }
            }
            if entry.tracker.expire(now, &self.settings.health).is_some() {
                entry.begin_probation(now, self.settings.health.down_for);
            }
            self.settle(at, now);
        }
        self.let_go();
        let mut next: Option<Instant> = None;
        for entry in &mut self.entries {
            let grows = entry.grow(now, self.settings.slow_start);
            let due = [
                entry.desired.ttl.map(|ttl| ttl.expires),
                entry.tracker.next_due(&self.settings.health),
                grows.then(|| now.after(GROWTH)),
                entry.is_being_removed().then(|| now.after(LAST_TUNNEL)),
            ];
            next = due.into_iter().flatten().chain(next).min();
        }
        next
    }

    /// Removes backends from the list that are not desired and have nothing open.
    fn let_go(&mut self) {
        self.gone.retain(|backend| backend.strong_count() > 0);
        let falls: Vec<u32> = (0..self.entries.len()).map(|at| self.fall(at)).collect();
        let Self { entries, gone, commands, is_changed, .. } = self;
        let mut falls = falls.into_iter();
        entries.retain(|entry| {
            let fall = falls.next().unwrap_or(u32::MAX);
            let stays =
                !entry.is_being_removed() || !entry.is_empty() || entry.is_only_silent(fall);
            if !stays {
                entry.backend.set_state(State::Removed);
                // Shards forget their close jobs for it.
                commands.push(ControlCommand::Keep(Arc::clone(&entry.backend)));
                gone.push(Arc::downgrade(&entry.backend));
                *is_changed = true;
            }
            stays
        });
    }

    /// Returns the status of all backends.
    pub(crate) fn rows(&self, now: Instant) -> Vec<Row> {
        self.entries.iter().map(|entry| row(entry, now)).collect()
    }

    /// Returns the last failure of the balancer itself, with a remedy.
    pub(crate) fn own_failure(&self) -> Option<LastFailure> {
        let (address, failure, at) = self.own_failure?;
        let remedy = failure.remedy().unwrap_or_default();
        Some(LastFailure::new(format!("{address}: {failure}: {remedy}"), at))
    }

    // Implementation.

    /// Adds a backend to the list, or keeps the one of that address that is being removed or still
    /// held.
    fn enlist(
        &mut self,
        BackendConfig { address, weight, send_proxy, tls }: BackendConfig,
        desired: DesiredState,
        now: Instant,
    ) {
        let at = self.position(address).unwrap_or_else(|| {
            let held = self.gone.iter().filter_map(Weak::upgrade);
            let backend = held
                .into_iter()
                .find(|backend| backend.address() == address)
                .unwrap_or_else(|| Arc::new(Backend::new(address, weight)));
            self.entries.push(Entry::new(backend, DesiredState::default(), send_proxy));
            self.entries.len() - 1
        });
        let entry = &mut self.entries[at];
        entry.revive();
        entry.desired = desired;
        (entry.send_proxy, entry.tls) = (send_proxy, tls);
        entry.rising = Some(now);
        self.weigh(at, weight, now);
        self.settle(at, now);
    }

    fn weigh(&mut self, at: usize, weight: u32, now: Instant) {
        let entry = &mut self.entries[at];
        entry.backend.set_weight(weight);
        entry.grow(now, self.settings.slow_start);
        self.is_changed = true;
    }

    /// Begins a drain, or changes the rate of one.
    fn start_drain(&mut self, at: usize, window: Option<Duration>) {
        let entry = &mut self.entries[at];
        let backend = &entry.backend;
        // A window of 0 is an infinite rate.
        let within = |window: Duration| f64::from(backend.tunnels().max(1)) / window.as_secs_f64();
        let rate = window.map_or(self.settings.close_rate.into(), within);
        let closed_before = entry
            .drain
            .map_or_else(|| RowTotals::of(backend).closed, |earlier| earlier.closed_before);
        entry.drain = Some(Drain { rate, closed_before });
        entry.rising = None;
        entry.keeps_tunnels = false;
        backend.set_state(State::Draining);
        self.is_changed = true;
        let closing = Closing {
            code: SERVICE_RESTART,
            rate: at_most(rate),
            order: CloseOrder::Shuffled,
            deadline: window,
        };
        self.commands.push(ControlCommand::Close(Arc::clone(backend), closing, None));
    }

    /// Sets the backend's state from its entry, with all consequences for its tunnels.
    fn settle(&mut self, at: usize, now: Instant) {
        let fall = self.fall(at);
        let entry = &mut self.entries[at];
        let (backend, state) = (&entry.backend, entry.state());
        let before = backend.state();
        if before == state {
            return;
        }
        backend.set_state(state);
        self.is_changed = true;
        match state {
            State::Up => {
                entry.keeps_tunnels = false;
                self.commands.push(ControlCommand::Keep(Arc::clone(backend)));
                entry.rising = Some(now);
                entry.grow(now, self.settings.slow_start);
            }
            State::Down => {
                entry.rising = None;
                entry.keeps_tunnels = !entry.is_dead(fall);
                if !entry.keeps_tunnels {
                    self.close_all_of_dead(at);
                } else if before == State::Draining {
                    // The drain has ended, and its close job with it.
                    self.commands.push(ControlCommand::Keep(Arc::clone(&entry.backend)));
                }
            }
            // A drain has its own close job, see `start_drain`; nothing is removed here.
            State::Draining | State::Removed => {}
        }
    }

    /// Closes a dead backend's tunnels, spread out.
    fn close_all_of_dead(&mut self, at: usize) {
        let backend = Arc::clone(&self.entries[at].backend);
        let closing = Closing {
            code: SERVICE_RESTART,
            rate: self.settings.close_rate,
            order: CloseOrder::Shuffled,
            deadline: None,
        };
        self.commands.push(ControlCommand::Close(backend, closing, None));
    }

    fn draining(&self, at: usize) -> Draining {
        let entry = &self.entries[at];
        let others = self.entries.iter().enumerate().filter(|(other, _)| *other != at);
        Draining {
            tunnels: entry.backend.tunnels(),
            rate: entry.drain.map_or(self.settings.close_rate, |drain| at_most(drain.rate)),
            last: !others.into_iter().any(|(_, other)| other.backend.state() == State::Up),
        }
    }

    fn must_live(&self) -> Result<(), Error> {
        if self.has_ended { Err(Error::ShuttingDown) } else { Ok(()) }
    }

    /// Checks that clients whose tunnels are closed reconnect to the backends with the fewest.
    fn must_pick_by_load(&self) -> Result<(), Error> {
        let Settings { pick, sticky, .. } = &self.settings;
        if !pick.looks_at_load() {
            return Err(Error::PickIgnoresLoad { pick: *pick });
        }
        match sticky {
            Sticky::None => Ok(()),
            sticky => Err(Error::StickyIgnoresLoad { sticky: sticky.clone() }),
        }
    }

    fn position(&self, address: SocketAddr) -> Option<usize> {
        self.entries.iter().position(|entry| entry.backend.address() == address)
    }

    /// Returns the index of this very backend, not of another one of its address.
    fn place(&self, backend: &Arc<Backend>) -> Option<usize> {
        self.entries.iter().position(|entry| Arc::ptr_eq(&entry.backend, backend))
    }

    fn find(&self, address: SocketAddr) -> Result<usize, Error> {
        self.must_live()?;
        self.position(address).ok_or_else(|| {
            let known = self.entries.iter().map(|entry| entry.backend.address()).collect();
            Error::Unknown { address, known }
        })
    }

    fn ttl(&mut self, address: SocketAddr) -> Result<&mut RegistrationTtl, Error> {
        let at = self.position(address);
        at.and_then(|at| self.entries[at].desired.ttl.as_mut())
            .ok_or(Error::NotRegistered { address })
    }

    fn check_address(&self, address: SocketAddr) -> Result<(), Error> {
        check_backend(address, &self.addresses).map_err(|remedy| Error::Address { address, remedy })
    }

    /// Checks that a backend at `address` can be added to the list.
    fn check_room(&self, address: SocketAddr) -> Result<(), Error> {
        self.check_address(address)?;
        if self.position(address).is_none() && self.entries.len() >= MAX_BACKENDS {
            return Err(Error::TooMany { most: MAX_BACKENDS });
        }
        Ok(())
    }
}

fn check_weight(weight: u32) -> Result<(), Error> {
    if (1..=MAX_WEIGHT).contains(&weight) { Ok(()) } else { Err(Error::Weight { weight }) }
}

/// Returns a rate in whole tunnels; the largest number for an infinite one.
fn at_most(rate: f64) -> u32 {
    rate.ceil() as u32
}

/// Returns the addresses with TLS, if there is TLS.
fn listen_of(config: &Config) -> Option<&[SocketAddr]> {
    config.tls.as_ref().map(|tls| tls.listen.as_slice())
}

fn row(entry: &Entry, now: Instant) -> Row {
    let backend = &entry.backend;
    let totals = RowTotals::of(backend);
    let tunnels = backend.tunnels();
    Row {
        address: backend.address(),
        state: backend.state().word(),
        source: entry.desired.source(),
        weight: backend.weight(),
        share: share_of(backend),
        send_proxy: entry.send_proxy,
        tunnels,
        requests: backend.requests(),
        handshakes: backend.handshakes(),
        totals,
        handshake_p99_ms: backend.handshake_p99_micros() as f64 / 1000.0,
        drain: entry.drain.map(|drain| DrainProgress {
            left: tunnels,
            closed: totals.closed - drain.closed_before,
            seconds_left: (f64::from(tunnels) / drain.rate).ceil() as u32,
        }),
        expires_in_seconds: entry
            .desired
            .ttl
            .map(|ttl| ttl.expires.0.saturating_sub(now.0) as f64 / 1e9),
        keeps_tunnels: entry.keeps_tunnels,
        last_failure: entry
            .last_failure
            .as_ref()
            .map(|(cause, at)| LastFailure::new(cause.to_string(), *at)),
    }
}

#[cfg(test)]
mod tests;
