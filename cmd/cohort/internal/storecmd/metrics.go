// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// storeCollector turns a server's numbers into metrics when they are asked for.
type storeCollector struct {
	stats func() tcpstore.Stats

	connections, accepted, cut, requests, keys, queues, bytes, memory, waiting, longest, started *prometheus.Desc

	// of a store with a folder
	logBytes, snapshotBytes, snapshotAge, changes, syncs, refused, writable *prometheus.Desc
}

func newStoreCollector(stats func() tcpstore.Stats) *storeCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cohort_store_"+name, help, labels, nil)
	}
	return &storeCollector{
		stats:       stats,
		connections: desc("connections", "Open connections by dialect: legacy is PyTorch 1.13, v is PyTorch 2, native is Go.", "dialect"),
		accepted:    desc("accepted_connections_total", "Connections ever accepted."),
		cut:         desc("cut_connections_total", "Connections that the server ended for a reason, which is in the log."),
		requests:    desc("requests_total", "Requests by operation.", "op"),
		keys:        desc("keys", "Number of keys."),
		queues:      desc("queues", "Number of queues with items."),
		bytes:       desc("data_bytes", "Memory of keys and values."),
		memory:      desc("memory_bytes", "Memory that counts against the limit."),
		waiting:     desc("waiting", "Requests that wait for a key."),
		longest:     desc("longest_wait_seconds", "Age of the oldest wait, 0 if there are no waiters."),
		started:     desc("start_time_seconds", "When the server started, in seconds since 1970."),

		logBytes:      desc("log_bytes", "Size of the log in the folder."),
		snapshotBytes: desc("snapshot_bytes", "Size of the snapshot in the folder, 0 if there is none."),
		snapshotAge:   desc("snapshot_age_seconds", "Age of the snapshot, or of the folder if there is none."),
		changes:       desc("synced_changes_total", "Changes that were written to the folder and synced."),
		syncs:         desc("syncs_total", "Syncs of the log: many changes share one."),
		refused:       desc("refused_changes_total", "Changes that were refused because the disk was full or failed."),
		writable:      desc("writable", "1 if the folder takes changes, 0 if its disk is full or has failed."),
	}
}

// Describe implements prometheus.Collector.
func (c *storeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.connections, c.accepted, c.cut, c.requests, c.keys, c.queues, c.bytes, c.memory, c.waiting, c.longest, c.started,
		c.logBytes, c.snapshotBytes, c.snapshotAge, c.changes, c.syncs, c.refused, c.writable,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *storeCollector) Collect(out chan<- prometheus.Metric) {
	s := c.stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for dialect, n := range s.Connections {
		gauge(c.connections, float64(n), dialect)
	}
	counter(c.accepted, s.Accepted)
	counter(c.cut, s.Cut)
	for op, n := range s.Ops {
		counter(c.requests, n, op)
	}
	if d := s.Data; d != nil {
		gauge(c.logBytes, float64(d.LogBytes))
		gauge(c.snapshotBytes, float64(d.SnapshotBytes))
		gauge(c.snapshotAge, s.Time.Sub(d.SnapshotTime).Seconds())
		counter(c.changes, d.Changes)
		counter(c.syncs, d.Syncs)
		counter(c.refused, d.Refused)
		writable := 1.0
		if d.Full || d.Error != "" {
			writable = 0
		}
		gauge(c.writable, writable)
	}
	gauge(c.keys, float64(s.Keys))
	gauge(c.queues, float64(s.Queues))
	gauge(c.bytes, float64(s.Bytes))
	gauge(c.memory, float64(s.Memory))
	gauge(c.waiting, float64(s.Waiting))
	oldest := time.Duration(0)
	for _, w := range s.Waits {
		oldest = max(oldest, s.Time.Sub(w.Since))
	}
	gauge(c.longest, oldest.Seconds())
	gauge(c.started, float64(s.Started.UnixNano())/1e9)
}

// inTurn lets one at a time ask. The store stands still while it is asked: however many ask over HTTP, its clients wait for one of them.
// Who is gone before it is his turn does not ask.
func inTurn(stats func() tcpstore.Stats) func(context.Context) (tcpstore.Stats, error) {
	turn := make(chan struct{}, 1)
	return func(ctx context.Context) (tcpstore.Stats, error) {
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return tcpstore.Stats{}, ctx.Err()
		}
		defer func() { <-turn }()
		return stats(), nil
	}
}

// httpHandler serves the numbers of one server.
func httpHandler(server func() tcpstore.Stats) http.Handler {
	healthy := &health{ask: func() { server() }, patience: 2 * time.Second}
	stats := inTurn(server)
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		s, err := stats(r.Context())
		if err != nil {
			return // no client is left to answer
		}
		store := prometheus.NewRegistry() // a collector is asked without a context: this one knows the answer
		store.MustRegister(newStoreCollector(func() tcpstore.Stats { return s }))
		promhttp.HandlerFor(prometheus.Gatherers{store, process}, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	})
	mux.Handle("GET /healthz", healthy)
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, r *http.Request) {
		s, err := stats(r.Context())
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = command.WriteJSON(w, "store.stats", statsOf(s))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "cohort store: /metrics (Prometheus), /healthz, /stats (JSON)")
	})
	return mux
}

// health asks the server's own loop: a store that hangs is not healthy. However often it is asked meanwhile, one question
// at a time is open.
type health struct {
	ask      func()
	patience time.Duration

	mu   sync.Mutex
	open chan struct{} // closed when the question that is open was answered
}

// ServeHTTP implements http.Handler.
func (h *health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	timer := time.NewTimer(h.patience)
	defer timer.Stop()
	select {
	case <-h.question():
		_, _ = fmt.Fprintln(w, "ok")
	case <-timer.C:
		http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
	}
}

// question returns the open question, or a new one.
func (h *health) question() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		answered := make(chan struct{})
		h.open = answered
		go func() { // ends with the server's Close at the latest
			h.ask()
			h.mu.Lock()
			h.open = nil
			h.mu.Unlock()
			close(answered)
		}()
	}
	return h.open
}

// serveHTTP serves the numbers on addr until stop is called. A failure later on ends the command by fail.
func serveHTTP(
	addr string, stats func() tcpstore.Stats, allowed []uint32, fail context.CancelCauseFunc,
) (stop func(), bound string, err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, "", fmt.Errorf("--http: %w", portowner.Named(addr, err))
	}
	// The server of the store says what is refused.
	listener = peeruid.Default(allowed, nil).Listener(listener)
	h := &http.Server{
		Handler: httpHandler(stats), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("--http: %w", err))
		}
	}()
	return func() {
		_ = h.Close()
		<-done
	}, listener.Addr().String(), nil
}
