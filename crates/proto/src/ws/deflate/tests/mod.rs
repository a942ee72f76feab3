//! Rule by rule, and accident by accident.

mod accidents;
mod negotiation;
