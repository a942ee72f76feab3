//! tokio-tungstenite, with its own TLS.

use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config,
};
use tungstenite::Message;

use crate::{LIMIT, secured, url};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

fn run(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, body).await.expect("in time") });
}

async fn open(server: SocketAddr) -> Socket {
    let connector = secured::config().map(Connector::Rustls);
    let url = url(server, "/echo");
    connect_async_tls_with_config(url, None, false, connector).await.expect("the server upgrades").0
}

async fn end(mut socket: Socket) {
    socket.close(None).await.expect("a close frame is sent");
    let said = socket.next().await.expect("an answer").expect("an orderly close");
    assert_eq!(said, Message::Close(None));
    assert!(socket.next().await.is_none(), "the end of the stream");
}

pub(crate) fn messages_come_back(server: SocketAddr) {
    run(async {
        let mut socket = open(server).await;
        for len in [0, 1, 125, 126, 16_384, 65_536, 1 << 20] {
            let sent = Message::binary((0..len).map(|at| (at * 7) as u8).collect::<Vec<_>>());
            socket.send(sent.clone()).await.unwrap();
            assert!(socket.next().await.unwrap().unwrap() == sent, "{len} bytes");
        }
        end(socket).await;
    });
}

pub(crate) fn a_burst_comes_back_in_order(server: SocketAddr) {
    run(async {
        let (mut sink, mut stream) = open(server).await.split();
        let send = async {
            for number in 0..10_000 {
                sink.feed(Message::text(number.to_string())).await.unwrap();
            }
            sink.flush().await.unwrap();
        };
        let receive = async {
            for number in 0..10_000 {
                let message = stream.next().await.unwrap().unwrap();
                assert_eq!(message, Message::text(number.to_string()));
            }
        };
        futures_util::future::join(send, receive).await;
        end(sink.reunite(stream).unwrap()).await;
    });
}
