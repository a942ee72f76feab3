//! The driver contract, C1 to C13, on the simulated driver: the driver for tests of the engine
//! keeps the same promises as the drivers in production.

throng_testkit::contract_suite!(throng_sim::rig::SimRig);

/// Its connections are of Unix sockets.
mod unix {
    throng_testkit::contract_suite!(throng_sim::rig::SimRig<true>);
}
