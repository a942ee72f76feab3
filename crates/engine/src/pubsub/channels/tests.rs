use std::collections::{BTreeMap, BTreeSet};

use allocation_counter::measure;
use proptest::prelude::*;

use super::*;
use crate::random::Random;

#[test]
fn a_membership_costs_twelve_bytes() {
    assert_eq!(size_of::<Member>() + size_of::<Sub>(), 12);
}

/// Numbers that look random and are the same each time.
struct Dice(Random);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }
}

/// The rules, as obvious as they can be.
fn matches(pattern: &[&str], name: &[&str]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([">"], [_, ..]) => true,
        (["*", pattern @ ..], [_, name @ ..]) => matches(pattern, name),
        ([token, pattern @ ..], [same, name @ ..]) if token == same => matches(pattern, name),
        _ => false,
    }
}

fn tokens(name: &str) -> Vec<&str> {
    name.split('.').collect()
}

/// Returns whether a subscription may have this name, by the rules in `wildcard.rs`.
fn may_be_subscribed(name: &str) -> bool {
    let tokens = tokens(name);
    let is_pattern = tokens.iter().any(|token| ["*", ">"].contains(token));
    !tokens.contains(&"")
        && tokens.iter().rev().skip(1).all(|token| *token != ">")
        && !(is_pattern && tokens.len() > MAX_PATTERN_TOKENS)
}

/// Tokens of the subscribed and published names of a test.
fn name(dice: &mut Dice) -> String {
    let token = ["a", "b", "c", "*", ">", ""];
    // Mostly lawful: the empty token is rarely drawn.
    let len = 1 + dice.below(4);
    let tokens: Vec<&str> =
        (0..len).map(|_| if dice.below(60) == 0 { "" } else { dice.one(&token[..5]) }).collect();
    tokens.join(".")
}

/// Memberships of every connection by name, of one shard.
type Model = BTreeMap<String, BTreeSet<u32>>;

fn agree(channels: &mut Channels, model: &Model, slot: u32, published: &str, wildcards: bool) {
    assert_eq!(channels.len(), model.len());
    assert_eq!(channels.memberships(), model.values().map(BTreeSet::len).sum::<usize>());
    for (name, set) in model {
        let members: BTreeSet<u32> = channels.members(name).iter().map(|m| m.slot).collect();
        assert_eq!((&members, members.len()), (set, channels.members(name).len()));
    }
    let names: Vec<&str> = channels.subscriptions(slot).map(|name| &**name).collect();
    let set: BTreeSet<&str> = names.iter().copied().collect();
    let expected: BTreeSet<&str> =
        model.iter().filter(|(_, set)| set.contains(&slot)).map(|(name, _)| &**name).collect();
    assert_eq!((&set, names.len()), (&expected, expected.len()));

    // Not one node, edge or token more than the patterns have between them.
    let patterns = model.keys().map(|name| tokens(name));
    let patterns: Vec<_> = patterns
        .filter(|tokens| wildcards && tokens.iter().any(|token| ["*", ">"].contains(token)))
        .collect();
    let prefixes: BTreeSet<&[&str]> = patterns
        .iter()
        .flat_map(|tokens| (0..=tokens.len()).map(|len| &tokens[..len]))
        .filter(|prefix| prefix.last() != Some(&">"))
        .collect();
    let literals: Vec<&str> = prefixes
        .iter()
        .filter_map(|prefix| prefix.last())
        .filter(|t| **t != "*")
        .copied()
        .collect();
    let distinct: BTreeSet<&str> = literals.iter().copied().collect();
    assert_eq!(channels.patterns.sizes(), (prefixes.len(), literals.len(), distinct.len()));

    let reached_by = |pattern: &str| match wildcards {
        true => !tokens(published).contains(&"") && matches(&tokens(pattern), &tokens(published)),
        false => pattern == published,
    };
    let lists = model.iter().filter(|(name, _)| reached_by(name));
    let expected: BTreeSet<u32> = lists.flat_map(|(_, set)| set).copied().collect();
    let mut visited = Vec::new();
    channels.matching(published, |slot| visited.push(slot));
    let set: BTreeSet<u32> = visited.iter().copied().collect();
    assert_eq!((&set, visited.len()), (&expected, expected.len()), "{published}");
}

