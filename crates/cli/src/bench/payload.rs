//! The flags for the messages of `throng bench echo` and `connect`.

use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

use throng_config::units::parse_size;
use throng_io::file::read_once;
use throng_load::plan::{FANOUT_STAMP, MAX_SIZE};
use throng_load::{Content, Error, Plan, Template};

/// Size, kind and content of messages.
#[derive(Debug, Default, clap::Args)]
pub(super) struct PayloadArgs {
    /// Payload of each message, such as 100, 4KiB or 1MiB [default: 100]
    #[arg(long, short, value_name = "SIZE", value_parser = parse_size)]
    size: Option<usize>,
    /// Send text messages instead of binary ones
    #[arg(long)]
    text: bool,
    /// `letters` (random, the same in every message), `json` (quotes and chat lines, another
    /// document in every message, as text), or the text to send, in which {client}, {sequence},
    /// {random}, {uuid} and {token} stand for values of each client [default: letters, or json with
    /// --deflate]
    #[arg(long, value_name = "TEXT")]
    payload: Option<String>,
    /// Send the bytes of this file, or - for standard input, as binary messages unless --text
    #[arg(long, value_name = "FILE", conflicts_with = "payload")]
    payload_file: Option<PathBuf>,
    /// Fill in {client} and the like in the file, too
    #[arg(long, requires = "payload_file")]
    template: bool,
    /// Send the text of --payload in binary messages
    #[arg(long, requires = "payload", conflicts_with = "text")]
    binary: bool,
    /// Seed of the JSON documents: the same seed gives the same documents
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn given_size(size: usize) -> Error {
    Error::Usage(format!(
        "--size {size} is for --payload letters and json; a given payload has its own size"
    ))
}

impl PayloadArgs {
    /// Puts the flags into the plan, whose compression is known.
    ///
    /// # Errors
    /// The file cannot be read, or does not contain text where it must; flags that contradict each
    /// other.
    pub(super) fn apply(self, plan: &mut Plan) -> Result<(), Error> {
        let usual = if plan.deflate.enabled { "json" } else { "letters" };
        let (content, text) = match (&self.payload_file, self.payload.as_deref().unwrap_or(usual)) {
            (Some(path), _) => (self.file(path)?, self.text),
            (None, "letters") => (Content::Letters, self.text),
            (None, "json") => (Content::Json { seed: self.seed }, true),
            (None, text) => {
                let template = Template::parse(text)
                    .map_err(|error| Error::Usage(format!("--payload: {error}")))?;
                (Content::of_template(template), !self.binary)
            }
        };
        if let (Some(size), Content::Given(_) | Content::Template(_)) = (self.size, &content) {
            return Err(given_size(size));
        }
        if self.binary && !matches!(content, Content::Given(_) | Content::Template(_)) {
            return Err(Error::Usage(
                "--binary is for the text of --payload; leave it out: letters are binary without \
                 --text, JSON is text"
                    .to_owned(),
            ));
        }
        (plan.content, plan.text) = (content, text);
        plan.size = plan.given_size().or(self.size).unwrap_or(plan.size);
        Ok(())
    }

    /// Puts the flags into the plan of a fanout, whose messages contain the place `{stamp}`.
    ///
    /// # Errors
    /// As for [`PayloadArgs::apply`].
    pub(super) fn apply_stamped(self, plan: &mut Plan) -> Result<(), Error> {
        let text = match (&self.payload_file, self.payload.as_deref()) {
            (Some(path), _) => self.read(path)?,
            (None, Some("json")) => {
                return Err(Error::Usage(
                    "--payload json is for echo, connect and broadcast; write a text with {stamp}"
                        .to_owned(),
                ));
            }
            (None, None | Some("letters")) => {
                plan.text = self.text;
                plan.size = self.size.unwrap_or(plan.size);
                return Ok(());
            }
            (None, Some(text)) => text.as_bytes().to_vec(),
        };
        if let Some(size) = self.size {
            return Err(given_size(size));
        }
        plan.size = (text.len() + FANOUT_STAMP).saturating_sub("{stamp}".len());
        plan.text = !self.binary && (self.payload_file.is_none() || self.text || self.template);
        plan.content = Content::Given(text.into());
        Ok(())
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let name = path.display();
        let cannot =
            |error: &dyn std::fmt::Display| Error::Usage(format!("--payload-file {name} {error}"));
        let most = MAX_SIZE as u64;
        let mut bytes = Vec::new();
        match path.as_os_str() == "-" {
            true => {
                let read = stdin().lock().take(most + 1).read_to_end(&mut bytes);
                read.map_err(|error| cannot(&format_args!("cannot be read: {error}")))?;
            }
            false => bytes = read_once(path, most).map_err(|error| cannot(&error))?,
        }
        if bytes.len() > MAX_SIZE {
            return Err(Error::Usage(format!(
                "--payload-file {name} is longer than 1GiB, the most that is sent"
            )));
        }
        Ok(bytes)
    }

    fn file(&self, path: &Path) -> Result<Content, Error> {
        let name = path.display();
        let bytes = self.read(path)?;
        if !self.text && !self.template {
            return Ok(Content::Given(bytes.into()));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            Error::Usage(format!(
                "--payload-file {name} is not text in UTF-8 from byte {} on; leave out --text and \
                 --template",
                error.utf8_error().valid_up_to()
            ))
        })?;
        if !self.template {
            return Ok(Content::Given(text.into_bytes().into()));
        }
        let template = Template::parse(&text)
            .map_err(|error| Error::Usage(format!("--payload-file {name}: {error}")))?;
        Ok(Content::of_template(template))
    }
}
