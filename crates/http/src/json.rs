//! Values as JSON.

use serde::Serialize;

use crate::into_response::IntoResponse;
use crate::response::Response;

/// A value that a handler returns as JSON, with status 200. A value that cannot be written as JSON,
/// such as a map whose keys are not text, becomes a 500.
///
/// ```
/// # use throng_http as throng;
/// use throng::{IntoResponse, Json};
///
/// let response = Json([1, 2]).into_response();
/// # assert_eq!(response.status().code(), 200);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        Response::json_of(&self.0).into_response()
    }
}
