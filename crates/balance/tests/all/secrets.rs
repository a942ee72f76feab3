//! Routes that need a key.

use throng_balance::{Config, Secrets};
use throng_testkit::TempFolder;

use crate::sites::Running;
use crate::support::Scripted;

fn request(authorization: &str) -> Vec<u8> {
    let line = match authorization {
        "" => String::new(),
        value => format!("Authorization: {value}\r\n"),
    };
    format!("GET /in HTTP/1.1\r\nHost: a\r\n{line}Connection: close\r\n\r\n").into_bytes()
}

#[test]
fn a_key_opens_a_route_and_wrong_ones_are_soon_too_many() {
    let folder = TempFolder::new("secrets");
    let (key, line) = Secrets::create("ci").unwrap();
    let file = folder.write("keys.txt", &line);
    make_private(&file);
    let backend = Scripted::bind();
    let running = Running::start(&format!(
        "backends = [\"{}\"]\n[[site]]\nhosts = [\"a\"]\nroutes = [\
         {{ path = \"/in\", secrets = {file:?} }}]\n",
        backend.address
    ));
    let answer = |authorization: &str| {
        let mut client = running.connect();
        client.send(&request(authorization));
        String::from_utf8(client.rest()).unwrap()
    };
    let asked = answer("");
    assert!(asked.starts_with("HTTP/1.1 401 "), "{asked}");
    assert!(asked.contains("WWW-Authenticate: Basic realm="), "{asked}");
    assert!(asked.contains("WWW-Authenticate: Bearer realm="), "{asked}");
    let mut client = running.connect();
    client.send(&request(&format!("Bearer {key}")));
    let mut server = backend.accept();
    assert!(server.head().contains(&key), "the backend may look at it, too");
    server.send(b"HTTP/1.1 204 No Content\r\n\r\n");
    assert!(client.answer().0.starts_with("HTTP/1.1 204 "));
    for _ in 0..10 {
        assert!(answer("Bearer guess").starts_with("HTTP/1.1 401 "));
    }
    let refused = answer("Bearer guess");
    assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains("Retry-After: "), "{refused}");
    // Neither a missing key nor the right one is counted.
    assert!(answer("").starts_with("HTTP/1.1 401 "));
    let row = running.0.status().limits.pop().unwrap();
    assert_eq!((row.name.as_str(), row.passed, row.refused), ("wrong keys", 10, 1));
}

#[test]
fn a_file_with_a_mistake_is_named() {
    let folder = TempFolder::new("secrets-mistakes");
    let message = |file: &std::path::Path| {
        let text = format!(
            "backends = [\"127.0.0.1:1\"]\n[[site]]\nhosts = [\"a\"]\nsecrets = [{file:?}]\n"
        );
        Config::parse(&text, "b.toml").unwrap_err().to_string()
    };
    let file = folder.write("keys.txt", "ci:12");
    make_private(&file);
    let text = message(&file);
    assert!(text.contains("sites[0].secrets[0] is ") && text.contains("line 1 is not"), "{text}");
    assert!(!text.contains("12\""), "{text}");
    let text = message(&file.with_file_name("missing"));
    assert!(text.contains("sites[0].secrets[0] is "), "{text}");
    #[cfg(unix)]
    {
        let public = folder.write("public.txt", &Secrets::create("ci").unwrap().1);
        set_mode(&public, 0o644);
        let text = message(&public);
        assert!(text.contains("can be read by every user") && text.contains("chmod o-r"), "{text}");
    }
}

#[cfg(unix)]
fn set_mode(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn make_private(path: &std::path::Path) {
    #[cfg(unix)]
    set_mode(path, 0o600);
    #[cfg(not(unix))]
    let _ = path;
}
