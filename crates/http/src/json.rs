//! Values as JSON.

use serde::Serialize;
use throng_proto::json::Json;

use crate::into_response::IntoResponse;
use crate::response::Response;

/// Responds with status 200 and JSON; with 500 if the value cannot be written as JSON.
impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        Response::json_of(&self.0).into_response()
    }
}
