//! `throng service`: `serve` and `balance` as services of Windows.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Subcommand;
use throng_io::console::{self, ConsoleEvent};
use windows_service::service::{
    Service, ServiceAccess, ServiceAction, ServiceActionType, ServiceControl, ServiceControlAccept,
    ServiceErrorControl, ServiceExitCode, ServiceFailureActions, ServiceFailureResetPeriod,
    ServiceInfo, ServiceStartType, ServiceState as ManagerState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{
    self, ServiceControlHandlerResult, ServiceStatusHandle,
};
use windows_service::service_dispatcher;
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};

use super::states::{ServiceState, Status};
use super::{begin, with_states};
use crate::failure::Failure;
use crate::terminal;

/// The account of the service: a user without further rights, and without any in a network.
const ACCOUNT: &str = "NT AUTHORITY\\LocalService";

/// The time until the manager starts a service again that has failed.
const RESTART: Duration = Duration::from_secs(5);

/// The time after which the manager forgets failures.
const FORGET: Duration = Duration::from_secs(24 * 3600);

/// The time that the system waits for a drain before it shuts down.
const BEFORE_SHUTDOWN: Duration = Duration::from_secs(120);

/// The manager's error for a process that it has not started.
const NOT_STARTED_BY_MANAGER: i32 = 1063;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: ServiceCommand,
}

