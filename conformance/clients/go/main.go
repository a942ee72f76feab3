// Go's crypto/tls and gorilla/websocket against the server: go-check 127.0.0.1:9001
package main

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// The time limit of a single response.
const limit = 20 * time.Second

var (
	server = os.Args[1]
	// The version of TLS to speak, such as "1.3"; empty: none.
	version = os.Getenv("THRONG_TLS")
)

type check struct {
	name string
	body func() error
	// Whether it needs TLS.
	secured bool
}

var checks = []check{
	{"the version of TLS is the one that was offered", theVersionIsTheOneOffered, true},
	{"a session is resumed", aSessionIsResumed, true},
	{"a server of an unknown authority is refused, and serves on", anUnknownAuthorityIsRefused, true},
	{"a request is answered after close_notify", aRequestIsAnsweredAfterCloseNotify, true},
	{"HTTP requests share a connection", requestsShareAConnection, false},
	{"text, binary, empty and 1 MiB messages come back", messagesComeBack, false},
	{"a message in fragments comes back whole", fragmentsComeBackWhole, false},
	{"a ping is answered with its own payload", pingsAreAnswered, false},
	{"the close code of the client comes back", closeCodesComeBack, false},
	{"what breaks a rule is closed with its code", brokenRulesHaveTheirCode, false},
	{"10,000 pipelined messages come back in order", aBurstComesBackInOrder, false},
	{"an unknown path is refused", anUnknownPathIsRefused, false},
	{"a channel reaches its other members", aChannelReachesItsMembers, false},
}

func main() {
	failed := 0
	for _, check := range checks {
		if check.secured && version == "" {
			continue
		}
		if err := check.body(); err != nil {
			failed++
			fmt.Printf("FAILED %s: %v\n", check.name, err)
		} else {
			fmt.Printf("ok %s\n", check.name)
		}
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// number returns the number of the version on the wire.
func number() uint16 {
	if version == "1.2" {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

// config has the authorities of the system, which the variable SSL_CERT_FILE names.
func config() *tls.Config {
	return &tls.Config{
		MinVersion: number(),
		MaxVersion: number(),
		ServerName: "localhost",
		NextProtos: []string{"http/1.1"},
	}
}

func url(plain, secured, path string) string {
	if version == "" {
		return plain + server + path
	}
	return secured + server + path
}

func dial(path string) (*websocket.Conn, *http.Response, error) {
	dialer := websocket.Dialer{HandshakeTimeout: limit, TLSClientConfig: config()}
	conn, response, err := dialer.Dial(url("ws://", "wss://", path), nil)
	if err == nil {
		deadline := time.Now().Add(limit)
		err = errors.Join(conn.SetReadDeadline(deadline), conn.SetWriteDeadline(deadline))
	}
	return conn, response, err
}

func secured(config *tls.Config) (*tls.Conn, error) {
	return tls.DialWithDialer(&net.Dialer{Timeout: limit}, "tcp", server, config)
}

func theVersionIsTheOneOffered() error {
	conn, err := secured(config())
	if err != nil {
		return err
	}
	defer conn.Close()
	state := conn.ConnectionState()
	if state.Version != number() || state.NegotiatedProtocol != "http/1.1" {
		return fmt.Errorf("%s, ALPN %q", tls.VersionName(state.Version), state.NegotiatedProtocol)
	}
	return nil
}

func aSessionIsResumed() error {
	config := config()
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for attempt := 0; attempt < 3; attempt++ {
		conn, err := secured(config)
		if err != nil {
			return err
		}
		// With TLS 1.3 the ticket comes with the first data.
		_, err = get(conn)
		if err != nil {
			return err
		}
		if resumed := conn.ConnectionState().DidResume; resumed != (attempt > 0) {
			return fmt.Errorf("connection %d: resumed is %v", attempt, resumed)
		}
	}
	return nil
}

func anUnknownAuthorityIsRefused() error {
	stranger := config()
	stranger.RootCAs = x509.NewCertPool()
	conn, err := secured(stranger)
	var unknown x509.UnknownAuthorityError
	if err == nil {
		conn.Close()
		return errors.New("it was trusted")
	}
	if !errors.As(err, &unknown) {
		return fmt.Errorf("refused in another way: %w", err)
	}
	return theVersionIsTheOneOffered()
}

// get sends a request that ends the connection, and closes it.
func get(conn *tls.Conn) (string, error) {
	defer conn.Close()
	_, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: "+server+"\r\nConnection: close\r\n\r\n")
	if err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		err = fmt.Errorf("%.40q", answer)
	}
	return string(answer), err
}

func aRequestIsAnsweredAfterCloseNotify() error {
	conn, err := secured(config())
	if err != nil {
		return err
	}
	defer conn.Close()
	request := "GET /livez HTTP/1.1\r\nHost: " + server + "\r\nConnection: close\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		return err
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		return fmt.Errorf("%.40q, %v", answer, err)
	}
	return nil
}

func requestsShareAConnection() error {
	transport := &http.Transport{TLSClientConfig: config()}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: limit}
	for round := 0; round < 100; round++ {
		response, err := client.Get(url("http://", "https://", "/livez"))
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != 200 {
			return fmt.Errorf("%s, %v", response.Status, err)
		}
	}
	return nil
}

func echo(conn *websocket.Conn, kind int, payload []byte) error {
	if err := conn.WriteMessage(kind, payload); err != nil {
		return err
	}
	return expect(conn, kind, payload)
}

func expect(conn *websocket.Conn, kind int, payload []byte) error {
	gotKind, got, err := conn.ReadMessage()
	if err != nil {
		return err
	}
	if gotKind != kind || !bytes.Equal(got, payload) {
		return fmt.Errorf("%d bytes of type %d came for %d of type %d", len(got), gotKind, len(payload), kind)
	}
	return nil
}

func messagesComeBack() error {
	conn, _, err := dial("/echo")
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, length := range []int{0, 1, 125, 126, 16_383, 16_384, 16_385, 65_535, 65_536, 1 << 20} {
		payload := make([]byte, length)
		if _, err := rand.Read(payload); err != nil {
			return err
		}
		text := bytes.Repeat([]byte("é"), length/2)
		err := errors.Join(echo(conn, websocket.BinaryMessage, payload), echo(conn, websocket.TextMessage, text))
		if err != nil {
			return err
		}
	}
	return nil
}

func fragmentsComeBackWhole() error {
	conn, _, err := dial("/echo")
	if err != nil {
		return err
	}
	defer conn.Close()
	writer, err := conn.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return err
	}
	var whole []byte
	for part := 0; part < 100; part++ {
		fragment := bytes.Repeat([]byte{byte(part)}, 5000)
		whole = append(whole, fragment...)
		if _, err := writer.Write(fragment); err != nil {
			return err
		}
	}
	if err := writer.Close(); err != nil {
		return err
	}
	return expect(conn, websocket.BinaryMessage, whole)
}