/// Two shards against plain maps of sets, over random churn in waves: from empty to hundreds of
/// memberships for a connection and back.
fn churn(wildcards: bool, seed: u64) {
    let totals = Arc::new(Totals::default());
    let mut shards = [(); 2].map(|()| Channels::new(Arc::clone(&totals)));
    let mut models = [Model::new(), Model::new()];
    let mut dice = Dice(Random::new(seed));
    let mut most = 0;
    for step in 0..12_000 {
        let shard = dice.below(2) as usize;
        let (channels, model) = (&mut shards[shard], &mut models[shard]);
        // One connection in three takes most of the memberships: lists, tables and single ones all
        // occur.
        let slot = match dice.below(3) {
            0 => 3,
            _ => dice.below(12) as u32,
        };
        let (mut name, grows) = (name(&mut dice), step / 2000 % 2 == 0);
        match dice.below(if grows { 10 } else { 40 }) {
            0 if !grows || dice.below(20) == 0 => {
                let had = model.values_mut().filter_map(|set| set.remove(&slot).then_some(()));
                assert_eq!(channels.unsubscribe_all(slot), had.count());
            }
            0..9 => {
                let may = !wildcards || may_be_subscribed(&name);
                let new = may && model.entry(name.clone()).or_default().insert(slot);
                let joined = match wildcards {
                    true => channels.subscribe_pattern(slot, &name),
                    false => Ok(channels.subscribe(slot, &name)),
                };
                assert_eq!((joined.is_ok(), joined.unwrap_or(false)), (may, new), "{name}");
            }
            _ => {
                // In nearly all cases, choose a membership that exists.
                let held = model.iter().filter(|(_, set)| set.contains(&slot));
                let held: Vec<&String> = held.map(|(name, _)| name).collect();
                if !held.is_empty() {
                    name = held[dice.below(held.len() as u64) as usize].clone();
                }
                let had = model.get_mut(&name).is_some_and(|set| set.remove(&slot));
                let mut unsubscribe = || match wildcards {
                    true => channels.unsubscribe_pattern(slot, &name),
                    false => channels.unsubscribe(slot, &name),
                };
                assert_eq!((unsubscribe(), unsubscribe()), (had, false));
            }
        }
        model.retain(|_, set| !set.is_empty());
        most = most.max(channels.subscriptions(slot).count());
        let published = self::name(&mut dice);
        agree(channels, model, slot, &published, wildcards);
        let expected = models.iter().filter_map(|model| model.get(&name)).map(BTreeSet::len);
        assert_eq!(totals.count(&name), expected.sum::<usize>());
        if step % 100 == 0 {
            let mut expected = BTreeMap::<&str, usize>::new();
            for (name, set) in models.iter().flatten() {
                *expected.entry(name).or_default() += set.len();
            }
            let list = totals.list();
            let list: BTreeMap<&str, usize> = list.iter().map(|(name, n)| (&**name, *n)).collect();
            assert_eq!((&list, totals.channels()), (&expected, expected.len()));
        }
    }
    assert!(most > 64, "no table in this churn: {most} memberships at most");
    // One shard by its connections, the other by its own end.
    let [mut one, two] = shards;
    (0..12).for_each(|slot| _ = one.unsubscribe_all(slot));
    assert_eq!((one.len(), one.memberships(), one.patterns.sizes()), (0, 0, (0, 0, 0)));
    let left: usize = models[1].values().map(BTreeSet::len).sum();
    assert_eq!(totals.list().iter().map(|(_, n)| n).sum::<usize>(), left);
    drop(two);
    assert_eq!((totals.list(), totals.channels()), (vec![], 0));
}

#[test]
fn churn_agrees_with_the_obvious_model() {
    churn(false, 0x9e37_79b9_7f4a_7c15);
}

#[test]
fn churn_with_wildcards_agrees_with_the_obvious_model() {
    churn(true, 0x2545_f491_4f6c_dd1d);
}

