//! Server names that are passed through to backends that are added while the balancer runs.

use throng_acme::AcmeSettings;

use super::*;

/// A backend of weight 1 at `port` with these names, as the control API reads them.
fn passing(port: u16, names: &[&str]) -> BackendConfig {
    let passthrough = server_names(names.iter().map(ToString::to_string).collect());
    BackendConfig { passthrough, ..BackendConfig::new(address(port)) }
}

fn names(core: &ControlCore) -> Vec<String> {
    core.passthrough().iter().map(ToString::to_string).collect()
}

fn parse(text: &str) -> Config {
    Config::parse(text, "b.toml").unwrap()
}

#[test]
fn names_are_refused_with_the_words_of_the_configuration() {
    let mut config = parse("backends = [\"127.0.0.1:1,passthrough=*\", \"127.0.0.1:2,tls\"]");
    let acme =
        AcmeSettings { domains: vec!["WWW.example.com".into()], ..AcmeSettings::new("".into()) };
    config.tls.as_mut().unwrap().acme = Some(acme);
    let mut core = ControlCore::new(config);
    core.remove(address(2), None, at(0.0)).unwrap();
    expire(&mut core, at(0.0));
    core.take_configuration();
    commands(&mut core);
    for (port, given, expected) in [
        (3, &["10.0.0.1"][..], "passthrough is \"10.0.0.1\": write a name such as"),
        (3, &["a.example.com", "a.*.com"], "passthrough is \"a.*.com\": write a name such as"),
        (3, &[""], "passthrough is \"\": write a name such as"),
        (3, &["www.Example.com"], "\"www.example.com\": a certificate is ordered for it"),
        // By the file.
        (2, &["db.example.com"], "tls is true: its clients' TLS is passed through to it: drop tls"),
    ] {
        let refused = core.add(passing(port, given), at(0.0)).unwrap_err().to_string();
        assert!(refused.contains(expected) && !refused.contains('\n'), "{refused}\n{expected}");
        // A file with these names has the same mistake.
        if port == 3 && !expected.contains("ordered") {
            let text =
                format!("backends = [{{ address = \"127.0.0.1:3\", passthrough = {given:?} }}]");
            let in_file = Config::parse(&text, "b.toml").unwrap_err().to_string();
            assert!(in_file.ends_with(&format!("backends[0].{refused}")), "{in_file}\n{refused}");
        }
    }
    assert_eq!((ports(&core), names(&core)), (vec![1], vec!["*".to_owned()]));
    assert!(commands(&mut core).is_empty() && core.take_configuration().is_none());
}

#[test]
fn names_need_tls_of_clients_since_the_start() {
    let mut core = core(&[1], "");
    let refused = core.add(passing(2, &["db.example.com"]), at(0.0)).unwrap_err().to_string();
    let expected = "passthrough is [\"db.example.com\"]: the balancer was started without TLS of \
                    clients: restart it with a table [tls]";
    assert!(refused.starts_with(expected), "{refused}");
    core.add(passing(2, &[]), at(0.0)).unwrap();
    assert_eq!(ports(&core), [1, 2]);
}

#[test]
fn names_come_with_a_backend_and_go_with_the_last_that_has_them() {
    let file = "backends = [\"127.0.0.1:1,passthrough=a.example.com\"]";
    let mut core = ControlCore::new(parse(file));
    assert_eq!(names(&core), ["a.example.com"]);
    core.add(passing(2, &["B.example.com", "a.example.com"]), at(0.0)).unwrap();
    core.add(passing(3, &["b.example.com", "*"]), at(0.0)).unwrap();
    assert_eq!(names(&core), ["*", "a.example.com", "b.example.com"]);
    let row = &core.rows(at(0.0))[1];
    assert_eq!(
        (row.passthrough.join(" "), row.source),
        ("b.example.com a.example.com".into(), "api")
    );
    // They stay over reloads, which see no change in them.
    let changes = apply(&mut core, parse(file), at(1.0)).unwrap();
    assert!(!changes.settings && changes.removed.is_empty(), "{changes:?}");
    assert_eq!(names(&core), ["*", "a.example.com", "b.example.com"]);
    // They are removed before the last tunnel ends.
    open(&backend(&core, 3), 1);
    core.remove(address(3), None, at(0.0)).unwrap();
    assert_eq!(
        (names(&core).join(" "), ports(&core)),
        ("a.example.com b.example.com".into(), vec![1, 2, 3])
    );
    core.remove(address(2), None, at(0.0)).unwrap();
    assert_eq!(names(&core), ["a.example.com"]);
    // Removing a backend of the file leaves the file's names in force.
    core.remove(address(1), None, at(0.0)).unwrap();
    expire(&mut core, at(2.0));
    assert_eq!((names(&core), ports(&core)), (vec!["a.example.com".to_owned()], vec![3]));
}

