//! The driver contract, C1 to C13, on the simulated driver: the driver that the engine is tested
//! on keeps the same promises as those that it runs on in production.

throng_testkit::contract_suite!(throng_sim::rig::SimRig);