#[derive(Subcommand)]
enum ServiceCommand {
    /// Register a service that starts with the system, and that the manager restarts if it fails.
    Install {
        /// The name of the service
        #[arg(long, default_value = "throng")]
        name: OsString,
        /// `serve` or `balance` with its flags
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Remove a service, when it has ended.
    Uninstall {
        /// The name of the service
        #[arg(long, default_value = "throng")]
        name: OsString,
    },
    /// Run as a service; the service manager calls this.
    Run {
        /// The name of the service
        #[arg(long)]
        name: OsString,
        /// The folder where relative paths begin
        #[arg(long)]
        folder: PathBuf,
        /// `serve` or `balance` with its flags
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

/// A service that the manager has started.
struct Started {
    name: OsString,
    /// The command line, whose first word is the program's name.
    words: Vec<OsString>,
}

/// Set once, before the manager calls [`service_main`], which gets no state.
static STARTED: OnceLock<Started> = OnceLock::new();

/// Registers, removes or runs a service.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.action {
        ServiceCommand::Install { name, words } => install(name, &words),
        ServiceCommand::Uninstall { name } => uninstall(&name),
        ServiceCommand::Run { name, folder, words } => run_as_service(name, &folder, &words),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn install(name: OsString, words: &[OsString]) -> Result<(), Failure> {
    crate::check_server(&command_line(words))?;
    let problem =
        |error| failure(&format!("cannot register the service {}", name.display()), &error);
    let program = std::env::current_exe().map_err(Failure::runtime)?;
    let folder = std::env::current_dir().map_err(Failure::runtime)?;
    let first = ["service", "run", "--name"].map(OsString::from).into_iter();
    let second = [name.clone(), "--folder".into(), folder.into_os_string()];
    let info = ServiceInfo {
        name: name.clone(),
        display_name: name.clone(),
        service_type: ServiceType::OWN_PROCESS,
        start_type: ServiceStartType::AutoStart,
        error_control: ServiceErrorControl::Normal,
        executable_path: program,
        launch_arguments: first.chain(second).chain(words.iter().cloned()).collect(),
        dependencies: Vec::new(),
        account_name: Some(ACCOUNT.into()),
        account_password: None,
    };
    let access = ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE;
    let manager = ServiceManager::local_computer(None::<&str>, access).map_err(problem)?;
    // The right to start it is needed to have it restarted.
    let access = ServiceAccess::CHANGE_CONFIG | ServiceAccess::START;
    let service = manager.create_service(&info, access).map_err(problem)?;
    for (what, outcome) in configure(&service) {
        // The service runs without it.
        if let Err(error) = outcome {
            terminal::error_line(failure(&format!("the service has no {what}"), &error).message);
        }
    }
    terminal::report_line(format_args!(
        "registered the service {}, which starts with the system; start it now with \
         `sc start {0}`",
        name.display()
    ))
}

/// Sets what a new service does not have yet. Returns the names of these, and how it went.
fn configure(service: &Service) -> [(&'static str, windows_service::Result<()>); 4] {
    let restart = ServiceAction { action_type: ServiceActionType::Restart, delay: RESTART };
    let failures = ServiceFailureActions {
        reset_period: ServiceFailureResetPeriod::After(FORGET),
        reboot_msg: None,
        command: None,
        actions: Some(vec![restart; 3]),
    };
    [
        ("description", service.set_description("WebSocket and HTTP server Throng")),
        ("restart after a crash", service.update_failure_actions(failures)),
        ("restart after an error", service.set_failure_actions_on_non_crash_failures(true)),
        ("time before a shutdown", service.set_preshutdown_timeout(BEFORE_SHUTDOWN)),
    ]
}

fn uninstall(name: &OsString) -> Result<(), Failure> {
    let what = format!("cannot remove the service {}", name.display());
    ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT)
        .and_then(|manager| manager.open_service(name, ServiceAccess::DELETE))
        .and_then(|service| service.delete())
        .map_err(|error| failure(&what, &error))?;
    terminal::report_line(format_args!("removed the service {}", name.display()))
}

/// Runs the program when the manager calls for it, and returns when the manager has got its end.
fn run_as_service(name: OsString, folder: &Path, words: &[OsString]) -> Result<(), Failure> {
    crate::check_server(&command_line(words))?;
    std::env::set_current_dir(folder).map_err(|error| {
        Failure::runtime(format!("cannot enter the folder {}: {error}", folder.display()))
    })?;
    let started = Started { name: name.clone(), words: command_line(words) };
    let _ = STARTED.set(started);
    service_dispatcher::start(&name, service_main).map_err(|error| match &error {
        windows_service::Error::Winapi(why)
            if why.raw_os_error() == Some(NOT_STARTED_BY_MANAGER) =>
        {
            Failure::usage(
                "`throng service run` is for the service manager alone; register a service with \
                 `throng service install`, or run `throng serve` here",
            )
        }
        error => failure("cannot reach the service manager", error),
    })
}

/// Called by the manager, on a thread of its own. Its arguments are the words of
/// `sc start`, and are not used.
extern "system" fn service_main(_count: u32, _words: *mut *mut u16) {
    let Some(Started { name, words }) = STARTED.get() else { return };
    let Ok(handle) = service_control_handler::register(name, take_control) else { return };
    begin(Box::new(move |status| {
        // The manager is gone, so the error cannot be reported.
        let _ = handle_status(&handle, status);
    }));
    let code = crate::run(words.clone());
    let code = (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1);
    with_states(|states| states.end(code));
}

fn take_control(control: ServiceControl) -> ServiceControlHandlerResult {
    match control {
        ServiceControl::Stop | ServiceControl::Preshutdown => {
            if with_states(|states| states.ask_to_stop()) == Some(true) {
                console::raise(ConsoleEvent::Interrupt);
            }
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    }
}

fn handle_status(handle: &ServiceStatusHandle, status: Status) -> windows_service::Result<()> {
    let (current_state, code) = match status.state {
        ServiceState::Starting => (ManagerState::StartPending, 0),
        ServiceState::Running => (ManagerState::Running, 0),
        ServiceState::Stopping => (ManagerState::StopPending, 0),
        ServiceState::Stopped(code) => (ManagerState::Stopped, code),
    };
    let controls_accepted = match status.state {
        ServiceState::Running => ServiceControlAccept::STOP | ServiceControlAccept::PRESHUTDOWN,
        _ => ServiceControlAccept::empty(),
    };
    handle.set_service_status(ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state,
        controls_accepted,
        exit_code: match code {
            0 => ServiceExitCode::NO_ERROR,
            code => ServiceExitCode::ServiceSpecific(code.into()),
        },
        checkpoint: status.checkpoint,
        wait_hint: status.wait,
        process_id: None,
    })
}

/// Returns the words of a command line, with the program's name.
fn command_line(words: &[OsString]) -> Vec<OsString> {
    std::iter::once("throng".into()).chain(words.iter().cloned()).collect()
}

/// Returns the failure of a call of the manager. Its own text has the kind of the error alone.
fn failure(what: &str, error: &windows_service::Error) -> Failure {
    let why = match error {
        windows_service::Error::Winapi(why) => why.to_string(),
        error => error.to_string(),
    };
    Failure::runtime(format!("{what}: {why}"))
}
