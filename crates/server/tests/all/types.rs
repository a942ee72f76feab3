//! `Send` and `Sync` of the types that programs store.

use throng::Error;
use throng::asynchronous::{AsyncOptions, AsyncSender, AsyncSocket};
use throng::channel::{
    Delivery, Position, Presence, Publication, QueueFull, Receipt, Recovery, Since,
};
use throng::http::{BodyReader, BodyWriter, Cors, Files, Origins, Responder};
use throng::prelude::*;
use throng::server::{AccessEntry, ServerEvent, SettingError, Shutdown, Stats};
use throng::ws::{AcceptHeaders, Chunk};

fn send<T: Send>() {}

fn shared<T: Send + Sync + 'static>() {}

#[test]
fn handles_and_settings_are_shared_among_threads() {
    shared::<Hub>();
    shared::<Handle>();
    shared::<Frame>();
    shared::<OwnedMessage>();
    shared::<Filter>();
    shared::<Receipt>();
    shared::<Delivery>();
    shared::<QueueFull>();
    shared::<Running>();
    shared::<Limits>();
    shared::<Backpressure>();
    shared::<DrainPlan>();
    shared::<Stats>();
    shared::<Position>();
    shared::<Since>();
    shared::<Publication>();
    shared::<Presence>();
    shared::<Recovery>();
    shared::<Origins>();
    shared::<Cors>();
    shared::<Error>();
    shared::<SettingError>();
    shared::<Status>();
    shared::<CloseCode>();
    #[cfg(feature = "tokio")]
    {
        shared::<AsyncSender>();
        shared::<AsyncOptions>();
    }
    #[cfg(feature = "tls")]
    {
        shared::<throng::tls::Tls>();
        shared::<throng::tls::ClientCertificate>();
    }
    #[cfg(feature = "files")]
    shared::<Files>();
}

#[test]
fn types_of_one_thread_can_be_passed_to_another() {
    send::<App>();
    send::<Server>();
    send::<Ws<String>>();
    send::<Responder>();
    send::<BodyReader>();
    send::<BodyWriter>();
    send::<Response>();
    send::<Reject>();
    send::<AcceptHeaders>();
    send::<Shutdown>();
    send::<Bound>();
    #[cfg(feature = "tokio")]
    {
        send::<AsyncSocket>();
        send::<throng::asynchronous::OwnedRequest>();
    }
    #[cfg(feature = "client")]
    {
        send::<throng::client::Client>();
        send::<throng::client::ReconnectingClient>();
        shared::<throng::client::ClientError>();
    }
    #[cfg(all(feature = "client", feature = "tokio"))]
    send::<throng::client::AsyncClient>();
}

#[test]
fn types_lent_to_callbacks_can_be_shared_with_scoped_threads() {
    fn sync<T: Sync>() {}
    sync::<Message<'_>>();
    sync::<Chunk<'_>>();
    sync::<AccessEntry<'_>>();
    sync::<ServerEvent<'_>>();
    sync::<Close<'_>>();
}