#[test]
fn given_names_hold_instead_of_the_files_until_it_is_read_again() {
    let file = "backends = [\"127.0.0.1:1\", \"127.0.0.1:2,passthrough=a.example.com\"]";
    let mut core = ControlCore::new(parse(file));
    core.remove(address(2), None, at(0.0)).unwrap();
    expire(&mut core, at(0.0));
    core.add(passing(2, &["b.example.com"]), at(0.0)).unwrap();
    assert_eq!(core.rows(at(0.0))[1].passthrough, ["b.example.com"]);
    assert_eq!(names(&core), ["a.example.com", "b.example.com"]);
    apply(&mut core, parse(file), at(1.0)).unwrap();
    assert_eq!(core.rows(at(1.0))[1].passthrough, ["a.example.com"]);
    assert_eq!(names(&core), ["a.example.com"]);
    // After it leaves the file it keeps its settings, with its names.
    apply(&mut core, parse("backends = [\"127.0.0.1:1\"]"), at(2.0)).unwrap();
    assert_eq!(
        (core.rows(at(2.0))[1].source, names(&core)),
        ("api", vec!["a.example.com".to_owned()])
    );
}

#[test]
fn a_silent_backend_keeps_its_names_while_it_is_offered() {
    let more =
        format!("backends = [\"127.0.0.1:1\", \"127.0.0.1:2,passthrough=a.example.com\"]\n{TOKEN}");
    let mut core = ControlCore::new(parse(&more));
    core.register(address(2), 1, Some(Duration::from_secs(1)), at(0.0)).unwrap();
    apply(&mut core, parse(&format!("backends = [\"127.0.0.1:1\"]\n{TOKEN}")), at(0.5)).unwrap();
    expire(&mut core, at(2.0));
    assert_eq!(
        (states(&core), names(&core)),
        (vec!["up", "down"], vec!["a.example.com".to_owned()])
    );
    // It comes back unchanged.
    core.register(address(2), 1, None, at(3.0)).unwrap();
    assert_eq!((states(&core), names(&core)), (vec!["up", "up"], vec!["a.example.com".to_owned()]));
    core.deregister(address(2)).unwrap();
    assert!(names(&core).is_empty());
}

#[test]
fn names_are_reported_only_when_they_may_have_changed() {
    let mut core =
        ControlCore::new(parse("backends = [\"127.0.0.1:1\", \"127.0.0.1:2,passthrough=*\"]"));
    assert_eq!(core.take_passthrough().unwrap(), [Box::from("*")]);
    fail(&mut core, 2, 3, at(0.0));
    let passed = backend(&core, 1);
    core.handle_check(&passed, Ok(()), at(1.0), SystemTime::UNIX_EPOCH);
    core.set_weight(address(1), 2, at(1.0)).unwrap();
    expire(&mut core, at(2.0));
    assert!(core.take_passthrough().is_none());
    core.add(passing(3, &["a.example.com"]), at(2.0)).unwrap();
    assert_eq!(core.take_passthrough().unwrap().len(), 2);
    // It is draining already: its removal changes nothing for shards.
    open(&backend(&core, 3), 1);
    core.drain(address(3), None).unwrap();
    core.take_configuration();
    core.take_passthrough();
    core.remove(address(3), None, at(0.0)).unwrap();
    assert!(core.take_configuration().is_none());
    assert_eq!(core.take_passthrough().unwrap(), [Box::from("*")]);
}

#[test]
fn a_backend_that_is_added_again_has_the_names_given_then() {
    let mut core = ControlCore::new(parse("backends = [\"127.0.0.1:1,passthrough=*\"]"));
    core.add(passing(2, &["a.example.com"]), at(0.0)).unwrap();
    open(&backend(&core, 2), 1);
    core.remove(address(2), None, at(0.0)).unwrap();
    core.add(passing(2, &[]), at(1.0)).unwrap();
    assert_eq!((names(&core).join(" "), backend(&core, 2).tunnels()), ("*".into(), 1));
}
