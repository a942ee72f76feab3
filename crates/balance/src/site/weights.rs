//! Weights of splits that operators have set while the balancer runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Sites;
use super::split::SplitShare;

/// The weights that operators have set. They stay as long as the file has the same split.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub(crate) struct SetWeights(Vec<SetSplit>);

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
struct SetSplit {
    site: String,
    /// `None` for the split of the site itself.
    route: Option<String>,
    /// The split as the file has it.
    configured: Vec<(String, u32)>,
    weights: BTreeMap<String, u32>,
}

/// The reason why weights were not set, with the remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SplitMistake {
    Unknown(String),
    Weights(String),
}

impl SetWeights {
    /// Sets the weights of pools in a split; others keep theirs. Returns the shares.
    pub(crate) fn set(
        &mut self,
        sites: Option<&Sites>,
        (site, route): (&str, Option<&str>),
        weights: &BTreeMap<String, u32>,
    ) -> Result<Vec<SplitShare>, SplitMistake> {
        let none = || "the file has no sites".to_owned();
        let split = sites.ok_or_else(none).and_then(|sites| sites.split_of(site, route));
        let split = split.map_err(SplitMistake::Unknown)?;
        split.set_weights(weights).map_err(SplitMistake::Weights)?;
        let is_it = |set: &SetSplit| set.site == site && set.route.as_deref() == route;
        self.0.retain(|set| !is_it(set));
        let shares = split.shares();
        self.0.push(SetSplit {
            site: site.to_owned(),
            route: route.map(str::to_owned),
            configured: split.configured(),
            weights: shares.iter().map(|share| (share.pool.clone(), share.weight)).collect(),
        });
        Ok(shares)
    }

    /// Sets the weights in the splits of new sites, and forgets the weights of splits that differ.
    pub(crate) fn apply_to(&mut self, sites: Option<&Sites>) {
        self.0.retain(|set| {
            let split = sites.and_then(|it| it.split_of(&set.site, set.route.as_deref()).ok());
            split.is_some_and(|split| {
                split.configured() == set.configured && split.set_weights(&set.weights).is_ok()
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn config(split: &str) -> Config {
        let text = format!(
            "backends = [\"127.0.0.1:1\"]\npools = [{{ name = \"b\", backends = \
             [\"127.0.0.1:2\"] }}]\n[[site]]\nhosts = [\"a\"]\nroutes = [\n\
             {{ path = \"/x\", split = [{split}] }}, {{ path = \"/y\" }}]\n"
        );
        Config::parse(&text, "b.toml").unwrap()
    }

    const SPLIT: &str = "{ pool = \"default\", weight = 95 }, { pool = \"b\", weight = 5 }";

    #[test]
    fn weights_stay_while_the_file_has_the_same_split() {
        let sites = config(SPLIT).compiled_sites().unwrap();
        let (mut set, route) = (SetWeights::default(), ("a", Some("/x")));
        let weights = |pool: &str, weight| BTreeMap::from([(pool.to_owned(), weight)]);
        let shares = set.set(sites.as_deref(), route, &weights("b", 95)).unwrap();
        let ranges: Vec<_> = shares.iter().map(|it| (it.weight, it.from, it.to)).collect();
        assert_eq!(ranges, [(95, 0, 32768), (95, 32768, 65536)]);
        set.set(sites.as_deref(), route, &weights("default", 0)).unwrap();
        let text = serde_json::to_string(&set).unwrap();
        let mut carried: SetWeights = serde_json::from_str(&text).unwrap();
        // The same file, read again, perhaps by a successor.
        let again = config(SPLIT).compiled_sites().unwrap();
        carried.apply_to(again.as_deref());
        assert_eq!(carried, set);
        let split = again.as_ref().unwrap().split_of("a", Some("/x")).unwrap();
        assert_eq!(&*split.at(0).pool, "b");
        let other = SPLIT.replace("95", "90");
        carried.apply_to(config(&other).compiled_sites().unwrap().as_deref());
        assert_eq!(carried, SetWeights::default());
    }

    #[test]
    fn mistakes_have_remedies() {
        let sites = config(SPLIT).compiled_sites().unwrap();
        let mut set = SetWeights::default();
        let mut failure = |site, route, pool: &str, weight| {
            let weights = BTreeMap::from([(pool.to_owned(), weight)]);
            match set.set(sites.as_deref(), (site, route), &weights).unwrap_err() {
                SplitMistake::Unknown(text) => format!("unknown: {text}"),
                SplitMistake::Weights(text) => text,
            }
        };
        for (site, route, pool, weight, expected) in [
            ("z", None, "b", 1, "unknown: site z is unknown"),
            ("a", Some("/z"), "b", 1, "unknown: the site a has no route /z"),
            ("a", Some("/y"), "b", 1, "unknown: the route /y of the site a has no split"),
            ("a", None, "b", 1, "unknown: the site a has no split of its own"),
            ("a", Some("/x"), "z", 1, "the split has no pool z: write one of default, b"),
            ("a", Some("/x"), "b", 65536, "the sum of the weights is 65631: write 1 to 65536"),
        ] {
            let failure = failure(site, route, pool, weight);
            assert!(failure.starts_with(expected), "{failure}");
        }
    }
}
