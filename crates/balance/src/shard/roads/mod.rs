//! The roads: what needs three parts or more.

mod answer;
mod attempt;
mod request;
mod request_head;
mod sweep;
mod tunnel;
