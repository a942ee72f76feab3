//! The runs of a search: a process of the program and a load for each.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_doctor::{Status, diagnose_live};
use throng_load::find_max::Load;
use throng_load::scenario::Scenario;
use throng_load::tune::{Assignment, Interruption, Measure, Reading};
use throng_load::{Error, Progress, RunStage, TlsTrust, http};

use super::program::Subject;
use crate::failure::Failure;
use crate::http_client::{Client, JsonBody as _};
use crate::signals::Stop;

/// The time for an answer with the statistics.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Counters are up to this old.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Runs of the program under the load.
pub(super) struct Runs<'r> {
    subject: &'r Subject,
    scenario: &'r Scenario,
    load: Load,
    stop: &'r Stop,
    /// No further candidate is tried after that.
    latest: Instant,
}

impl<'r> Runs<'r> {
    /// Creates the runs of a search.
    ///
    /// # Errors
    /// The load is not possible.
    pub(super) fn new(
        subject: &'r Subject,
        scenario: &'r Scenario,
        stop: &'r Stop,
        latest: Instant,
    ) -> Result<Self, Failure> {
        let mut load = scenario.load(subject.authority(), subject.is_secure())?;
        if subject.is_secure() {
            // This process started the server, often with the certificate of another name.
            load.common_mut().tls.trust = TlsTrust::Anyone;
        }
        Ok(Self { subject, scenario, load, stop, latest })
    }

    /// Makes a run that warms the machine up, and returns what the rules about running servers
    /// find in its statistics; `None` if the server does not show them.
    ///
    /// # Errors
    /// The program or the load does not work.
    pub(super) fn findings(&mut self) -> Result<Option<BTreeMap<String, String>>, Failure> {
        let client = Client::parse(self.subject.authority()).ok();
        let mut readings: Vec<(Instant, Value)> = Vec::new();
        let mut watch = |progress: &Progress| {
            let is_due = readings.last().is_none_or(|(at, _)| at.elapsed() >= MIN_INTERVAL);
            if let (RunStage::Measuring { .. }, Some(client), true) =
                (progress.stage, &client, is_due)
                && let Some(stats) = statistics(client)
            {
                readings.push((Instant::now(), stats));
            }
        };
        self.run(&Assignment::default(), &mut watch).map_err(|why| match why {
            Interruption::Stopped => Failure::runtime("stopped before there was anything to keep"),
            Interruption::Refused(why) | Interruption::Failed(why) => Failure::runtime(why),
        })?;
        let [(began, before), .., (ended, after)] = readings.as_slice() else { return Ok(None) };
        let seconds = ended.duration_since(*began).as_secs_f64();
        let found = diagnose_live(before, after, seconds).into_iter();
        let found = found.filter(|it| matches!(it.status, Status::Fail | Status::Warn));
        Ok(Some(found.map(|it| (it.id.to_owned(), it.found)).collect()))
    }

    fn run(
        &self,
        settings: &Assignment,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Reading, Interruption> {
        if self.stop.is_asked() {
            return Err(Interruption::Stopped);
        }
        let mut process = self.subject.start(settings, self.stop)?;
        let reading = self.reading(watch);
        // The figures of a run that was cut short are not compared.
        if self.stop.is_asked() {
            return Err(Interruption::Stopped);
        }
        if let Some(status) = process.ended() {
            let why = self.subject.complaints();
            return Err(Interruption::Refused(format!("it ended with {status}: {why}")));
        }
        reading.map_err(|error| match error {
            Error::Usage(why) => Interruption::Failed(why),
            error => Interruption::Refused(error.to_string()),
        })
    }

    fn reading(&self, watch: &mut dyn FnMut(&Progress)) -> Result<Reading, Error> {
        let stop = self.stop.flag();
        match &self.load {
            Load::WebSocket(plan) => {
                Ok(self.scenario.reading(&throng_load::run(plan, stop, watch)?))
            }
            Load::Http(plan) => {
                Ok(self.scenario.reading_of_requests(&http::run(plan, stop, watch)?))
            }
        }
    }
}

impl Measure for Runs<'_> {
    fn measure(&mut self, settings: &Assignment) -> Result<Reading, Interruption> {
        self.run(settings, &mut |_| {})
    }

    fn is_time_up(&self) -> bool {
        Instant::now() >= self.latest
    }
}

/// Returns the statistics of a server, if it shows them there.
fn statistics(client: &Client) -> Option<Value> {
    let answer = client.request("GET", "/stats.json", None, TIMEOUT).ok()?;
    let stats = answer.json();
    (answer.is_success() && stats.is_object()).then_some(stats)
}
