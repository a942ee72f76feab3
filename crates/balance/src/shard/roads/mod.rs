//! The roads: steps that need three or more parts.

mod answer;
mod attempt;
mod request;
mod request_head;
mod sweep;
mod tunnel;
