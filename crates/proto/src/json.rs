//! Values as JSON.

use serde::Serialize;

/// A value that is written as JSON: the body of a response with status 200, or a text message.
///
/// A value that cannot be written as JSON, such as a map whose keys are not text, becomes a 500 as
/// a response. As a message it causes a panic; in a callback this closes the session with 1011.
///
/// ```
/// # use throng_proto::json as throng;
/// use throng::Json;
///
/// assert_eq!(Json([1, 2]).to_text().unwrap(), "[1,2]");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: Serialize> Json<T> {
    /// Writes the value as JSON.
    ///
    /// # Errors
    /// The value cannot be written as JSON.
    pub fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.0)
    }

    /// Writes the value as a message.
    #[doc(hidden)]
    #[allow(clippy::missing_panics_doc, reason = "the docs of the type have it")]
    pub fn to_message(&self) -> String {
        match self.to_text() {
            Ok(text) => text,
            Err(error) => panic!("a message cannot be written as JSON: {error}"),
        }
    }
}
