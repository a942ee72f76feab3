//! The tests that do not run under Wine, each with its reason.

/// Tests that are not run. A name is a part of the names of tests: with a module for what several
/// packages have, whole otherwise. All others have passed.
pub(super) const LEFT_OUT: &[(&str, &str)] = &[
    ("iocp::c9_input_before_a_reset_is_delivered_though_sends_fail", RESET),
    ("iocp::c9_the_peer_sees_close_as_an_end_and_abort_as_a_reset", RESET),
    ("iocp::c14_a_reset_while_parked_is_reported_after", RESET),
    ("portable::c3_try_send_on_a_closed_connection_takes_nothing", RESET),
    ("portable::c8_a_paused_connection_reports_a_reset", RESET),
    ("portable::c9_a_reset_that_comes_with_the_end_of_stream_is_reported", RESET),
    ("portable::c9_input_before_a_reset_is_delivered_though_sends_fail", RESET),
    ("portable::c9_reset_is_distinguished_from_end_of_stream", RESET),
    ("portable::c9_the_peer_sees_close_as_an_end_and_abort_as_a_reset", RESET),
    ("portable::c14_a_reset_while_parked_is_reported_after", RESET),
    // With TLS; each name is a part of the names of tests, and the rows above leave out theirs too.
    ("contract::iocp::c3_reset_returns_the_batch_before_closed", RESET),
    ("contract::iocp::c3_try_send_on_a_closed_connection_takes_nothing", RESET),
    ("contract::iocp::c8_a_paused_connection_reports_a_reset", RESET),
    ("contract::iocp::c9_a_reset_that_comes_with_the_end_of_stream_is_reported", RESET),
    ("contract::iocp::c9_reset_is_distinguished_from_end_of_stream", RESET),
    ("contract::portable::c3_reset_returns_the_batch_before_closed", RESET),
    ("contract::iocp::c2_more_than_a_thousand_connections", HANDSHAKES),
    ("contract::portable::c2_more_than_a_thousand_connections", HANDSHAKES),
    ("simulated", "takes minutes under Wine, and uses no system"),
    (
        "a_pending_handshake_takes_little_more_than_what_rustls_needs",
        "counts mio's memory for a socket of Windows as well",
    ),
    ("a_million_memberships_cost", MEMORY),
    ("a_million_queued_references_to_a_frame", MEMORY),
    ("compression_costs_no_more_memory_than_it_says", MEMORY),
    ("a_thousand_seeds_break_no_rule", "takes minutes under Wine, and uses no system"),
    ("servers_with_tls_break_no_rule", "takes minutes under Wine, and uses no system"),
    // The library `throng`.
    ("http_streams::a_body_that_cannot_be_finished_is_not_taken_for_whole", RESET),
    ("http_streams::a_client_that_does_not_read_holds_one_chunk_and_little_in_the_kernel", UNSENT),
    ("adopted::upgraded::bytes_of_an_upgraded_connection_are_in_its_record", COUNTS),
    ("gzip::every_kind_of_body_is_compressed", "unpacks by the program gzip of this system"),
    (
        "gzip::files_are_compressed_and_their_ranges_are_not",
        "unpacks by the program gzip of this system",
    ),
    ("mistakes::compile_errors_of_the_usual_mistakes", "starts this system's compiler"),
    // `throng-cluster`.
    ("redis::address::tests::a_wrong_url_is_named_without_its_password", UNIX),
    ("redis::address::tests::names_with_underscores_and_a_last_dot_and_parameters", UNIX),
    // `throng-balance`.
    ("config::check::tests::no_backend_is_at_an_address_that_leads_back_or_to_more", FOREIGN),
    ("machine::tests::an_address_of_an_interface_is_of_this_machine_however_it_is_found", FOREIGN),
    (
        "early::an_early_answer_that_ends_with_its_stream_reaches_the_client_whole",
        "a reset overtakes the end of a stream that came before it",
    ),
    // The program.
    ("documents::", "the documents have the commands and metrics that Linux has"),
    ("args::tests::errors_name_the_flag_with_the_mistake", FOREIGN),
    ("balance::admin::backends_register_with_the_token", SIGNAL),
    ("bench::every_mode_measures_our_server_in_another_process", OWNER),
    ("bench::compression_is_measured_where_both_sides_have_it", OWNER),
    ("balance::examples::a_color_is_one_word_and_a_header_chooses_the_other", SIGNAL),
    ("balance::reload::", SIGNAL),
    ("balance::tls_of_clients_is_in_the_metrics", SIGNAL),
    ("balance::tunnels_and_requests_reach_the_backends", SIGNAL),
    ("balance::tunnels_are_closed_at_the_end", SIGNAL),
    ("register::it_registers_renews_comes_back_and_goes", SIGNAL),
    ("serve::channels::a_channel_is_a_stream_of_events_too", SIGNAL),
    ("serve::channels::a_close_for_what_a_channel_does_not_have", SIGNAL),
    ("serve::ends::", SIGNAL),
    ("serve::output::a_reader_that_left_changes_nothing", SIGNAL),
    ("serve::rights::a_client_that_may_not_join_learns_why", SIGNAL),
    ("serve::rights::a_token_admits_to_the_channels_that_it_names", SIGNAL),
    ("serve::rights::keys_audience_and_issuer_change_by_a_reload", SIGNAL),
    ("serve::tls::certificates_serve_https_and_are_renewed", SIGNAL),
    ("balance::every_request_and_tunnel_is_logged", COUNTS),
    ("serve::output::every_request_and_session_is_logged", "starts the drivers of Linux"),
    ("check::a_pipe_for_a_file_is_refused_at_once", "makes a pipe with a name in a folder"),
    ("check::a_check_says_what_a_start_says", DESCRIPTORS),
    ("files::stalled_downloads_leave_descriptors", DESCRIPTORS),
    ("other_proxies::the_settings_of_the_guide_to_scaling", DESCRIPTORS),
    ("serve::refusals::a_descriptor_limit_that_is_too_low", DESCRIPTORS),
    ("failures_have_one_line_a_remedy_and_a_code", DESCRIPTORS),
    ("memory::", "limits the memory of its process by a shell, and reads it in /proc"),
    ("other_proxies::the_configuration_of", "starts nginx and haproxy of this system"),
    ("bench_http::a_foreign_server_is_found_by_its_port", OWNER),
    (
        "bench_http::a_report_is_a_table_a_page_or_csv",
        "a short run uses less CPU time than the 10 ms that Wine counts in",
    ),
];

