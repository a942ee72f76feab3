//! The server models side by side, by the measures of the articles that compare one thread per
//! connection with IOCP and epoll: CPU and memory of idle connections, the time to connect and
//! echo, and a handler that blocks.
//!
//! Every cell has a fresh server process, which the caller starts ([`Wanted`]), so that its memory
//! and CPU time are its own; within each size the models follow one another, so that what disturbs
//! the machine disturbs all alike. What a model cannot do here (too few descriptors, say) is
//! reported in its cell. Beside the measured figures stand the articles' ([`article`]).

mod advice;
pub(crate) mod article;
mod cells;
pub(crate) mod command;
mod document;
mod plan;
mod report;
mod room;
mod run;
mod session;

pub(crate) use plan::{IoModel, IoModelsPlan, Table, Wanted};
pub(crate) use run::run;
