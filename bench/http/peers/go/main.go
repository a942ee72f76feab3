// Blank or work on net/http: net-http PORT blank|work
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
	"time"
)

const milliseconds = "2006-01-02T15:04:05.000Z"

type request struct {
	Product   string `json:"product"`
	RequestID string `json:"requestId"`
	Group     struct {
		Balance float64     `json:"balance"`
		Dates   []time.Time `json:"dates"`
	} `json:"group"`
}

type client struct {
	Balance float64 `json:"balance"`
	MinDate string  `json:"minDate"`
	MaxDate string  `json:"maxDate"`
}

type answer struct {
	Product   string `json:"product"`
	RequestID string `json:"requestId"`
	Client    client `json:"client"`
}

func blank(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write([]byte("OK"))
}

func work(w http.ResponseWriter, r *http.Request) {
	var asked request
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || len(asked.Group.Dates) == 0 {
		http.Error(w, "this is not the benchmark's document", http.StatusBadRequest)
		return
	}
	least, greatest := asked.Group.Dates[0], asked.Group.Dates[0]
	for _, date := range asked.Group.Dates[1:] {
		if date.Before(least) {
			least = date
		}
		if date.After(greatest) {
			greatest = date
		}
	}
	body, err := json.Marshal(answer{asked.Product, asked.RequestID, client{
		asked.Group.Balance, least.UTC().Format(milliseconds), greatest.UTC().Format(milliseconds),
	}})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

func main() {
	handler := http.HandlerFunc(blank)
	if os.Args[2] == "work" {
		handler = work
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], handler))
}
