//! `limit_req_zone` and `limit_req`.

use std::collections::BTreeMap;

use super::super::Left;
use super::super::output::Table;
use super::super::parse::Directive;

/// The zones of limits, and the limits that locations choose.
#[derive(Default)]
pub(super) struct Zones {
    declared: BTreeMap<String, Zone>,
    /// Each by its zone, its burst and its status.
    used: std::cell::RefCell<BTreeMap<(String, u64, u16), String>>,
}

struct Zone {
    key: String,
    rate: String,
    place: String,
}

impl Zones {
    /// Reads `limit_req_zone KEY zone=NAME:SIZE rate=RATE`.
    pub(super) fn declare(&mut self, directive: &Directive) {
        let part = |prefix: &str| {
            let found = directive.args.iter().find_map(|arg| arg.strip_prefix(prefix));
            found.map(str::to_owned)
        };
        let (Some(zone), Some(rate)) = (part("zone="), part("rate=")) else { return };
        let name = zone.split(':').next().unwrap_or_default().to_owned();
        let rate = rate
            .strip_suffix("r/s")
            .map(|n| format!("{n}/s"))
            .or_else(|| Some(format!("{}/m", rate.strip_suffix("r/m")?)));
        // A zone that is missing here is named where it is used.
        if let (Some(key), Some(rate)) = (key(directive.arg()), rate) {
            let place = format!("{}: limit_req_zone", directive.place());
            self.declared.insert(name, Zone { key, rate, place });
        }
    }

    /// Returns the name of the limit that a `limit_req` chooses.
    pub(super) fn limit(&self, directive: &Directive, status: u16) -> Result<String, Left> {
        let part = |prefix: &str| directive.args.iter().find_map(|arg| arg.strip_prefix(prefix));
        let zone = part("zone=").unwrap_or_default().to_owned();
        if !self.declared.contains_key(&zone) {
            let why = "its zone counts by something that a [[limit]] has no key for";
            return Err(directive.left(why));
        }
        let burst = part("burst=").unwrap_or("0").parse();
        let burst: u64 = burst.map_err(|_| directive.left("its burst is not a number"))?;
        let mut used = self.used.borrow_mut();
        let number = used.len() + 1;
        let name = || match number {
            1 => zone.clone(),
            number => format!("{zone}-{number}"),
        };
        Ok(used.entry((zone.clone(), burst, status)).or_insert_with(name).clone())
    }

    pub(super) fn tables(&self) -> Vec<Table> {
        let used = self.used.borrow();
        let of_one = |((zone, burst, status), name): (&(String, u64, u16), &String)| {
            let zone = &self.declared[zone];
            let mut table = Table::new("[[limit]]", &zone.place);
            table.text("name", name);
            table.text("key", &zone.key);
            table.text("rate", &zone.rate);
            table.set("burst", burst.to_string());
            table.set("status", status.to_string());
            table
        };
        used.iter().map(of_one).collect()
    }
}

/// Returns the key of a limit for a variable.
fn key(variable: &str) -> Option<String> {
    let name = variable.strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|it| it.strip_suffix('}')).unwrap_or(name);
    Some(match name {
        "binary_remote_addr" | "remote_addr" => "address".to_owned(),
        "server_name" => "site".to_owned(),
        "host" | "http_host" => "host".to_owned(),
        _ => {
            let kinds = [("http_", "header:"), ("cookie_", "cookie:"), ("arg_", "query:")];
            let (kind, name) =
                kinds.iter().find_map(|(is, kind)| Some((*kind, name.strip_prefix(is)?)))?;
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_plain) {
                return None;
            }
            let name = if kind == "header:" { name.replace('_', "-") } else { name.to_owned() };
            format!("{kind}{name}")
        }
    })
}
