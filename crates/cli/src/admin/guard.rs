//! Access control of the admin API.
//!
//! With a token, requests must carry it. Without one, the API listens on a loopback address, where
//! every program of the machine can send requests. A proxy on the machine passes on requests from
//! anywhere, so a forwarded request is refused. Requests of web pages open in the operator's
//! browser are refused as well. Three rules keep them out, and each is needed:
//!
//! * A page may give its own name the address 127.0.0.1 (DNS rebinding), and then has the same
//!   origin. So the Host must be an address or `localhost`, which only this server's page can have
//!   as its name.
//! * A page may send requests anywhere without reading the answers. So a change must not come from
//!   another origin, as the browser reports it (`Origin`, `Sec-Fetch-Site`),
//! * and must be declared as JSON, which a page can send to another origin only with permission
//!   (CORS), which this server never grants.

use throng::http::{Origins, Status};
use throng::{Request, Response};
use throng_config::Token;

use crate::hosts::is_address;

/// Checks a request that only reads; `token` is the operators'.
pub(crate) fn check_read(request: &Request<'_>, token: Option<&Token>) -> Result<(), Response> {
    if let Some(token) = token {
        return match request.bearer() {
            Some(given) if token.matches(given.as_bytes()) => Ok(()),
            _ => Err(unauthorized(
                "the token is missing or wrong: send that of [admin] in the configuration",
            )),
        };
    }
    if let Some(name) = forwarded_by(request) {
        return Err(refuse(
            Status::FORBIDDEN,
            &format!(
                "this request has {name}, so it comes through a proxy, which may pass on what \
                 comes from anywhere: ask at the address itself, or set admin.token_file"
            ),
        ));
    }
    match request.host() {
        // HTTP/1.0 without Host: not a browser.
        None => Ok(()),
        Some(host) if is_address(host) => Ok(()),
        Some(host) => Err(refuse(
            Status::FORBIDDEN,
            &format!(
                "this request is for the host {host:?}: ask by address or as localhost, so that no \
                 web page can come in by a name of its own, or set admin.token_file"
            ),
        )),
    }
}

/// Returns the field that shows that a proxy has forwarded the request.
fn forwarded_by<'a>(request: &'a Request<'_>) -> Option<&'a str> {
    const NAMES: [&str; 9] = [
        "Forwarded",
        "Via",
        "CDN-Loop",
        "X-Real-IP",
        "X-Client-IP",
        "True-Client-IP",
        "CF-Connecting-IP",
        "Fastly-Client-IP",
        "Fly-Client-IP",
    ];
    const PREFIX: &str = "X-Forwarded-";
    let is_sign = |name: &str| {
        let begins = name.get(..PREFIX.len()).is_some_and(|it| it.eq_ignore_ascii_case(PREFIX));
        begins || NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
    };
    request.headers().map(|header| header.name).find(|name| is_sign(name))
}

/// Checks a request that changes something.
pub(crate) fn check_change(request: &Request<'_>, token: Option<&Token>) -> Result<(), Response> {
    check_read(request, token)?;
    check_same_origin(request)?;
    check_is_json(request)
}

/// RFC 9110 section 15.5.2: a 401 names the accepted authentication.
pub(crate) fn unauthorized(why: &str) -> Response {
    let with = refuse(Status::UNAUTHORIZED, why).header("WWW-Authenticate", "Bearer");
    with.unwrap_or_else(|_| refuse(Status::UNAUTHORIZED, why))
}

/// Returns a refusal with its reason, as JSON.
pub(crate) fn refuse(status: Status, why: &str) -> Response {
    let body = serde_json::json!({ "error": why });
    Response::json(format!("{body}\n")).with_status(status)
}

fn check_same_origin(request: &Request<'_>) -> Result<(), Response> {
    let site = request.header("sec-fetch-site");
    let origins = request.header_values("origin").map(str::as_bytes);
    if matches!(site, None | Some("same-origin" | "none"))
        && Origins::SameHost.allow(origins, request.host())
    {
        return Ok(());
    }
    let why = "this request comes from a web page of another origin, which may not change anything";
    Err(refuse(Status::FORBIDDEN, why))
}

fn check_is_json(request: &Request<'_>) -> Result<(), Response> {
    let declared = request.header("content-type").unwrap_or_default();
    let kind = declared.split(';').next().unwrap_or_default().trim();
    // A page of another origin cannot send a DELETE unasked, with any content type.
    if kind.eq_ignore_ascii_case("application/json") || request.method() == "DELETE" {
        return Ok(());
    }
    let why = "send it with Content-Type: application/json, for example by curl --json '{}', so \
               that no web page can send it unasked";
    Err(refuse(Status::new(415), why))
}
