//! The settings of certificates that an authority issues by ACME.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rustls::pki_types::DnsName;

/// The directory of Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Maximum domains of a certificate, as Let's Encrypt allows.
const MAX_DOMAINS: usize = 100;

/// The settings of a certificate that an authority issues by ACME (RFC 8555).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The names in the certificate.
    pub domains: Vec<String>,
    /// The address to which the authority writes.
    pub email: Option<String>,
    /// The URL of the authority's directory. Default: [`LETS_ENCRYPT`].
    pub directory: String,
    /// A file with the authorities that certify the directory's server, in PEM. Default: the
    /// authorities that the system trusts.
    pub ca: Option<PathBuf>,
    /// The way in which the authority validates the domains.
    pub challenge: Challenge,
    /// The folder of the account and the certificate.
    pub dir: PathBuf,
    /// Whether the user agrees to the terms of service of the authority.
    pub agree_tos: bool,
}

/// The way in which an authority validates that a domain leads to this server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Challenge {
    /// By a TLS handshake at port 443 (RFC 8737).
    #[default]
    TlsAlpn01,
    /// By a request without TLS at port 80 (RFC 8555 section 8.3).
    Http01,
}

/// Parses `tls-alpn-01` and `http-01`.
impl FromStr for Challenge {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "tls-alpn-01" => Ok(Self::TlsAlpn01),
            "http-01" => Ok(Self::Http01),
            _ => Err("write tls-alpn-01 or http-01"),
        }
    }
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// The setting, by the name of its field.
    pub setting: &'static str,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tls.acme.{}: {}", self.setting, self.remedy)
    }
}

impl std::error::Error for SettingError {}

impl AcmeSettings {
    /// Creates settings for certificates of Let's Encrypt that are kept in `dir`. The domains and
    /// the agreement to its terms of service are missing.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self {
            domains: Vec::new(),
            email: None,
            directory: LETS_ENCRYPT.to_owned(),
            ca: None,
            challenge: Challenge::default(),
            dir,
            agree_tos: false,
        }
    }

    /// Checks the settings without reading any file.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn check(&self) -> Result<(), SettingError> {
        let wrong = |setting, remedy: String| Err(SettingError { setting, remedy });
        if self.domains.is_empty() {
            return wrong("domains", "name the domains of the certificate".to_owned());
        }
        if self.domains.len() > MAX_DOMAINS {
            let remedy = format!("a certificate has at most {MAX_DOMAINS} names: leave some out");
            return wrong("domains", remedy);
        }
        for domain in &self.domains {
            check_domain(domain).or_else(|why| wrong("domains", format!("{domain:?} {why}")))?;
        }
        if let Some(email) = &self.email
            && !is_email(email)
        {
            let remedy =
                format!("{email:?} is not an address: write for example admin@example.org");
            return wrong("email", remedy);
        }
        if host_and_path(&self.directory).is_none() {
            let remedy = format!(
                "{:?} is not the URL of a directory: it begins with https://, for example \
                 {LETS_ENCRYPT}",
                self.directory
            );
            return wrong("directory", remedy);
        }
        if self.dir.as_os_str().is_empty() {
            let remedy = "name a folder for the account's key and the certificate, which outlives \
                          the process, for example /var/lib/throng/acme";
            return wrong("dir", remedy.to_owned());
        }
        if !self.agree_tos {
            let remedy = format!(
                "read the terms of service of the authority ({}), and set agree_tos = true if you \
                 agree to them",
                match self.directory == LETS_ENCRYPT {
                    true => "https://letsencrypt.org/repository/",
                    false => "its directory names them as termsOfService",
                }
            );
            return wrong("agree_tos", remedy);
        }
        Ok(())
    }

    /// Returns the folder for the account and the certificate of this authority. Another authority,
    /// such as a staging environment, must not use the same files.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        let url = host_and_path(&self.directory).unwrap_or_default();
        let mut name = String::new();
        for c in url.chars() {
            match c {
                '/' => name.push('_'),
                '.' if name.is_empty() => name.push_str("%2e"),
                // All other characters are escaped: no two URLs share a folder, even where names
                // ignore case.
                '.' | '-' | '0'..='9' | 'a'..='z' => name.push(c),
                _ => name.push_str(&format!("%{:02x}", u32::from(c))),
            }
        }
        self.dir.join(name)
    }

    /// Returns the file with the certificate, its chain to a root, and the private key.
    #[must_use]
    pub fn certificate_file(&self) -> PathBuf {
        self.folder().join("certificate.pem")
    }
}

