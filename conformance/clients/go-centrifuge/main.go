// The client centrifuge-go against the server: go-centrifuge-check 127.0.0.1:9001
package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

// The time limit of a single response.
const limit = 20 * time.Second

var (
	url    = "ws://" + os.Args[1] + "/connection/websocket"
	secret = []byte(os.Getenv("THRONG_TOKEN_SECRET"))
)

type claims map[string]any

func sign(claims claims) string {
	body, _ := json.Marshal(claims)
	part := base64.RawURLEncoding.EncodeToString
	signed := part([]byte(`{"alg":"HS256"}`)) + "." + part(body)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(signed))
	return signed + "." + part(mac.Sum(nil))
}

// everything is a token for all channels.
func everything(user string, more claims) string {
	all := claims{"sub": user, "join": ">", "publish": ">", "history": ">"}
	for name, value := range more {
		all[name] = value
	}
	return sign(all)
}

// encoding is one of the two encodings of the protocol.
type encoding struct {
	name string
	make func(string, centrifuge.Config) *centrifuge.Client
}

var encodings = []encoding{{"json", centrifuge.NewJsonClient}, {"protobuf", centrifuge.NewProtobufClient}}

type check struct {
	name string
	body func(encoding) error
}

var checks = []check{
	{"a publication reaches subscribers with its publisher", aPublicationReachesSubscribers},
	{"presence lists clients, and joins and leaves come", presenceListsClients},
	{"a client recovers what it missed while its connection was lost", aClientRecovers},
	{"history is read in pages", historyIsReadInPages},
	{"an expired token is replaced", anExpiredTokenIsReplaced},
	{"what is not allowed has its code", whatIsNotAllowedHasItsCode},
}

