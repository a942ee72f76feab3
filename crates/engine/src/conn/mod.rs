//! The connections of a shard: their records and side tables, their stages, and their timers.

pub(crate) mod arrivals;
pub(crate) mod by_address;
pub(crate) mod deadlines;
pub(crate) mod held;
pub(crate) mod input_time;
pub(crate) mod linger;
pub(crate) mod map;
pub(crate) mod progress;
pub(crate) mod proxy_protocol;
mod rate;
pub(crate) mod reading;
pub(crate) mod record;
pub(crate) mod route_limits;
pub(crate) mod slab;
pub(crate) mod stage;
mod subprotocols;
pub(crate) mod table;
pub(crate) mod timers;
pub(crate) mod work_list;
