//! JSON bodies of requests to the admin API.

use serde::Deserialize;
use serde_json::Value;
use throng::http::Status;
use throng::{Request, Response};

use super::guard::refuse;

/// A body without any key.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyBody {}

/// Reads a body; refuses a malformed one with an example.
pub(crate) fn body<T: for<'d> Deserialize<'d>>(
    request: &Request<'_>,
    example: &Value,
) -> Result<T, Response> {
    serde_json::from_slice(request.body()).map_err(|error| {
        refuse(
            Status::BAD_REQUEST,
            &format!("the body is not what it has to be: {error}; send for example {example}"),
        )
    })
}

/// Reads a body, or returns the default where there is none.
pub(crate) fn optional_body<T: Default + for<'d> Deserialize<'d>>(
    request: &Request<'_>,
    example: &Value,
) -> Result<T, Response> {
    if request.body().is_empty() { Ok(T::default()) } else { body(request, example) }
}
