//! A pick allocates nothing, for any number of backends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use throng_balance::{
    Backend, Pick, Picker, Pool, Settings, Target, Wanted, pick_bound, pick_by_key,
};

fn pool(pick: Pick) -> Pool {
    let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let backend = |port| Arc::new(Backend::new(address(port), 1 + u32::from(port % 3)));
    let target = |port| Target {
        backend: backend(port),
        send_proxy: false,
        tls: None,
        passthrough: Arc::default(),
        name: None,
    };
    let settings = Settings { pick, ..Settings::default() };
    Pool::new("default".into(), settings.pool(), (1..=1000).map(target).collect())
}

#[test]
fn a_pick_allocates_nothing() {
    for pick in [
        Pick::PowerOfTwo,
        Pick::LeastConnections,
        Pick::RoundRobin,
        Pick::Rendezvous,
        Pick::Random,
        Pick::IpHash,
    ] {
        let pool = pool(pick);
        let mut picker = Picker::new(1);
        let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut picks = |count| {
            for _ in 0..count {
                let place =
                    picker.pick(&pool, Wanted::Request, None, client, |place| place % 7 != 0);
                pool.targets[place.unwrap()].backend.open_tunnel();
            }
        };
        // The first pick in turn reads the list.
        picks(1);
        assert_eq!(allocation_counter::measure(|| picks(50)).count_total, 0, "{pick:?}");
    }
    let pool = pool(Pick::default());
    let address = pool.targets[999].backend.address();
    let bound = pool.tag(address);
    let counted = allocation_counter::measure(|| {
        assert_eq!(pick_bound(&pool, bound), Some(999));
        assert!(pick_by_key(&pool, 1, |_| true).is_some());
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn the_counter_counts() {
    let counted = allocation_counter::measure(|| drop(pool(Pick::default())));
    assert!(counted.count_total >= 1000);
}
