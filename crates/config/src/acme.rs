//! The settings of a certificate that an authority issues by ACME, shared by `serve` and `balance`.

use std::path::PathBuf;

use crate::draft::Draft;
use crate::key::{Key, Kind};

/// The domains of the certificate.
pub const DOMAINS: Key = Key::new(
    "tls.acme.domains",
    Kind::List(&Kind::Text("a domain such as \"example.org\"")),
    "",
    "domains of a certificate that an authority issues and renews (ACME); empty = none",
)
.at_start();

/// The email address for the authority.
pub const EMAIL: Key = Key::new(
    "tls.acme.email",
    Kind::Text("an address such as \"admin@example.org\""),
    "",
    "address to which the authority writes, when the account is made",
)
.at_start();

/// The directory of the authority.
pub const DIRECTORY: Key = Key::new(
    "tls.acme.directory",
    Kind::Text("a URL that begins with https://"),
    "https://acme-v02.api.letsencrypt.org/directory",
    "URL of the authority's directory; the default is that of Let's Encrypt",
)
.at_start();

/// The authorities of the directory's server.
pub const CA: Key = Key::new(
    "tls.acme.ca",
    Kind::Path,
    "",
    "authorities that certify the directory's server, in PEM; if not set, the system's",
)
.at_start();

/// The challenge.
pub const CHALLENGE: Key = Key::new(
    "tls.acme.challenge",
    Kind::Word(&["tls-alpn-01", "http-01"]),
    "tls-alpn-01",
    "how the authority validates a domain: tls-alpn-01 = by TLS at its port 443, http-01 = without \
     TLS at its port 80",
)
.at_start();

/// The folder of account and certificate.
pub const DIR: Key = Key::new(
    "tls.acme.dir",
    Kind::Path,
    "",
    "folder that keeps the account's key and the certificate over restarts",
)
.at_start();

/// The agreement to the terms of service.
pub const AGREE_TOS: Key = Key::new(
    "tls.acme.agree_tos",
    Kind::Switch,
    "false",
    "whether you agree to the authority's terms of service, without which it issues nothing",
)
.at_start();

/// The values of the keys, as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeValues {
    /// At least one.
    pub domains: Vec<String>,
    /// The email address for the authority.
    pub email: Option<String>,
    /// The URL of the directory.
    pub directory: String,
    /// The file of authorities.
    pub ca: Option<PathBuf>,
    /// Whether the challenge is `http-01`, else `tls-alpn-01`.
    pub is_http_01: bool,
    /// Empty if not set.
    pub dir: PathBuf,
    /// Whether the user agrees to the terms of service.
    pub agree_tos: bool,
}

impl AcmeValues {
    /// Reads the keys; `None` if there are no domains.
    #[must_use]
    pub fn from_draft(draft: &Draft) -> Option<Self> {
        let domains: Vec<String> = draft.get(DOMAINS.name);
        if domains.is_empty() {
            let others = [EMAIL, DIRECTORY, CA, CHALLENGE, DIR, AGREE_TOS];
            for key in others.iter().filter(|key| draft.values().is_set(key.name)) {
                let remedy = "it has no effect without tls.acme.domains: name the domains there";
                draft.wrong(key.name, remedy);
            }
            return None;
        }
        Some(Self {
            domains,
            email: draft.get(EMAIL.name),
            directory: draft.get(DIRECTORY.name),
            ca: draft.path(CA.name),
            is_http_01: draft.get::<String>(CHALLENGE.name) == "http-01",
            dir: draft.path(DIR.name).unwrap_or_default(),
            agree_tos: draft.get(AGREE_TOS.name),
        })
    }
}
