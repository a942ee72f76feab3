//! The files of `[backend_tls]`.

use std::thread;

use throng_balance::Error;

use super::{Folder, Identity, Running, backend_with, dial, get};

#[test]
fn changed_authorities_of_backends_are_read_again() {
    let folder = Folder::new("backends-changed");
    let identity = Identity::new(&["127.0.0.1"]);
    let (trusted, _) = Identity::new(&["127.0.0.1"]).write(&folder.0, "trusted");
    let text = identity.certificate.pem();
    let (backend, heads) = backend_with(identity);
    // The answers are what counts.
    thread::spawn(move || heads.into_iter().for_each(drop));
    let running = Running::start(
        &format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             [backend_tls]\nca = \"trusted.pem\"\n"
        ),
        &folder,
    );
    let status = || get(&mut dial(running.0.addresses()[0]))[..12].to_owned();
    assert_eq!(status(), "HTTP/1.1 502");
    assert!(!running.0.reload_certificates_if_changed().unwrap());

    std::fs::write(&trusted, "nothing").unwrap();
    assert!(!running.0.reload_certificates_if_changed().unwrap(), "it may be half of a change");
    let error = running.0.reload_certificates_if_changed().unwrap_err();
    let is_named = |why: &str| why.contains("backend_tls") && why.contains("trusted.pem");
    assert!(matches!(&error, Error::Tls(why) if is_named(why)), "{error}");

    std::fs::write(&trusted, text).unwrap();
    assert!(running.0.reload_certificates_if_changed().unwrap());
    assert_eq!(status(), "HTTP/1.1 200");
}
