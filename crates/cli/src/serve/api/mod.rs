//! The HTTP API by which applications publish and look at channels: on the server for operators,
//! and for holders of a key also where clients connect. Commands and answers have the form of the
//! server API of the Centrifuge protocol, so that its clients work unchanged.

mod channels;
mod command;
mod once;
mod problem;

use std::sync::Arc;

use throng::http::{Method, Route, Status};
use throng::{App, Hub, Request, Response};

use self::once::Once;
use self::problem::Problem;
use crate::admin::guard::{refuse, unauthorized};
use crate::serve::rights::ApiKeys;

/// Refuses requests that may not use the API.
type Check = Box<dyn Fn(&Request<'_>) -> Result<(), Response> + Send + Sync>;

/// The API over a hub.
#[derive(Clone)]
pub(crate) struct Api {
    hub: Hub,
    once: Arc<Once>,
}

impl Api {
    pub(crate) fn new(hub: &Hub) -> Self {
        Self { hub: hub.clone(), once: Arc::default() }
    }

    /// Adds the routes to an app; requests that `check` refuses get its answer.
    pub(crate) fn routes(self, app: App, check: Check) -> App {
        let on_command = move |request: &Request<'_>| {
            if let Err(refusal) = check(request) {
                return refusal.closing();
            }
            let name = request.param("command").unwrap_or_default();
            let answer = match self.execute(name, request.body()) {
                Ok(result) => serde_json::json!({ "result": result }),
                Err(problem) => serde_json::json!({ "error": problem }),
            };
            Response::json(answer.to_string())
        };
        // The cluster may have to answer first.
        app.route("/api/{command}", Route::on(Method::Post, on_command).blocking())
    }

    /// Executes a command, whose body is JSON.
    fn execute(&self, name: &str, body: &[u8]) -> Result<serde_json::Value, Problem> {
        // A command without parameters may have no body.
        let body = if body.is_empty() { b"{}" } else { body };
        match name {
            "batch" => command::batch(body, |name, body| match name {
                "batch" => Err(Problem::bad_request("a batch has no batches")),
                _ => self.execute(name, body),
            }),
            "publish" => command::publish(&self.hub, &self.once, body),
            "broadcast" => command::broadcast(&self.hub, &self.once, body),
            "unsubscribe" => command::unsubscribe(&self.hub, body),
            "disconnect" => command::disconnect(&self.hub, body),
            "presence" => channels::presence(&self.hub, body),
            "presence_stats" => channels::presence_stats(&self.hub, body),
            "history" => channels::history(&self.hub, body),
            "channels" => channels::channels(&self.hub, body),
            "info" => Ok(channels::info(&self.hub)),
            _ => Err(Problem::NO_METHOD),
        }
    }
}

/// Checks the key of an application: in `X-API-Key`, or `Authorization: apikey KEY`, never in a
/// URL. A page cannot keep a key secret, so requests of pages are refused.
pub(crate) fn by_key(keys: ApiKeys) -> Check {
    Box::new(move |request| {
        if request.header("origin").is_some() || request.header("sec-fetch-site").is_some() {
            let why = "this request comes from a web page, where a key is no secret: let the \
                       application send it";
            return Err(refuse(Status::FORBIDDEN, why));
        }
        let authorized = || {
            let (scheme, key) = request.header("authorization")?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("apikey").then(|| key.trim())
        };
        let key = request.header("x-api-key").or_else(authorized).unwrap_or_default();
        match keys.name_of(key.as_bytes()) {
            Some(_) => Ok(()),
            None => Err(unauthorized("the key is missing or wrong: send it as X-API-Key")),
        }
    })
}
