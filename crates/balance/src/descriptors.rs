//! Number of client connections that the descriptors allow, and whether each shard has its own
//! table.

use std::io;

use throng_io::capacity::{self, Demand, Descriptors, Needs};
use throng_io::table_plan::{TablePlan, check_machine, machine_holds};
use throng_io::tables::{DescriptorTables, check_support};

use crate::config::MAX_SHARDS;

/// Bytes of memory and descriptors of a client connection and its backend connection.
const BYTES: u64 = Needs::BALANCER.bytes;
const EACH: usize = Needs::BALANCER.each;

/// The descriptors of the shards.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// Shards.
    pub(crate) shards: usize,
    /// Maximum client connections of all shards together by their descriptors: the most that a
    /// configuration may allow.
    pub(crate) connections: usize,
    /// The tables, if each shard has its own.
    pub(crate) plan: Option<TablePlan>,
    /// Why shards share a table although separate tables were requested.
    pub(crate) refused: Option<String>,
}

/// Divides the descriptors over `shards` shards (0: one for each CPU, or more if
/// their tables must have room for `max_connections`, where 0 is the maximum).
///
/// # Errors
/// More connections are requested than fit in the table or tables, or the machine.
pub(crate) fn divide(
    tables: DescriptorTables,
    max_connections: usize,
    shards: usize,
    listeners: usize,
) -> io::Result<Division> {
    // Where the system does not allow it, as in some sandboxes, the limit does not change.
    let limit = throng_io::limits::raise_descriptors()
        .unwrap_or_else(|_| throng_io::limits::descriptor_limits().0);
    let most = if shards == 0 { MAX_SHARDS } else { shards };
    let count = match shards {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        shards => shards,
    };
    let used = throng_io::limits::descriptors_in_use();
    let descriptors = Descriptors { limit, used, used_in_own: listeners };
    let asked = (max_connections > 0).then_some(max_connections);
    let demand = Demand { tables, connections: asked, shards: count, max_shards: most };
    let refusal = || {
        let refused = check_support().err()?;
        Some(format!("this system refuses tables of their own: {refused}"))
    };
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let division = Needs::BALANCER
        .divide(&descriptors, &demand, refusal)
        .map_err(|error| wrong(error.to_string()))?;
    let mut plan = match division {
        capacity::Division::Shared { connections, refused } => {
            let connections = connections.max(1);
            if let Some(asked) = asked.filter(|asked| *asked > connections) {
                let refused = refused.map_or(String::new(), |refused| format!("{refused}, and "));
                let why = too_many(asked, connections, &descriptors, count);
                return Err(wrong(refused + &why));
            }
            return Ok(Division { shards: count, connections, plan: None, refused });
        }
        capacity::Division::PerShard(plan) => plan,
    };
    match asked {
        Some(asked) => check_machine(asked as u64, BYTES, EACH as u64).map_err(wrong)?,
        None => {
            plan.max_connections = plan.max_connections.min(machine_holds(BYTES, EACH as u64));
        }
    }
    // A reload may request more, up to the size of the tables.
    let size = Needs::BALANCER.own_table(&descriptors);
    let all =
        TablePlan::new(size, None, plan.shards, plan.shards).map_or(0, |all| all.max_connections);
    let connections = all.min(machine_holds(BYTES, EACH as u64));
    Ok(Division { shards: plan.shards, connections, plan: Some(plan), refused: None })
}

/// Returns why one table does not hold the connections, with the remedy.
fn too_many(asked: usize, most: usize, descriptors: &Descriptors, shards: usize) -> String {
    let reserve = Needs::BALANCER.reserve(shards, descriptors.used);
    let wanted = asked.saturating_mul(EACH).saturating_add(reserve);
    format!(
        "the descriptor limit of {} allows {most}, of {EACH} descriptors each beside {reserve} for \
         other purposes; {}, or lower max_connections",
        descriptors.limit,
        throng_io::limits::raise_remedy(wanted),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_shared_unless_more_is_asked_for_than_one_holds() {
        let limit = usize::try_from(throng_io::limits::raise_descriptors().unwrap()).unwrap();
        let few = divide(DescriptorTables::Auto, 5, 2, 1).unwrap();
        assert_eq!((few.shards, few.plan, few.refused), (2, None, None));
        assert!(few.connections < limit / 2, "{}", few.connections);
        let all = divide(DescriptorTables::Shared, few.connections / 2, 2, 1).unwrap();
        assert_eq!(all.plan, None);
        let error = divide(DescriptorTables::Shared, limit, 2, 1).unwrap_err().to_string();
        if cfg!(unix) {
            let ulimit = error.split("`ulimit -n ").nth(1).unwrap().split('`').next().unwrap();
            assert!(ulimit.parse::<usize>().unwrap() > 2 * limit, "{error}");
        }
        assert!(error.starts_with(&format!("the descriptor limit of {limit} allows ")), "{error}");
        let as_many_as_fit = divide(DescriptorTables::Auto, 0, 2, 1).unwrap();
        assert_eq!(as_many_as_fit.plan, None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn each_table_holds_half_as_many_connections_as_descriptors() {
        let limit = usize::try_from(throng_io::limits::raise_descriptors().unwrap()).unwrap();
        let own = divide(DescriptorTables::PerShard, 0, 2, 1).unwrap();
        let plan = own.plan.unwrap();
        assert_eq!(own.shards, 2);
        assert!(plan.of_a_table * 2 < limit && plan.of_a_table * 2 + 100 > limit, "{plan:?}");
        let asked = 2 * plan.of_a_table;
        if asked < machine_holds(BYTES, EACH as u64) {
            let more = divide(DescriptorTables::Auto, asked, 0, 1).unwrap();
            assert!(more.shards > 2 && more.plan.unwrap().max_connections == asked, "{more:?}");
            assert!(more.connections > asked, "{more:?}");
        }
        let error = divide(DescriptorTables::Auto, 2 * limit, 1, 1).unwrap_err().to_string();
        assert!(
            error.contains("1 descriptor tables of") && error.contains("set shards to"),
            "{error}"
        );
    }
}