func pingsAreAnswered() error {
	conn, _, err := dial("/echo")
	if err != nil {
		return err
	}
	defer conn.Close()
	var pongs []string
	conn.SetPongHandler(func(payload string) error {
		pongs = append(pongs, payload)
		return nil
	})
	sent := []string{"", "ping", strings.Repeat("x", 125)}
	for _, payload := range sent {
		if err := conn.WriteControl(websocket.PingMessage, []byte(payload), time.Now().Add(limit)); err != nil {
			return err
		}
	}
	if err := echo(conn, websocket.TextMessage, []byte("still here")); err != nil {
		return err
	}
	if len(pongs) != len(sent) {
		return fmt.Errorf("%d of %d pings were answered", len(pongs), len(sent))
	}
	for at := range sent {
		if pongs[at] != sent[at] {
			return fmt.Errorf("%q was answered with %q", sent[at], pongs[at])
		}
	}
	return nil
}

// closedWith reads until the server has closed, and compares its code.
func closedWith(conn *websocket.Conn, code int) error {
	for {
		_, _, err := conn.ReadMessage()
		var closed *websocket.CloseError
		switch {
		case err == nil:
		case errors.As(err, &closed) && closed.Code == code:
			return nil
		default:
			return fmt.Errorf("not closed with %d: %w", code, err)
		}
	}
}

func closeCodesComeBack() error {
	for _, code := range []int{1000, 1001, 3000, 4999} {
		conn, _, err := dial("/echo")
		if err != nil {
			return err
		}
		message := websocket.FormatCloseMessage(code, "why é")
		err = conn.WriteControl(websocket.CloseMessage, message, time.Now().Add(limit))
		err = errors.Join(err, closedWith(conn, code), conn.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

func brokenRulesHaveTheirCode() error {
	for _, broken := range []struct {
		kind    int
		payload []byte
		code    int
	}{
		{websocket.TextMessage, []byte{'H', 0xff, 'I'}, 1007},
		{websocket.BinaryMessage, make([]byte, 4<<20+1), 1009},
	} {
		conn, _, err := dial("/echo")
		if err != nil {
			return err
		}
		// The server may answer before it has read everything.
		_ = conn.WriteMessage(broken.kind, broken.payload)
		err = errors.Join(closedWith(conn, broken.code), conn.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

func aBurstComesBackInOrder() error {
	const messages = 10_000
	conn, _, err := dial("/echo")
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		for at := 0; at < messages; at++ {
			if err := conn.WriteMessage(websocket.TextMessage, []byte(strconv.Itoa(at))); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for at := 0; at < messages; at++ {
		if err := expect(conn, websocket.TextMessage, []byte(strconv.Itoa(at))); err != nil {
			return err
		}
	}
	return <-sent
}

func anUnknownPathIsRefused() error {
	conn, response, err := dial("/nowhere")
	if err == nil {
		conn.Close()
		return errors.New("it was accepted")
	}
	if response == nil || response.StatusCode != 404 {
		return fmt.Errorf("refused in another way: %w", err)
	}
	return nil
}

func aChannelReachesItsMembers() error {
	var members []*websocket.Conn
	for _, path := range []string{"/ws/go", "/ws/go", "/ws/go?echo=1"} {
		conn, _, err := dial(path)
		if err != nil {
			return err
		}
		defer conn.Close()
		members = append(members, conn)
	}
	ann, bob, eve := members[0], members[1], members[2]
	text, data := []byte("from ann"), []byte{0, 1}
	return errors.Join(
		ann.WriteMessage(websocket.TextMessage, text),
		expect(bob, websocket.TextMessage, text),
		expect(eve, websocket.TextMessage, text),
		eve.WriteMessage(websocket.BinaryMessage, data),
		expect(ann, websocket.BinaryMessage, data),
		expect(bob, websocket.BinaryMessage, data),
		expect(eve, websocket.BinaryMessage, data),
	)
}