func main() {
	failed := 0
	for _, encoding := range encodings {
		for _, check := range checks {
			if err := check.body(encoding); err != nil {
				failed++
				fmt.Printf("FAILED %s: %s: %v\n", encoding.name, check.name, err)
			} else {
				fmt.Printf("ok %s: %s\n", encoding.name, check.name)
			}
		}
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// client is a connected client, whose connection can be cut.
type client struct {
	*centrifuge.Client
	mutex sync.Mutex
	conn  net.Conn
}

func connect(encoding encoding, config centrifuge.Config) (*client, error) {
	client := &client{}
	config.MinReconnectDelay = 20 * time.Millisecond
	config.NetDialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		client.mutex.Lock()
		defer client.mutex.Unlock()
		client.conn = conn
		return conn, err
	}
	client.Client = encoding.make(url, config)
	connected := make(chan struct{}, 16)
	client.OnConnected(func(centrifuge.ConnectedEvent) { connected <- struct{}{} })
	if err := client.Connect(); err != nil {
		return nil, err
	}
	_, err := next(connected)
	return client, err
}

func as(encoding encoding, user string) (*client, error) {
	return connect(encoding, centrifuge.Config{Token: everything(user, nil)})
}

// cut ends the connection without a closing handshake.
func (client *client) cut() {
	client.mutex.Lock()
	defer client.mutex.Unlock()
	_ = client.conn.(*net.TCPConn).SetLinger(0)
	client.conn.Close()
}

// next is the next value, or an error if none comes in time.
func next[T any](values <-chan T) (T, error) {
	select {
	case value := <-values:
		return value, nil
	case <-time.After(limit):
		var none T
		return none, fmt.Errorf("no %T within %v", none, limit)
	}
}

// subscription keeps everything that comes.
type subscription struct {
	*centrifuge.Subscription
	subscribed   chan centrifuge.SubscribedEvent
	publications chan centrifuge.Publication
	joins        chan centrifuge.ClientInfo
	leaves       chan centrifuge.ClientInfo
}

func subscribe(client *client, channel string) (*subscription, centrifuge.SubscribedEvent, error) {
	none := centrifuge.SubscribedEvent{}
	of, err := client.NewSubscription(channel)
	if err != nil {
		return nil, none, err
	}
	made := &subscription{
		Subscription: of,
		subscribed:   make(chan centrifuge.SubscribedEvent, 16),
		publications: make(chan centrifuge.Publication, 64),
		joins:        make(chan centrifuge.ClientInfo, 16),
		leaves:       make(chan centrifuge.ClientInfo, 16),
	}
	of.OnSubscribed(func(event centrifuge.SubscribedEvent) { made.subscribed <- event })
	of.OnPublication(func(event centrifuge.PublicationEvent) { made.publications <- event.Publication })
	of.OnJoin(func(event centrifuge.JoinEvent) { made.joins <- event.ClientInfo })
	of.OnLeave(func(event centrifuge.LeaveEvent) { made.leaves <- event.ClientInfo })
	if err := of.Subscribe(); err != nil {
		return nil, none, err
	}
	event, err := next(made.subscribed)
	return made, event, err
}

func same(actual, expected any) error {
	if !reflect.DeepEqual(actual, expected) {
		return fmt.Errorf("expected %v, got %v", expected, actual)
	}
	return nil
}

// expect returns an error unless these publications come next.
func (subscription *subscription) expect(payloads ...string) error {
	for _, expected := range payloads {
		publication, err := next(subscription.publications)
		if err != nil {
			return err
		}
		if err := same(string(publication.Data), expected); err != nil {
			return err
		}
	}
	return nil
}

func aPublicationReachesSubscribers(encoding encoding) error {
	ann, err := as(encoding, "ann")
	if err != nil {
		return err
	}
	defer ann.Close()
	bob, err := as(encoding, "bob")
	if err != nil {
		return err
	}
	defer bob.Close()
	channel := "plain." + encoding.name
	of, _, err := subscribe(ann, channel)
	if err != nil {
		return err
	}
	if _, err := bob.Publish(context.Background(), channel, []byte(`{"n":1}`)); err != nil {
		return err
	}
	publication, err := next(of.publications)
	if err != nil {
		return err
	}
	return errors.Join(same(string(publication.Data), `{"n":1}`), same(publication.Info.User, "bob"))
}

func presenceListsClients(encoding encoding) error {
	ann, err := as(encoding, "ann")
	if err != nil {
		return err
	}
	defer ann.Close()
	channel := "here." + encoding.name
	of, _, err := subscribe(ann, channel)
	if err != nil {
		return err
	}
	bob, err := as(encoding, "bob")
	if err != nil {
		return err
	}
	if _, _, err := subscribe(bob, channel); err != nil {
		return err
	}
	join, err := next(of.joins)
	if err != nil {
		return err
	}
	presence, err := of.Presence(context.Background())
	if err != nil {
		return err
	}
	stats, err := of.PresenceStats(context.Background())
	if err != nil {
		return err
	}
	bob.Close()
	leave, err := next(of.leaves)
	return errors.Join(
		err,
		same(join.User, "bob"),
		same(len(presence.Clients), 2),
		same([]int{stats.NumClients, stats.NumUsers}, []int{2, 2}),
		same(leave.Client, join.Client),
	)
}

func aClientRecovers(encoding encoding) error {
	ann, err := as(encoding, "ann")
	if err != nil {
		return err
	}
	defer ann.Close()
	bob, err := as(encoding, "bob")
	if err != nil {
		return err
	}
	defer bob.Close()
	channel := "kept." + encoding.name
	of, event, err := subscribe(ann, channel)
	if err != nil {
		return err
	}
	if err := same([]bool{event.Recoverable, event.Positioned}, []bool{true, true}); err != nil {
		return err
	}
	publish := func(payload string) error {
		_, err := bob.Publish(context.Background(), channel, []byte(payload))
		return err
	}
	if err := errors.Join(publish("1"), of.expect("1")); err != nil {
		return err
	}
	ann.cut()
	if err := errors.Join(publish("2"), publish("3"), publish("4")); err != nil {
		return err
	}
	event, err = next(of.subscribed)
	if err != nil {
		return err
	}
	return errors.Join(
		same([]bool{event.WasRecovering, event.Recovered}, []bool{true, true}),
		publish("5"),
		of.expect("2", "3", "4", "5"),
	)
}

func historyIsReadInPages(encoding encoding) error {
	ann, err := as(encoding, "ann")
	if err != nil {
		return err
	}
	defer ann.Close()
	channel := "kept.pages." + encoding.name
	for _, payload := range []string{"1", "2", "3"} {
		if _, err := ann.Publish(context.Background(), channel, []byte(payload)); err != nil {
			return err
		}
	}
	first, err := ann.History(context.Background(), channel, centrifuge.WithHistoryLimit(2))
	if err != nil {
		return err
	}
	since := &centrifuge.StreamPosition{Offset: first.Publications[1].Offset, Epoch: first.Epoch}
	second, err := ann.History(context.Background(), channel, centrifuge.WithHistoryLimit(2),
		centrifuge.WithHistorySince(since))
	if err != nil {
		return err
	}
	return errors.Join(
		same(len(first.Publications), 2),
		same(len(second.Publications), 1),
		same(string(second.Publications[0].Data), "3"),
	)
}

func anExpiredTokenIsReplaced(encoding encoding) error {
	asked := make(chan struct{}, 16)
	ann, err := connect(encoding, centrifuge.Config{
		GetToken: func(centrifuge.ConnectionTokenEvent) (string, error) {
			asked <- struct{}{}
			return everything("ann", claims{"exp": time.Now().Unix() + 2}), nil
		},
	})
	if err != nil {
		return err
	}
	defer ann.Close()
	_, first := next(asked)
	_, second := next(asked)
	return errors.Join(first, second)
}

func whatIsNotAllowedHasItsCode(encoding encoding) error {
	ended := make(chan centrifuge.DisconnectedEvent, 16)
	refused := encoding.make(url, centrifuge.Config{Token: "none"})
	defer refused.Close()
	refused.OnDisconnected(func(event centrifuge.DisconnectedEvent) { ended <- event })
	if err := refused.Connect(); err != nil {
		return err
	}
	event, err := next(ended)
	if err != nil {
		return err
	}
	ann, err := connect(encoding, centrifuge.Config{Token: sign(claims{"sub": "ann", "join": "kept.>"})})
	if err != nil {
		return err
	}
	defer ann.Close()
	_, publish := ann.Publish(context.Background(), "kept."+encoding.name, []byte("1"))
	_, call := ann.RPC(context.Background(), "none", []byte("1"))
	return errors.Join(same(event.Code, uint32(3500)), same(code(publish), uint32(103)), same(code(call), uint32(108)))
}

func code(err error) uint32 {
	var reply *centrifuge.Error
	if errors.As(err, &reply) {
		return reply.Code
	}
	return 0
}