/// Subscription, published name, and whether the message arrives; the first cases come from the
/// NATS documentation.
#[test]
fn wildcards_match_as_those_of_nats() {
    for (subscription, published, arrives) in [
        ("time.us.east", "time.us.east", true),
        ("time.*.east", "time.us.east", true),
        ("time.*.east", "time.eu.east", true),
        ("time.us.*", "time.us.east.atlanta", false),
        ("time.us.>", "time.us.east", true),
        ("time.us.>", "time.us.east.atlanta", true),
        ("time.us.>", "time.us", false),
        ("*.*.east.>", "time.us.east.atlanta", true),
        ("*.*.east.>", "time.us.east", false),
        (">", "time", true),
        (">", "time.us.east", true),
        ("*", "time", true),
        ("*", "time.us", false),
        ("*.*", "time.us", true),
        ("*.us", "time.us", true),
        ("*.us", "us", false),
        ("time", "time.us", false),
        ("time.us", "time", false),
        ("Time.*", "time.us", false),
        // A part of a token is not a wildcard.
        ("ti*", "time", false),
        ("ti*", "ti*", true),
        ("time.us>", "time.us>", true),
        ("time.us>", "time.us.east", false),
        // What is published to is literal.
        ("time.us", "time.*", false),
        ("time.us", "time.>", false),
        ("time.us", ">", false),
        ("time.*", "time.*", true),
        ("time.*", "time.>", true),
        ("time.>", "time.*", true),
        ("time.>", "time.>", true),
        ("time.>", "time.>.us", true),
        // A name with an empty token is not valid.
        ("time.*", "time.", false),
        ("time.>", "time.", false),
        ("time.>", "time..us", false),
        (">", "", false),
        (">", ".", false),
    ] {
        let mut channels = Channels::default();
        assert_eq!(channels.subscribe_pattern(0, subscription), Ok(true), "{subscription}");
        let mut visited = 0;
        channels.matching(published, |_| visited += 1);
        assert_eq!(visited, usize::from(arrives), "{subscription} {published}");
    }
}

#[test]
fn malformed_patterns_are_refused_and_names_are_literal() {
    let deep = ["*"; MAX_PATTERN_TOKENS + 1].join(".");
    for (name, error) in [
        ("", PatternError::EmptyToken),
        ("a..b", PatternError::EmptyToken),
        ("a.>.b", PatternError::TailNotLast),
        (&deep, PatternError::TooManyTokens),
    ] {
        let mut channels = Channels::default();
        assert_eq!(channels.subscribe_pattern(0, name), Err(error));
        assert_eq!((channels.len(), channels.totals.channels()), (0, 0));
        let mut channels = Channels::default();
        assert!(channels.subscribe(0, name));
        let mut visited = 0;
        channels.matching(name, |_| visited += 1);
        assert_eq!(visited, 1);
    }
}

#[test]
fn a_name_with_wildcards_is_literal_unless_it_is_subscribed_to_as_a_pattern() {
    let mut channels = Channels::default();
    assert!(channels.subscribe(0, "user.*"));
    assert_eq!(channels.subscribe_pattern(1, "user.*"), Ok(true));
    let mut reached = |name: &str| {
        let mut slots = Vec::new();
        channels.matching(name, |slot| slots.push(slot));
        slots.sort_unstable();
        slots
    };
    assert_eq!(reached("user.bob"), [1]);
    assert_eq!(reached("user.*"), [0, 1]);
    assert_eq!((channels.len(), channels.totals.count("user.*")), (2, 2));
    assert!(channels.unsubscribe(0, "user.*") && !channels.unsubscribe(1, "user.*"));
    assert!(channels.unsubscribe_pattern(1, "user.*"));
    assert_eq!((channels.len(), channels.totals.channels()), (0, 0));
}

#[test]
fn the_mark_of_a_publish_may_run_over() {
    let mut channels = Channels::default();
    for name in ["a.*", "*.b", "a.b"] {
        for slot in [0, 7] {
            assert_eq!(channels.subscribe_pattern(slot, name), Ok(true));
        }
    }
    for publish in 0..6 {
        if publish == 1 {
            // What the first marked must not look marked by the first of the next round.
            assert_eq!(channels.visited.now, 1);
            channels.visited.now = u32::MAX;
        }
        let mut visited = Vec::new();
        channels.matching("a.b", |slot| visited.push(slot));
        visited.sort_unstable();
        assert_eq!(visited, [0, 7]);
    }
}

