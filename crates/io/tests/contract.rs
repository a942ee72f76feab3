//! The contract suite on the drivers of this crate.

#[cfg(target_os = "linux")]
mod epoll {
    throng_testkit::contract_suite!(
        throng_testkit::contract::tcp::TcpRig<throng_io::epoll::EpollPoller>
    );
}

#[cfg(target_os = "linux")]
mod epoll_with_a_table_of_its_own {
    throng_testkit::contract_suite!(
        throng_testkit::contract::tcp::TcpRig<throng_io::epoll::EpollPoller, true>
    );
}

mod portable {
    throng_testkit::contract_suite!(
        throng_testkit::contract::tcp::TcpRig<throng_io::portable::MioPoller>
    );
}

#[cfg(windows)]
mod iocp {
    throng_testkit::contract_suite!(
        throng_testkit::contract::tcp::TcpRig<throng_io::iocp::IocpPoller>
    );
}

#[cfg(unix)]
mod threads {
    throng_testkit::contract_suite!(
        throng_testkit::contract::tcp::TcpRig<throng_io::threads::PollPoller>
    );
}

#[cfg(unix)]
mod unix_sockets {
    use throng_testkit::contract::unix::UnixRig;

    #[cfg(target_os = "linux")]
    mod epoll {
        throng_testkit::contract_suite!(
            super::UnixRig<throng_io::epoll::EpollPoller>,
            without resets
        );
    }

    mod portable {
        throng_testkit::contract_suite!(
            super::UnixRig<throng_io::portable::MioPoller>,
            without resets
        );
    }

    mod threads {
        throng_testkit::contract_suite!(
            super::UnixRig<throng_io::threads::PollPoller>,
            without resets
        );
    }
}
