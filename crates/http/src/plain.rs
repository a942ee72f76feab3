//! Answers to HTTP without TLS at an address that has TLS.

use std::str::FromStr;

use throng_proto::http1::{self, TargetForm};

use crate::response::Response;
use crate::status::Status;

/// The answer to a client that speaks HTTP without TLS at an address that has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlainHttp {
    /// 400, with the reason. The default.
    #[default]
    Refuse,
    /// 308 to the same address with `https`, and 426 to requests for a WebSocket, which browsers do
    /// not redirect.
    Redirect,
    /// The server answers the request as at an address without TLS.
    Serve,
}

impl PlainHttp {
    /// Returns the answer to a request that came without TLS; `None` if it is served.
    #[must_use]
    pub fn response(self, request: &http1::Request<'_>) -> Option<Response> {
        let response = match self {
            Self::Serve => return None,
            Self::Refuse => refused(),
            Self::Redirect if request.wants_websocket() => {
                Response::error(Status::UPGRADE_REQUIRED, "connect with TLS: wss://")
            }
            Self::Redirect => redirected(request).unwrap_or_else(refused),
        };
        Some(response.closing())
    }
}

fn refused() -> Response {
    Response::error(Status::BAD_REQUEST, "connect with TLS: https://")
}

/// Returns the redirect of a request to its own address with TLS, if it names its host.
fn redirected(request: &http1::Request<'_>) -> Option<Response> {
    let is_named = |host: &&str| !host.is_empty() && request.target_form() == TargetForm::Origin;
    let host = request.host().filter(is_named)?;
    let location = format!("https://{host}{}", request.target());
    let response = Response::text("connect with TLS\n").header("Location", location).ok()?;
    Some(response.with_status(Status::PERMANENT_REDIRECT))
}

/// Parses `refuse`, `redirect` and `serve`.
impl FromStr for PlainHttp {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "refuse" => Ok(Self::Refuse),
            "redirect" => Ok(Self::Redirect),
            "serve" => Ok(Self::Serve),
            _ => Err("write refuse, redirect or serve"),
        }
    }
}