proptest! {
    #[test]
    fn the_trie_finds_what_a_comparison_of_each_pattern_finds(
        patterns in prop::collection::vec("([ab*]{1}\\.){0,5}[ab*>]", 1..40),
        gone in prop::collection::vec(any::<bool>(), 40),
        names in prop::collection::vec("[abc*>](\\.[abc*>]){0,6}", 1..10),
    ) {
        let mut channels = Channels::default();
        for (slot, pattern) in patterns.iter().enumerate() {
            prop_assert_eq!(channels.subscribe_pattern(slot as u32, pattern), Ok(true));
        }
        let held = |slot: &usize| !gone[*slot];
        for slot in (0..patterns.len()).filter(|slot| !held(slot)) {
            prop_assert!(channels.unsubscribe_pattern(slot as u32, &patterns[slot]));
        }
        for name in &names {
            let expected: BTreeSet<usize> = (0..patterns.len())
                .filter(held)
                .filter(|&slot| matches(&tokens(&patterns[slot]), &tokens(name)))
                .collect();
            let mut visited = Vec::new();
            channels.matching(name, |slot| visited.push(slot as usize));
            visited.sort_unstable();
            prop_assert_eq!(visited, expected.into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_publish_allocates_nothing() {
    let mut channels = Channels::default();
    for slot in 0..1000 {
        for name in ["news.eu", "news.*", "*.eu", "news.>", "other.*.>"] {
            channels.subscribe_pattern(slot, name).unwrap();
        }
    }
    let mut visited = 0;
    let mut publish = |times: usize| {
        for _ in 0..times {
            channels.matching("news.eu", |_| visited += 1);
            channels.matching("news.us", |_| visited += 1);
            channels.matching("not.subscribed", |_| visited += 1);
        }
    };
    publish(1); // the scratch space finds its size
    assert_eq!(measure(|| publish(10)).count_total, 0);
    assert_eq!(visited, 11 * 2000);
}

/// Memory of 2^20 memberships, `each` for a connection, over channels of 1,024 members: bytes
/// requested with all slack, less the 8 by slot that a connection has anyway, and then the bytes
/// kept when all have left.
fn bytes_per_membership(each: u32, churned: bool) -> (f64, i64) {
    const MEMBERSHIPS: u32 = 1 << 20;
    const CHANNELS: u32 = 1 << 10;
    let connections = MEMBERSHIPS / each;
    let names: Vec<String> = (0..CHANNELS).map(|channel| format!("channel-{channel}")).collect();
    let mut channels = Channels::default();
    let mut dice = Dice(Random::new(1));
    // Channels have their own cost.
    let mut per_channel = 0;
    let filled = measure(|| {
        let empty = measure(|| {
            names.iter().for_each(|name| _ = channels.subscribe(0, name));
        });
        per_channel = empty.bytes_current;
        channels.unsubscribe_all(0);
        for round in 0..each {
            for slot in 0..connections {
                let name = (slot + round * (CHANNELS / each).max(1)) % CHANNELS;
                assert!(channels.subscribe(slot, &names[name as usize]));
            }
        }
        // Some go, others come: the same number in the end.
        for _ in 0..if churned { MEMBERSHIPS } else { 0 } {
            let slot = dice.below(u64::from(connections)) as u32;
            let name = channels.subscriptions(slot).next().cloned();
            let to = (0..).map(|_| dice.below(u64::from(CHANNELS)) as usize);
            assert!(channels.unsubscribe(slot, &name.unwrap()));
            let joined = to.take(1000).any(|to| channels.subscribe(slot, &names[to]));
            assert!(joined || each == CHANNELS);
        }
    });
    let heads = i64::from(connections) * 8;
    // They stay, as a connection's slot does, and so does their slack.
    let staying = heads + heads / 8;
    let memberships = channels.memberships();
    let bytes = filled.bytes_current - per_channel - heads;
    let left = measure(|| {
        (0..connections).for_each(|slot| _ = channels.unsubscribe_all(slot));
    });
    let kept = filled.bytes_current + left.bytes_current - staying;
    (bytes as f64 / memberships as f64, kept)
}

#[test]
fn a_million_memberships_cost_at_most_sixteen_bytes_each_with_all_slack() {
    for each in [1, 2, 3, 8, 32, 33, 64, 512] {
        for churned in [false, true] {
            let (bytes, kept) = bytes_per_membership(each, churned);
            println!("{each} for a connection, churned: {churned}: {bytes:.2} bytes, {kept} kept");
            assert!(bytes <= 16.0, "{bytes:.2} bytes with {each} for a connection");
            assert!(kept < 400_000, "{kept} bytes kept with {each} for a connection");
        }
    }
}
