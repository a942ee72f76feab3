// Echo at any path, broadcast at /ws/...: gws PORT [deflate|context]
package main

import (
	"log"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/lxzan/gws"
)

const maxPayload = 64 * 1024 * 1024

type handler struct {
	gws.BuiltinEventHandler
	mutex   sync.RWMutex
	members map[string]map[*gws.Conn]struct{}
}

func channelOf(socket *gws.Conn) (string, bool) {
	value, ok := socket.Session().Load("channel")
	if !ok {
		return "", false
	}
	return value.(string), true
}

func (h *handler) OnOpen(socket *gws.Conn) {
	channel, ok := channelOf(socket)
	if !ok {
		return
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.members[channel] == nil {
		h.members[channel] = map[*gws.Conn]struct{}{}
	}
	h.members[channel][socket] = struct{}{}
}

func (h *handler) OnClose(socket *gws.Conn, _ error) {
	if channel, ok := channelOf(socket); ok {
		h.mutex.Lock()
		delete(h.members[channel], socket)
		h.mutex.Unlock()
	}
}

func (h *handler) OnPing(socket *gws.Conn, payload []byte) {
	_ = socket.WritePong(payload)
}

func (h *handler) OnMessage(socket *gws.Conn, message *gws.Message) {
	defer message.Close()
	channel, ok := channelOf(socket)
	if !ok {
		_ = socket.WriteMessage(message.Opcode, message.Bytes())
		return
	}
	broadcaster := gws.NewBroadcaster(message.Opcode, message.Bytes())
	defer broadcaster.Close()
	h.mutex.RLock()
	defer h.mutex.RUnlock()
	for member := range h.members[channel] {
		if member != socket {
			_ = broadcaster.Broadcast(member)
		}
	}
}

func compression() gws.PermessageDeflate {
	context := len(os.Args) > 2 && os.Args[2] == "context"
	return gws.PermessageDeflate{
		Enabled:               len(os.Args) > 2,
		Threshold:             1,
		ServerContextTakeover: context,
		ClientContextTakeover: context,
	}
}

func main() {
	runtime.GOMAXPROCS(1)
	upgrader := gws.NewUpgrader(&handler{members: map[string]map[*gws.Conn]struct{}{}}, &gws.ServerOption{
		CheckUtf8Enabled:    true,
		ReadMaxPayloadSize:  maxPayload,
		WriteMaxPayloadSize: maxPayload,
		PermessageDeflate:   compression(),
		Authorize: func(r *http.Request, session gws.SessionStorage) bool {
			if strings.HasPrefix(r.URL.Path, "/ws/") {
				session.Store("channel", r.URL.Path)
			}
			return true
		},
	})
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		socket, err := upgrader.Upgrade(w, r)
		if err == nil {
			go socket.ReadLoop()
		}
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
