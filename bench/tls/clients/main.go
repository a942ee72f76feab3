// Clients that connect with TLS, request one page and close: as fast as they are served, or at a fixed rate whether or
// not they are, each of which gives up at its deadline. Prints JSON.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

var (
	authority   = flag.String("ca", "", "the authority of the server's certificate")
	path        = flag.String("path", "/livez", "the page")
	seconds     = flag.Float64("seconds", 10, "how long clients start")
	rate        = flag.Float64("rate", 0, "clients that start in a second; 0: each when one of -clients has ended")
	clients     = flag.Int("clients", 32, "clients at a time, without -rate")
	deadline    = flag.Duration("deadline", 5*time.Second, "when a client gives up")
	descriptors = flag.Int("descriptors", 15000, "clients at a time at most; those beyond are counted as missed")
)

type tally struct {
	sync.Mutex
	// Until the page had come.
	served []time.Duration
	// In the time in which clients start.
	inTime   int
	givenUp  int
	missed   int
	examples map[string]int
}

func main() {
	flag.Parse()
	pem, err := os.ReadFile(*authority)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		log.Fatalf("%s: no certificate", *authority)
	}
	address := flag.Arg(0)
	config := &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"http/1.1"}}
	tally := &tally{examples: map[string]int{}}
	end := time.Now().Add(time.Duration(*seconds * float64(time.Second)))
	one := func() {
		start := time.Now()
		err := request(address, config, start.Add(*deadline))
		tally.add(start, end, err)
	}
	var running sync.WaitGroup
	if *rate == 0 {
		for range make([]struct{}, *clients) {
			running.Add(1)
			go func() {
				defer running.Done()
				for time.Now().Before(end) {
					one()
				}
			}()
		}
	} else {
		atATime := make(chan struct{}, *descriptors)
		start := time.Now()
		for number := 0.0; ; number++ {
			planned := start.Add(time.Duration(number / *rate * float64(time.Second)))
			if planned.After(end) {
				break
			}
			time.Sleep(time.Until(planned))
			select {
			case atATime <- struct{}{}:
				running.Add(1)
				go func() {
					defer running.Done()
					one()
					<-atATime
				}()
			default:
				tally.miss()
			}
		}
	}
	running.Wait()
	tally.print()
}

func request(address string, config *tls.Config, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	dialer := tls.Dialer{Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	head := "GET " + *path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		return fmt.Errorf("%.30q", answer)
	}
	return nil
}

func (t *tally) add(start, end time.Time, err error) {
	now := time.Now()
	t.Lock()
	defer t.Unlock()
	if err == nil {
		t.served = append(t.served, now.Sub(start))
		if now.Before(end) {
			t.inTime++
		}
		return
	}
	t.givenUp++
	why := err.Error()
	if network, ok := err.(net.Error); ok && network.Timeout() {
		why = "deadline"
	} else if at := strings.LastIndex(why, ": "); at >= 0 {
		why = why[at+2:]
	}
	t.examples[why]++
}

func (t *tally) miss() {
	t.Lock()
	defer t.Unlock()
	t.missed++
}

func (t *tally) print() {
	sort.Slice(t.served, func(a, b int) bool { return t.served[a] < t.served[b] })
	percentile := func(of float64) float64 {
		if len(t.served) == 0 {
			return 0
		}
		return t.served[int(of*float64(len(t.served)-1))].Seconds() * 1000
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"served":            len(t.served),
		"served_per_second": float64(t.inTime) / *seconds,
		"given_up":          t.givenUp,
		"missed":            t.missed,
		"reasons":           t.examples,
		"p50_ms":            percentile(0.5),
		"p99_ms":            percentile(0.99),
	})
}
