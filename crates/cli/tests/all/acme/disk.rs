//! A disk that is full before an order, during it, and after it: a file system in memory, in the
//! server's own mount namespace.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};

use throng_testkit::eventually;

use super::pebble::{HTTP_PORT, Pebble, TLS_PORT};
use super::{Server, files, shown};
use crate::support::may_unshare;

/// Mounts a disk with 64 KiB and 12 files, fills it, and starts the server.
const ON_A_FULL_DISK: &str = r#"
    mount -t tmpfs -o size=64k,nr_inodes=12 tmpfs "$0"
    cat /dev/zero >"$0/fill" 2>/dev/null
    n=0
    while touch "$0/fill-$n" 2>/dev/null; do n=$((n + 1)); done
    exec "$@"
"#;

/// The disk of a server.
struct Disk(PathBuf);

impl Disk {
    fn of(server: &Server, pebble: &Pebble) -> Self {
        let root = PathBuf::from(format!("/proc/{}/root", server.process.id()));
        Self(root.join(pebble.folder.join("kept").strip_prefix("/").unwrap()))
    }

    fn fill(&self) {
        let mut file = File::create(self.0.join("fill")).unwrap();
        while file.write(&[0; 4096]).is_ok() {}
    }

    fn free(&self) {
        for file in files(&self.0) {
            if file.file_name().unwrap().to_str().unwrap().starts_with("fill") {
                fs::remove_file(file).unwrap();
            }
        }
    }

    /// The names of the files, except the files that fill it.
    fn files(&self) -> Vec<String> {
        let names = files(&self.0).into_iter().map(|file| file.file_name().unwrap().to_owned());
        let names = names.map(|name| name.into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with("fill")).collect();
        names.sort();
        names
    }
}

/// A proxy of the authority that can hold answers back.
struct Gate {
    address: SocketAddr,
    /// The text in the authority's log from which its answers are held back.
    held: Arc<(Mutex<Option<&'static str>>, Condvar)>,
}

impl Gate {
    fn new(pebble: &Pebble) -> Self {
        let listener = TcpListener::bind((pebble.address, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let held: Arc<(Mutex<Option<&'static str>>, Condvar)> = Arc::default();
        let (authority, log) = (pebble.directory_address(), pebble.folder.join("pebble.log"));
        let state = Arc::clone(&held);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(authority) else { continue };
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
                let (state, log) = (Arc::clone(&state), log.clone());
                std::thread::spawn(move || answer(server, client, &state, &log));
            }
        });
        Self { address, held }
    }

    /// Holds answers back once the authority's log has this text.
    fn hold(&self, text: &'static str) {
        *self.held.0.lock().unwrap() = Some(text);
    }

    fn open(&self) {
        *self.held.0.lock().unwrap() = None;
        self.held.1.notify_all();
    }
}

/// Forwards the authority's answers, unless they are held back.
fn answer(
    mut server: TcpStream,
    mut client: TcpStream,
    (held, opened): &(Mutex<Option<&'static str>>, Condvar),
    log: &std::path::Path,
) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = server.read(&mut buffer) {
        let is_held = |text: &mut Option<&str>| {
            let log = fs::read_to_string(log).unwrap_or_default();
            text.is_some_and(|text| log.contains(text))
        };
        drop(opened.wait_while(held.lock().unwrap(), is_held).unwrap());
        if client.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = client.shutdown(Shutdown::Write);
}

#[test]
fn a_full_disk_costs_no_order_and_no_certificate_that_was_issued() {
    if !may_unshare(&["--mount"]) {
        return;
    }
    let Some(mut pebble) = Pebble::find("acme-disk") else { return };
    pebble.start(&[("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_WFE_NONCEREJECT", "0")]);
    let gate = Gate::new(&pebble);
    let listen = format!("{}:{TLS_PORT},{}:{HTTP_PORT}", pebble.address, pebble.address);
    let words = ["serve", "--listen", &listen, "--shards", "1", "--set", "allowed_hosts=*"];
    let directory = format!("tls.acme.directory=https://{}/dir", gate.address);
    let settings = ["tls.acme.domains=a.example", &directory];
    let inner = Server::command(&pebble, &words, &settings);
    let kept = pebble.folder.join("kept");
    fs::create_dir(&kept).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", ON_A_FULL_DISK]).arg(kept);
    command.arg(inner.get_program()).args(inner.get_args());
    // Full from the start, including files: the server runs, and orders nothing.
    let server = Server::spawn(&pebble, "disk", command);
    let disk = Disk::of(&server, &pebble);
    let failed = server.event("certificate.not_issued", 0);
    assert!(failed.contains("(os error 28); the disk is full: make room"), "{failed}");
    server.signal("HUP");
    server.event("certificate.not_issued", 1);
    let accounts = || pebble.logged("accounts in memory");
    let orders = || pebble.logged("Added order");
    assert_eq!((accounts(), orders()), (0, 0));

    // Full after an account was created, which is not created again.
    gate.hold("accounts in memory");
    disk.free();
    server.signal("HUP");
    eventually("it makes an account", || accounts() == 1);
    disk.fill();
    gate.open();
    let failed = server.event("certificate.not_issued", 2);
    assert!(failed.contains("account.json: cannot be written: No space"), "{failed}");
    assert_eq!(disk.files(), ["lock"], "nothing is left half written");

    // Full after a certificate was issued: it is in use, and not ordered again.
    gate.hold("Added order");
    disk.free();
    server.signal("HUP");
    eventually("it orders", || orders() == 1);
    assert_eq!(disk.files(), ["account.json", "lock"]);
    disk.fill();
    gate.open();
    let unwritten = server.event("certificate.unwritten", 0);
    assert!(unwritten.contains("certificate.pem: cannot be written: No space"), "{unwritten}");
    server.event("certificate.issued", 0);
    let (at, root) = (SocketAddr::from((pebble.address, TLS_PORT)), pebble.root());
    let first = shown(at, &root, "a.example");
    server.signal("HUP");
    server.event("certificate.unwritten", 1);
    assert_eq!(disk.files(), ["account.json", "lock"]);

    // It is written when there is room.
    disk.free();
    server.signal("HUP");
    eventually("it is written", || disk.files() == ["account.json", "certificate.pem", "lock"]);
    let file = files(&disk.0).into_iter().find(|file| file.ends_with("certificate.pem")).unwrap();
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(shown(at, &root, "a.example"), first);
    assert_eq!((accounts(), orders()), (1, 1));
    assert_eq!(server.events("certificate.issued").len(), 1);
    assert_eq!(server.events("certificate.unwritten").len(), 2);
    server.stop();
}
