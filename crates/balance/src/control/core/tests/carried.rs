//! State that a successor of the process goes on with.

use crate::limit::LimitRow;

use super::*;

fn successor(before: &ControlCore, ports: &[u16], more: &str) -> ControlCore {
    let carried = serde_json::to_string(&before.carried(Instant(0))).unwrap();
    let mut after = core(ports, more);
    after.take_over(serde_json::from_str(&carried).unwrap(), at(0.0));
    after
}

#[test]
fn a_backend_that_is_down_stays_down_in_a_successor() {
    let mut before = core(&[1, 2, 3], "");
    fail(&mut before, 1, 3, at(1.0));
    fail(&mut before, 2, 3, at(1.0));
    expire(&mut before, at(11.0));
    assert_eq!((states(&before), backend(&before, 2).share()), (vec!["up"; 3], 10));
    fail(&mut before, 1, 1, at(11.0));
    let mut after = successor(&before, &[1, 2, 3], "");
    assert_eq!(states(&after), ["down", "up", "up"]);
    // The probation goes on: one failure is enough.
    assert_eq!((backend(&after, 2).share(), backend(&after, 3).share()), (10, 100));
    fail(&mut after, 2, 1, at(0.1));
    fail(&mut after, 3, 1, at(0.1));
    assert_eq!(states(&after), ["down", "down", "up"]);
    // Its time begins again.
    expire(&mut after, at(10.1));
    assert_eq!(states(&after), ["up"; 3]);
}

#[test]
fn checks_decide_in_a_successor_about_a_backend_that_they_took_down() {
    let more = "[health.check]\nkind = \"tcp\"";
    let mut before = core(&[1, 2], more);
    let one = backend(&before, 1);
    for second in 0..3 {
        let failed = Err("no answer".to_owned().into());
        before.handle_check(&one, failed, at(f64::from(second)), SystemTime::UNIX_EPOCH);
    }
    let mut after = successor(&before, &[1, 2], more);
    expire(&mut after, at(60.0));
    assert_eq!(states(&after), ["down", "up"]);
    let one = backend(&after, 1);
    for second in 60..62 {
        after.handle_check(&one, Ok(()), at(f64::from(second)), SystemTime::UNIX_EPOCH);
    }
    assert_eq!(states(&after), ["up", "up"]);
}

#[test]
fn a_backend_of_an_earlier_release_is_up() {
    let mut before = core(&[1], "");
    fail(&mut before, 1, 3, at(1.0));
    let mut carried = serde_json::to_value(before.carried(Instant(0))).unwrap();
    carried["backends"][0].as_object_mut().unwrap().remove("health").unwrap();
    let mut after = core(&[1], "");
    after.take_over(serde_json::from_value(carried).unwrap(), at(0.0));
    assert_eq!(states(&after), ["up"]);
}

#[test]
fn a_successor_counts_on_and_a_drain_counts_from_its_own_beginning() {
    let before = core(&[1, 2], "");
    let mut after = core(&[1], "");
    let (old, new) = (backend(&before, 1), backend(&after, 1));
    open(&old, 5);
    close(&old, 5);
    open(&new, 3);
    after.drain(address(1), None).unwrap();
    let mut status = crate::status::Status { panics: 2, ..Default::default() };
    status.metrics.accepted = 7;
    status.metrics.tunnels = 4;
    let limit = |name: &str, refused| LimitRow { name: name.into(), refused, ..Default::default() };
    status.limits = vec![limit("dial", 2), limit("gone", 1)];
    let counts = serde_json::to_string(&before.counts(&status)).unwrap();
    let counts: crate::CarriedCounts = serde_json::from_str(&counts).unwrap();
    after.count_on(&counts);
    let row = &after.rows(at(1.0))[0];
    assert_eq!((row.totals.tunnels, row.totals.closed), (8, 5));
    assert_eq!(after.entries[0].drain.unwrap().closed_before, 5);
    let mut status = crate::status::Status { panics: 1, ..Default::default() };
    (status.metrics.accepted, status.metrics.tunnels) = (1, 1);
    status.limits = vec![limit("new", 1), limit("dial", 3)];
    counts.add_to(&mut status);
    assert_eq!(status.limits, [limit("new", 1), limit("dial", 5)]);
    let sums = (status.panics, status.metrics.accepted, status.metrics.tunnels);
    assert_eq!(sums, (3, 8, 1), "what is open now is not added");
}

#[test]
fn maintenance_and_classes_of_sites_go_on_by_name() {
    let shop = "[[site]]\nhosts = [\"a\"]\nname = \"shop\"\n[[site]]\nhosts = [\"b\"]\n";
    let mut before = core(&[1], shop);
    // Earlier releases sent the list of backends alone.
    let backends = &serde_json::to_value(before.carried(Instant(0))).unwrap()["backends"];
    let list: crate::CarriedState = serde_json::from_value(backends.clone()).unwrap();
    assert_eq!(serde_json::to_value(list).unwrap()["backends"], *backends);
    assert!(before.set_maintenance("shop", Some(true)).unwrap());
    assert!(before.set_maintenance("none", Some(true)).is_err());
    let after = successor(&before, &[1], shop);
    assert_eq!(ports(&after), [1]);
    assert!(after.is_in_maintenance("shop").unwrap() && !after.is_in_maintenance("b").unwrap());
    // The successor's file may not have the site.
    let mut other = successor(&before, &[1], "");
    assert!(other.is_in_maintenance("shop").is_err());
    assert!(other.take_configuration().is_none_or(|it| it.maintenance.is_empty()));
    // A class has its number for the life of a process.
    let tunnels = |name: &str| format!("{shop}name = {name:?}\ntimeouts.tunnel = \"1s\"\n");
    before.apply(config(&[1], &tunnels("x")), at(1.0), |_| ()).unwrap();
    before.apply(config(&[1], &tunnels("y")), at(1.0), |_| ()).unwrap();
    before.apply(config(&[1], shop), at(1.0), |_| ()).unwrap();
    let classes = before.take_configuration().unwrap().classes.clone();
    assert_eq!([1, 2, 3].map(|class| classes.name(class)), [Some("x\n"), Some("y\n"), None]);
}

#[test]
fn blocks_and_weights_of_splits_go_on_before_a_successor_listens() {
    let split = "[[pool]]\nname = \"b\"\nbackends = [\"127.0.0.1:2\"]\n[[site]]\nhosts = [\"a\"]\n\
                 split = [{ pool = \"default\", weight = 95 }, { pool = \"b\", weight = 5 }]\n";
    let mut before = core(&[1], split);
    let now = SystemTime::now();
    before.blocks().add("203.0.113.0/24", Duration::from_secs(60), "op", now).unwrap();
    let weights = BTreeMap::from([("b".to_owned(), 20)]);
    before.set_split("a", None, &weights).unwrap();
    let after = successor(&before, &[1], split);
    assert_eq!(after.blocks().list(now), before.blocks().list(now));
    let shown = |core: &ControlCore| serde_json::to_value(core.site_summaries(0, 9).0).unwrap();
    assert_eq!(shown(&after), shown(&before));
    assert_eq!(shown(&after)[0]["action"]["split"][1]["weight"], 20);
}
