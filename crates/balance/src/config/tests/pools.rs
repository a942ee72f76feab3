//! Pools in a file.

use super::*;

#[test]
fn a_pool_has_its_values_and_those_of_the_whole_file() {
    let text = "pick = \"random\"\nclose_rate = 7\nkeep_alive = 9\n\
                [health.check]\nkind = \"http\"\npath = \"/up\"\n[backend_tls]\nverify = false\n\
                [[pool]]\nname = \"chat\"\nbackends = [\"127.0.0.1:1\", \"app:2,weight=3\"]\n\
                pick = \"round_robin\"\nsticky = { cookie = \"lb\" }\nremoved = \"drain\"\n\
                health.check.interval = \"9s\"\ntimeouts.connect = \"1s\"\n\
                [[pool]]\nname = \"api\"\nbackends = [{ address = \"127.0.0.1:2\", tls = false }]\n\
                tls.name = \"api.internal\"\n";
    let config = Config::parse(text, "b.toml").unwrap();
    assert!(config.backends.is_empty());
    let [chat, api] = &config.pools[..] else { panic!("{:?}", config.pools) };
    let settings = &chat.settings;
    assert_eq!((&*chat.name, settings.pick, settings.close_rate), ("chat", Pick::RoundRobin, 7));
    assert_eq!(settings.sticky, Sticky::Cookie("lb".to_owned()));
    assert_eq!((settings.removed, settings.keep_alive), (crate::Removed::Drain, 9));
    assert_eq!(settings.connect, Duration::from_secs(1));
    let check = settings.health.check.as_ref().unwrap();
    assert_eq!(check.kind, CheckKind::Http("/up".to_owned()));
    assert_eq!(check.interval, Duration::from_secs(9));
    assert_eq!((chat.backends.len(), chat.names[0].weight), (1, 3));
    assert_eq!(chat.tls, config.backend_tls);
    assert_eq!((api.settings.pick, api.settings.close_rate), (Pick::Random, 7));
    assert_eq!(api.backends[0].tls, Some(false));
    // A table of TLS stands for itself: it verifies, unlike the other.
    let tls = api.tls.as_ref().unwrap();
    assert_eq!(tls.name.as_deref(), Some("api.internal"));
    assert_eq!(tls.settings.trust, throng_tls::Trust::System);
    assert_eq!(config.settings.health.check.unwrap().interval, Duration::from_secs(2));
}

#[test]
fn a_pool_called_default_is_the_pool_outside_of_pools() {
    let text = "[[pool]]\nname = \"default\"\nbackends = [\"127.0.0.1:1\"]\npick = \"random\"\n";
    let config = Config::parse(text, "b.toml").unwrap();
    assert!(config.pools.is_empty() && config.backends.len() == 1);
    assert_eq!(config.settings.pick, Pick::Random);
    let errors = Config::parse(&format!("backends = [\"127.0.0.1:2\"]\n{text}"), "b.toml");
    let errors = errors.unwrap_err().to_string();
    assert!(
        errors.contains("b.toml:3:8: pools[0].name is \"default\": that is the pool"),
        "{errors}"
    );
}

#[test]
fn a_pool_may_have_no_check_in_a_file_with_one() {
    let text = "[health.check]\nkind = \"http\"\n[[pool]]\nname = \"a\"\n\
                backends = [\"127.0.0.1:9001\"]\nhealth.check.kind = \"none\"\n\
                [[pool]]\nname = \"b\"\nbackends = [\"127.0.0.1:9002\"]\n";
    let config = Config::parse(text, "b.toml").unwrap();
    let checks = config.pools.iter().map(|pool| pool.settings.health.check.is_some());
    assert_eq!(checks.collect::<Vec<_>>(), [false, true]);
}

#[test]
fn mistakes_in_pools_are_reported_at_their_place() {
    let pool = |more: &str| format!("[[pool]]\nname = \"a\"\n{more}\n");
    let one = "backends = [\"127.0.0.1:1\"]";
    for (text, expected) in [
        (pool(""), "b.toml:1:1: pools[0].backends is empty: write for example"),
        (pool("backends = [\"0.0.0.0:1\"]"), ":3:13: pools[0].backends[0] is \"0.0.0.0:1\": it is"),
        (
            pool("backends = [\"127.0.0.1:1\", \"127.0.0.1:1\"]"),
            "pools[0].backends[1] is \"127.0.0.1:1\": pools[0].backends[0] has this address",
        ),
        (pool("backends = [\"a:1,passthrough=b\"]"), "backends[0].passthrough is an unknown key"),
        (pool(&format!("{one}\nsticky = \"cookie:a b\"")), ":4:10: pools[0].sticky is \"a b\": "),
        (pool(&format!("{one}\npick = \"first\"")), ":4:8: pools[0].pick is \"first\": "),
        (pool(&format!("{one}\nretries = 2")), "pools[0].retries is an unknown key"),
        (
            pool(&format!("{one}\nhealth.check.path = \"/\"")),
            "pools[0].health.check is \"/\": the kind of check is missing",
        ),
        (
            pool(&format!("{one}\nhealth.check = {{ kind = \"tcp\", host = \"a\" }}")),
            "pools[0].health.check.host is \"a\": a check of kind \"tcp\" has no host",
        ),
        (pool(&format!("{one}\ntls.cert = \"a\"")), "pools[0].tls is \"a\": a client certificate"),
        (pool(one) + &pool(one), "pools[1].name is \"a\": another pool has it"),
        (pool(one).replace("\"a\"", "\"a b\""), ":2:8: pools[0].name is \"a b\": write 1 to 64"),
        (
            format!("{}[[site]]\nhosts = [\"*\"]\npool = \"b\"\n", pool(one)),
            "sites[0].pool is \"b\": ",
        ),
    ] {
        let errors = Config::parse(&text, "b.toml").unwrap_err().to_string();
        assert!(errors.contains(expected) && !errors.contains('\n'), "{text}: {errors}");
    }
    // A mistake in a pool is not one of the sites that lead to it.
    let text =
        pool(&format!("{one}\npick = \"first\"")) + "[[site]]\nhosts = [\"*\"]\npool = \"a\"\n";
    let errors = Config::parse(&text, "b.toml").unwrap_err().to_string();
    assert!(errors.contains("pools[0].pick") && !errors.contains('\n'), "{errors}");
}