/// Tests that are not compiled for Windows, which has nothing for them.
pub(super) const NOT_BUILT: &[(&str, &str)] = &[
    ("throng: unix_sockets", "sockets by a path are of Unix"),
    ("throng: own_tables, throng-balance: own_tables", "descriptor tables of threads are of Linux"),
    ("throng: signals", "signals are of Unix; throng.exe is stopped by Ctrl-C and as a service"),
    ("throng: pinning", "the CPUs of a thread are chosen on Linux alone"),
    ("throng: presence_memory", "reads the memory of the process in /proc"),
    (
        "throng-balance: limits, oracle",
        "change the limit of descriptors, and compare with Linux's programs",
    ),
    ("throng-balance: moves", "sockets pass to another process on Linux alone"),
    ("throng-cli: live", "the counters of a running server that doctor reads are Linux's"),
    ("throng-cli: balance_scale", "reads memory and descriptors in /proc"),
];

const MEMORY: &str = "takes minutes under Wine, and is about memory alone";

const HANDSHAKES: &str = "a thousand handshakes take two minutes under Wine";

const RESET: &str = "under Wine, a socket that resets its connection ends it without a reset";

const UNSENT: &str = "the unsent part of a send buffer has a limit on Linux alone";

const COUNTS: &str = "only Linux counts the bytes that a socket has carried";

const UNIX: &str = "also takes addresses of Unix sockets";

const FOREIGN: &str = "Wine binds UDP sockets to addresses of other machines";

const OWNER: &str = "Wine 8 does not tell which process listens on a port";

const SIGNAL: &str = "ends or asks a process by a signal, which `kill` sends";

const DESCRIPTORS: &str = "a process of Windows has no limit of descriptors that an operator sets";
