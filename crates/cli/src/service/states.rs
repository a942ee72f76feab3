//! The states of a service of Windows, and which of them may follow which.
//!
//! * Duty: report each state to the service manager once, with the time that it may take.
//! * Not its duty: calls of the system; see the module `windows` beside.

use std::time::Duration;

/// The time that a start may take, for example to reach a broker.
const STARTING: Duration = Duration::from_secs(60);

/// The time that a stop may take beside its drain, before the manager takes the process for dead.
const MARGIN: Duration = Duration::from_secs(10);

/// The manager takes milliseconds as 32 bits.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A state of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceState {
    /// It reads its settings, and serves no one yet.
    Starting,
    /// It serves, and accepts requests to stop.
    Running,
    /// It drains.
    Stopping,
    /// It has ended with this exit code of the program.
    Stopped(u8),
}

/// A state with its details, as the manager gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) state: ServiceState,
    /// The number of reports of this step so far: it shows progress.
    pub(crate) checkpoint: u32,
    /// The time until the next report at the latest; 0 in a state that lasts.
    pub(crate) wait: Duration,
}

/// The service's states from its start to its end; `report` passes on each.
pub(crate) struct States<R> {
    report: R,
    state: ServiceState,
    checkpoint: u32,
}

impl<R: FnMut(Status)> States<R> {
    /// Begins a service that starts.
    pub(crate) fn start(report: R) -> Self {
        let mut states = Self { report, state: ServiceState::Starting, checkpoint: 0 };
        states.pass_on(STARTING);
        states
    }

    /// Records that clients are served. A service that was asked to stop before remains so.
    pub(crate) fn serve(&mut self) {
        if self.state == ServiceState::Starting {
            self.enter(ServiceState::Running, Duration::ZERO);
        }
    }

    /// Records a request to stop. Returns whether it is the first one, which the program must get:
    /// a second one would end it without a drain.
    pub(crate) fn ask_to_stop(&mut self) -> bool {
        let is_first = matches!(self.state, ServiceState::Starting | ServiceState::Running);
        if is_first {
            self.enter(ServiceState::Stopping, MARGIN);
        }
        is_first
    }

    /// Records that a drain begins, which takes at most `length`.
    pub(crate) fn drain(&mut self, length: Duration) {
        if !matches!(self.state, ServiceState::Stopped(_)) {
            self.enter(ServiceState::Stopping, length.min(LONGEST) + MARGIN);
        }
    }

    /// Records that the program has ended with an exit code. The manager may end the process at
    /// once.
    pub(crate) fn end(&mut self, code: u8) {
        if !matches!(self.state, ServiceState::Stopped(_)) {
            self.enter(ServiceState::Stopped(code), Duration::ZERO);
        }
    }

    fn enter(&mut self, state: ServiceState, wait: Duration) {
        self.checkpoint = if state == self.state { self.checkpoint + 1 } else { 0 };
        self.state = state;
        self.pass_on(wait);
    }

    fn pass_on(&mut self, wait: Duration) {
        // A state that lasts has no progress.
        let checkpoint = if wait.is_zero() { 0 } else { self.checkpoint + 1 };
        (self.report)(Status { state: self.state, checkpoint, wait });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Carries out the steps, and returns the reports.
    fn reported(
        steps: impl FnOnce(&mut States<&mut dyn FnMut(Status)>),
    ) -> Vec<(ServiceState, u32, u64)> {
        let mut reported = Vec::new();
        let mut report = |it: Status| reported.push((it.state, it.checkpoint, it.wait.as_secs()));
        steps(&mut States::start(&mut report));
        reported
    }

    #[test]
    fn a_service_starts_serves_drains_and_stops() {
        let reported = reported(|states| {
            states.serve();
            assert!(states.ask_to_stop());
            states.drain(30 * SECOND);
            states.end(0);
        });
        assert_eq!(
            reported,
            [
                (ServiceState::Starting, 1, 60),
                (ServiceState::Running, 0, 0),
                (ServiceState::Stopping, 1, 10),
                (ServiceState::Stopping, 2, 40),
                (ServiceState::Stopped(0), 0, 0),
            ]
        );
    }

    #[test]
    fn the_program_gets_the_first_request_to_stop_alone() {
        reported(|states| {
            states.serve();
            assert!(states.ask_to_stop());
            assert!(!states.ask_to_stop());
            states.drain(SECOND);
            assert!(!states.ask_to_stop());
            states.end(0);
            assert!(!states.ask_to_stop());
        });
    }

    #[test]
    fn a_service_asked_to_stop_while_it_starts_never_runs() {
        let reported = reported(|states| {
            assert!(states.ask_to_stop());
            states.serve();
            states.end(0);
        });
        let states: Vec<_> = reported.into_iter().map(|(state, ..)| state).collect();
        assert_eq!(
            states,
            [ServiceState::Starting, ServiceState::Stopping, ServiceState::Stopped(0)]
        );
    }

    #[test]
    fn a_failed_start_is_an_end_with_its_code() {
        assert_eq!(reported(|states| states.end(2))[1..], [(ServiceState::Stopped(2), 0, 0)]);
    }

    #[test]
    fn nothing_follows_the_end() {
        let reported = reported(|states| {
            states.end(1);
            states.serve();
            states.drain(SECOND);
            states.end(0);
        });
        assert_eq!(reported.len(), 2);
    }

    #[test]
    fn a_server_that_ends_by_itself_drains_without_a_request() {
        let reported = reported(|states| {
            states.serve();
            states.drain(Duration::MAX);
            states.end(3);
        });
        assert_eq!(reported[2], (ServiceState::Stopping, 1, 24 * 3600 + 10));
    }
}
