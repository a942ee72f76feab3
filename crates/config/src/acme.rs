//! The settings of a certificate that an authority issues by ACME, shared by `serve` and `balance`.

use std::path::PathBuf;

use crate::draft::Draft;
use crate::key::{Key, Kind, all_at_start};

/// The keys of a certificate that an authority issues.
#[rustfmt::skip]
pub const KEYS: [Key; 7] = all_at_start([
    Key::new("tls.acme.domains", Kind::List(&Kind::Text("a domain such as \"example.org\"")), "",
        "domains of a certificate that an authority issues and renews (ACME); empty = none"),
    Key::new("tls.acme.email", Kind::Text("an address such as \"admin@example.org\""), "",
        "address to which the authority writes, when the account is made"),
    Key::new("tls.acme.directory", Kind::Text("a URL that begins with https://"),
        "https://acme-v02.api.letsencrypt.org/directory",
        "URL of the authority's directory; the default is that of Let's Encrypt"),
    Key::new("tls.acme.ca", Kind::Path, "",
        "authorities that certify the directory's server, in PEM; if not set, the system's"),
    Key::new("tls.acme.challenge", Kind::Word(&["tls-alpn-01", "http-01"]), "tls-alpn-01",
        "how the authority validates a domain: tls-alpn-01 = by TLS at its port 443, http-01 = \
         without TLS at its port 80"),
    Key::new("tls.acme.dir", Kind::Path, "",
        "folder that keeps the account's key and the certificate over restarts"),
    Key::new("tls.acme.agree_tos", Kind::Switch, "false",
        "whether you agree to the authority's terms of service, without which it issues nothing"),
]);

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
        let domains: Vec<String> = draft.get("tls.acme.domains");
        if domains.is_empty() {
            for key in KEYS.iter().filter(|key| draft.values().is_set(key.name)) {
                let remedy = "it has no effect without tls.acme.domains: name the domains there";
                draft.wrong(key.name, remedy);
            }
            return None;
        }
        Some(Self {
            domains,
            email: draft.get("tls.acme.email"),
            directory: draft.get("tls.acme.directory"),
            ca: draft.path("tls.acme.ca"),
            is_http_01: draft.get::<String>("tls.acme.challenge") == "http-01",
            dir: draft.path("tls.acme.dir").unwrap_or_default(),
            agree_tos: draft.get("tls.acme.agree_tos"),
        })
    }
}
