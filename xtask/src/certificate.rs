//! A certificate authority for the tests, and the server's certificate.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::command::run_step;
use crate::outcome::Stop;
use crate::provision::program;
use crate::site::Site;

/// Files in PEM, in the target folder.
#[derive(Clone)]
pub(crate) struct Certificate {
    pub(crate) authority: PathBuf,
    folder: PathBuf,
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificate {
    /// Creates both certificates for a day, unless they exist already.
    pub(crate) fn make(site: &Site) -> Result<Self, Stop> {
        static MADE: OnceLock<Certificate> = OnceLock::new();
        if let Some(made) = MADE.get() {
            return Ok(made.clone());
        }
        let made = Self::generate(site)?;
        Ok(MADE.get_or_init(|| made).clone())
    }

    fn generate(site: &Site) -> Result<Self, Stop> {
        let openssl = program(&["openssl"], &["openssl"])?;
        let folder = site.target.join("certificate");
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let [authority, authority_key, chain, key] =
            ["authority.pem", "authority.key", "server.pem", "server.key"]
                .map(|name| folder.join(name));
        let request = |subject: &str| {
            let mut command = Command::new(&openssl);
            command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
            command.args(["-nodes", "-days", "1", "-subj", subject, "-addext"]);
            command
        };
        let mut of_authority = request("/CN=throng test authority");
        of_authority.arg("keyUsage=critical,keyCertSign,digitalSignature");
        of_authority.arg("-keyout").arg(&authority_key).arg("-out").arg(&authority);
        let mut of_server = request("/CN=localhost");
        of_server.args(["subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext"]);
        of_server.args(["basicConstraints=critical,CA:FALSE", "-addext"]);
        of_server.arg("extendedKeyUsage=serverAuth");
        of_server.arg("-CA").arg(&authority).arg("-CAkey").arg(&authority_key);
        of_server.arg("-keyout").arg(&key).arg("-out").arg(&chain);
        for command in [&mut of_authority, &mut of_server] {
            run_step(command, Duration::from_secs(60))?;
        }
        Ok(Self { authority, folder, chain, key })
    }

    /// Creates a home folder with a trust store (NSS) in which Chromium finds the authority.
    pub(crate) fn trust_store(&self) -> Result<PathBuf, Stop> {
        let certutil = program(&["certutil"], &["libnss3-tools"])?;
        let home = self.folder.join("home");
        let store = home.join(".pki/nssdb");
        let _ = std::fs::remove_dir_all(&store);
        std::fs::create_dir_all(&store).map_err(|error| format!("{}: {error}", store.display()))?;
        let store = format!("sql:{}", store.display());
        let mut create = Command::new(&certutil);
        create.args(["-N", "--empty-password", "-d", &store]);
        let mut add = Command::new(&certutil);
        add.args(["-A", "-d", &store, "-t", "C,,", "-n", "throng", "-i"]).arg(&self.authority);
        for command in [&mut create, &mut add] {
            run_step(command, Duration::from_secs(60))?;
        }
        Ok(home)
    }

    /// Returns the flags of a server that uses this certificate.
    pub(crate) fn flags(&self) -> [String; 4] {
        let [chain, key] = [&self.chain, &self.key].map(|path| path.display().to_string());
        ["--tls-cert".to_owned(), chain, "--tls-key".to_owned(), key]
    }
}