fn check_domain(domain: &str) -> Result<(), &'static str> {
    if domain.starts_with("*.") {
        return Err(
            "is a wildcard, which needs the challenge dns-01 that Throng does not have: name \
                    each host, or have another ACME client write the files of tls.cert and tls.key",
        );
    }
    if domain.parse::<std::net::IpAddr>().is_ok() {
        return Err("is an address: name a domain that leads to it");
    }
    if DnsName::try_from(domain).is_err() || domain.ends_with('.') || domain.contains('_') {
        return Err(
            "is not a domain: write for example example.org, a name in other scripts as xn--",
        );
    }
    Ok(())
}

fn is_email(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '?' | '<' | '>');
    text.chars().all(is_plain)
        && text.split_once('@').is_some_and(|(user, host)| {
            !user.is_empty() && host.contains('.') && !host.contains('@')
        })
}

/// Returns a URL after its scheme, if the scheme is https and a host follows.
fn host_and_path(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("https://")?;
    let host = rest.split('/').next().filter(|host| !host.is_empty() && !host.contains('@'))?;
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '<' | '>' | '#');
    (rest.chars().all(is_plain) && host.chars().any(|c| c.is_ascii_alphanumeric())).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> AcmeSettings {
        AcmeSettings {
            domains: vec!["example.org".to_owned(), "www.example.org".to_owned()],
            email: Some("admin@example.org".to_owned()),
            agree_tos: true,
            ..AcmeSettings::new("/var/lib/throng".into())
        }
    }

    #[test]
    fn each_mistake_names_its_setting_and_the_remedy() {
        assert_eq!(settings().check(), Ok(()));
        type Change = fn(&mut AcmeSettings);
        let cases: &[(Change, &str, &str)] = &[
            (|it| it.domains.clear(), "domains", "name the domains"),
            (|it| it.domains.push("*.example.org".into()), "domains", "dns-01"),
            (|it| it.domains.push("192.0.2.7".into()), "domains", "is an address"),
            (|it| it.domains.push("a b".into()), "domains", "\"a b\" is not a domain"),
            (|it| it.domains.push("https://example.org".into()), "domains", "is not a domain"),
            (|it| it.domains = vec!["a.example".into(); 101], "domains", "at most 100"),
            (|it| it.email = Some("admin".into()), "email", "admin@example.org"),
            (|it| it.email = Some("a@b.example,c@d.example".into()), "email", "is not an address"),
            (|it| it.directory = "http://ca.example/dir".into(), "directory", "https://"),
            (|it| it.directory = "https://".into(), "directory", "https://"),
            (|it| it.directory = "https://ca.example/a b".into(), "directory", "https://"),
            (|it| it.dir = PathBuf::new(), "dir", "/var/lib/throng/acme"),
            (|it| it.agree_tos = false, "agree_tos", "letsencrypt.org/repository"),
        ];
        for (change, setting, remedy) in cases {
            let mut changed = settings();
            change(&mut changed);
            let error = changed.check().unwrap_err();
            assert_eq!(error.setting, *setting);
            assert!(error.remedy.contains(remedy), "{error}");
        }
    }

    #[test]
    fn each_authority_has_a_folder_of_its_own() {
        let of = |directory: &str| {
            let settings = AcmeSettings { directory: directory.to_owned(), ..settings() };
            assert_eq!(settings.check(), Ok(()), "{directory}");
            settings.folder().display().to_string()
        };
        let lets_encrypt = of(LETS_ENCRYPT);
        assert_eq!(lets_encrypt, "/var/lib/throng/acme-v02.api.letsencrypt.org_directory");
        assert_eq!(of("https://[::1]:14000/dir"), "/var/lib/throng/%5b%3a%3a1%5d%3a14000_dir");
        assert_eq!(of("https://a.example/../../etc"), "/var/lib/throng/a.example_.._.._etc");
        let alike = ["a/b", "a-b", "a_b", "A/b", "a/b/", "a:b", "a%2fb"];
        let folders: std::collections::HashSet<_> =
            alike.iter().map(|path| of(&format!("https://ca.example/{path}"))).collect();
        assert_eq!(folders.len(), alike.len(), "{folders:?}");
    }
}
